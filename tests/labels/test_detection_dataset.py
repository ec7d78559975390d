"""The images and classes of LVIS and COCO files that the tests write."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from logn.errors import InputError
from logn.labels.dataset import DetectionDataset

TRIANGLE = [[2.0, 2.0, 12.5, 3.0, 6.0, 11.5]]
RUNS = {"size": [20, 30], "counts": [45, 4, 16, 4, 531]}


def lvis_content():
    """Three images (one empty), category ids with gaps and out of order, every kind of mask, one crowd region."""
    compressed = {"size": [20, 30], "counts": "04"}
    url = "http://images.cocodataset.org/train2017/{:012d}.jpg"
    return {
        "info": {"year": 2020},
        "images": [
            {"id": number, "height": 20, "width": 30, "coco_url": url.format(number), "neg_category_ids": []}
            for number in (30, 10, 20)
        ],
        "categories": [
            {"id": 7, "name": "café", "frequency": "r"},
            {"id": 3, "name": "cup", "frequency": "f"},
            {"id": 90, "name": "bun", "frequency": "c"},
        ],
        "annotations": [
            annotation(1, 10, 90, [2, 2, 10.5, 9.5], TRIANGLE),
            annotation(2, 30, 3, [2, 5, 2, 4], compressed),
            annotation(3, 10, 7, [2, 5, 2, 4], RUNS),
            annotation(4, 10, 3, [2, 5, 2, 4], RUNS, iscrowd=1),
            annotation(5, 10, 7, [0, 0, 30, 20], [[0, 0, 30, 0, 30, 20, 0, 20]]),
        ],
    }


def annotation(number, image, category, box, segmentation, iscrowd=0):
    return {
        "id": number, "image_id": image, "category_id": category, "bbox": box, "area": box[2] * box[3],
        "segmentation": segmentation, "iscrowd": iscrowd,
    }  # fmt: skip


def write(folder, content, images=True):
    file = folder / "lvis.json"
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    if images:
        (folder / "train2017").mkdir(exist_ok=True)
        for entry in content["images"]:
            picture = np.full((20, 30, 3), entry["id"], np.uint8)
            Image.fromarray(picture).save(folder / "train2017" / f"{entry['id']:012d}.jpg")
    return file


def test_everything_that_a_file_says(tmp_path):
    dataset = DetectionDataset(write(tmp_path, lvis_content()))
    assert len(dataset) == 3
    assert dataset.num_classes == 3
    assert dataset.class_names == ("cup", "café", "bun")
    np.testing.assert_array_equal(dataset.category_ids, [3, 7, 90])
    np.testing.assert_array_equal(dataset.image_ids, [30, 10, 20])
    assert "3 images, 3 classes, 5 annotations" in repr(dataset)


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"file_name": "a.png"}, "a.png"),
        ({"file_name": "deep/a.png"}, "deep/a.png"),
        ({"coco_url": "http://x/val2017/a.png"}, "val2017/a.png"),
        ({"coco_url": "http://x/val2017/a.png"}, "a.png"),
        ({"coco_url": "http://x/val2017/a.png", "file_name": "COCO_a.png"}, "val2017/a.png"),
    ],
)
def test_where_images_are_looked_for(tmp_path, entry, place):
    content = {"images": [{"id": 1, "height": 2, "width": 3, **entry}], "categories": [{"id": 1, "name": "a"}]}
    root = tmp_path / "pictures"
    (root / place).parent.mkdir(parents=True)
    Image.fromarray(np.zeros((2, 3, 3), np.uint8)).save(root / place)
    dataset = DetectionDataset(write(tmp_path, content, images=False), root)
    assert dataset.image_path(0) == root / place
    assert dataset.read_image(0).shape == (2, 3, 3)


def test_grey_and_transparent_images_become_rgb(tmp_path):
    content = {"images": [{"id": 1, "height": 2, "width": 3, "file_name": "a.png"}], "categories": [{"id": 1}]}
    for mode in ("L", "LA", "RGBA", "P", "1"):
        Image.new(mode, (3, 2)).save(tmp_path / "a.png")
        assert DetectionDataset(write(tmp_path, content, images=False)).read_image(0).shape == (2, 3, 3)


def broken(**change):
    content = lvis_content()
    for key, value in change.items():
        content[key] = value
    return content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (broken(images=[]), "lists no `images`"),
        (broken(categories=[]), "lists no `categories`"),
        (broken(annotations=[annotation(5, 99, 3, [1, 1, 2, 2], [])]), "does not list image 99 of annotation 5"),
        (broken(annotations=[annotation(5, 10, 4, [1, 1, 2, 2], [])]), "does not list category 4 of annotation 5"),
        (broken(annotations=[annotation(5, 10, 3, [1, 1, 2, float("nan")], [])]), "`bbox` of annotation 5"),
        (
            broken(annotations=[{"id": 5, "image_id": 10, "category_id": 3}]),
            "Entry 0 of `annotations` .* has no `bbox`",
        ),
        (
            broken(annotations=[{"id": 5, "image_id": 10, "category_id": "3"}]),
            "`category_id` .* an integer, but is '3'",
        ),
        (broken(images=[{"id": 1, "height": 2, "width": 2}]), "Image 1 .* neither `file_name` nor `coco_url`"),
        (broken(images=[{"id": 1, "width": 2, "file_name": "a"}]), "Entry 0 of `images` .* has no `height`"),
        (broken(images=[{"id": 1, "height": 0, "width": 2, "file_name": "a"}]), "height 0 and width 2: both"),
        (broken(images=[{"id": 2**70, "height": 1, "width": 2, "file_name": "a"}]), "`id` .* an integer"),
        (broken(images=lvis_content()["images"] * 2), "lists image 30 twice"),
        (broken(categories=lvis_content()["categories"] * 2), "lists category 7 twice"),
    ],
)
def test_inconsistent_files_are_refused_in_one_sentence(tmp_path, content, words):
    with pytest.raises(InputError, match=words) as caught:
        DetectionDataset(write(tmp_path, content, images=False))
    assert "lvis.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_truncated_and_wrong_images_are_named(tmp_path):
    dataset = DetectionDataset(write(tmp_path, lvis_content()))
    picture = tmp_path / "train2017" / "000000000010.jpg"
    whole = picture.read_bytes()
    picture.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"000000000010\.jpg` cannot be read"):
        dataset.read_image(1)
    picture.write_text("no picture")
    with pytest.raises(InputError, match=r"The image `.*` cannot be read"):
        dataset.read_image(1)
    Image.new("RGB", (31, 20)).save(picture)
    with pytest.raises(InputError, match=r"has height and width \(20, 31\), but .* says \(20, 30\)"):
        dataset.read_image(1)
    picture.unlink()
    with pytest.raises(InputError, match=r"Image 10 .* is not at `.*train2017/000000000010\.jpg"):
        dataset.read_image(1)
    with pytest.raises(IndexError):
        dataset.read_image(3)


def test_gigantic_images_are_refused(tmp_path, monkeypatch):
    dataset = DetectionDataset(write(tmp_path, lvis_content()))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"The image `.*` cannot be read"):
        dataset.read_image(1)
