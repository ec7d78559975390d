"""The images and classes of LVIS and COCO files that the tests write."""

import json

import numpy as np
import pytest
from PIL import Image
from tests.made.labels import SIZES, THINGS, coco_content, write_images

from logn.data.dataset import DetectionDataset
from logn.data.images import read_rgb
from logn.errors import InputError, LogNWarning

URL = "http://images.cocodataset.org/train2017/{:012d}.jpg"
#: Three images, and category ids with gaps and out of order.
LVIS = {
    "info": {"year": 2020},
    "images": [{"id": number, "height": 20, "width": 30, "coco_url": URL.format(number)} for number in (30, 10, 20)],
    "categories": [{"id": 7, "name": "café"}, {"id": 3, "name": "cup"}, {"id": 90, "name": "bun"}],
    "annotations": [
        {"id": number, "image_id": image, "category_id": category, "bbox": [2, 5, 2, 4]}
        for number, (image, category) in enumerate([(10, 90), (30, 3), (10, 7), (10, 3), (10, 7)], start=1)
    ],
}


def write(folder, content):
    file = folder / "lvis.json"
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return file


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "train2017").mkdir()
    for entry in LVIS["images"]:
        picture = np.full((20, 30, 3), entry["id"], np.uint8)
        Image.fromarray(picture).save(tmp_path / "train2017" / f"{entry['id']:012d}.jpg")
    return DetectionDataset(write(tmp_path, LVIS))


def test_everything_that_a_file_says(dataset):
    assert len(dataset) == 3
    assert dataset.num_classes == 3
    assert dataset.class_names == ("cup", "café", "bun")
    np.testing.assert_array_equal(dataset.category_ids, [3, 7, 90])
    np.testing.assert_array_equal(dataset.image_ids, [30, 10, 20])
    assert "3 images, 3 classes, 5 annotations" in repr(dataset)
    assert [path.name for path in dataset.image_paths()] == [f"{number:012d}.jpg" for number in (30, 10, 20)]


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
@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "RGBA", "P", "1"])
def test_where_images_are_looked_for_and_that_they_become_rgb(tmp_path, entry, place, mode):
    content = {"images": [{"id": 1, "height": 2, "width": 3, **entry}], "categories": [{"id": 1, "name": "a"}]}
    root = tmp_path / "pictures"
    (root / place).parent.mkdir(parents=True)
    Image.new(mode, (3, 2)).save(root / place)
    dataset = DetectionDataset(write(tmp_path, content), root)
    assert dataset.image_path(0) == root / place
    assert dataset.read_image(0).shape == (2, 3, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": [{"id": 1, "height": 2, "width": 2}]}, "`file_name`"),
        ({"images": [{"id": 1, "width": 2, "file_name": "a"}]}, "`height`"),
        ({"images": [{"id": 1, "height": 0, "width": 2, "file_name": "a"}]}, "height 0"),
    ],
)
def test_images_that_cannot_be_are_refused(tmp_path, change, words):
    with pytest.raises(InputError, match=words) as caught:
        DetectionDataset(write(tmp_path, {**LVIS, "annotations": [], **change}))
    assert "lvis.json" in str(caught.value)


def test_missing_truncated_and_wrong_images_are_named(dataset, tmp_path, monkeypatch):
    picture = tmp_path / "train2017" / "000000000010.jpg"
    whole = picture.read_bytes()

    def refused(words):
        with pytest.raises(InputError, match=words):
            dataset.read_image(1)

    with monkeypatch.context() as context:
        context.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        refused(r"000000000010\.jpg")  # gigantic, for a picture
    for content in (whole[: len(whole) // 2], b"no picture"):
        picture.write_bytes(content)
        refused(r"000000000010\.jpg")
    Image.new("RGB", (31, 20)).save(picture)
    refused(r"has height and width \(20, 31\), but .* says \(20, 30\)")
    picture.unlink()
    refused(r"Image 10 .* is not at `.*train2017/000000000010\.jpg")
    for index in (3, -4):
        with pytest.raises(IndexError):
            dataset.read_image(index)


def test_a_turn_that_is_ignored_is_warned_of_whatever_the_labels_are(tmp_path):
    write_images(tmp_path, SIZES)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", SIZES["a"]).save(tmp_path / "a.jpg", exif=turned)
    content = coco_content(SIZES, THINGS)
    content["images"][0]["file_name"] = "a.jpg"
    (tmp_path / "x.json").write_text(json.dumps(content))
    data = DetectionDataset(tmp_path / "x.json")
    for read in (lambda: data.read_image(0), lambda: read_rgb(tmp_path / "a.jpg")):
        with pytest.warns(LogNWarning, match="EXIF"):
            assert read().shape == (40, 60, 3)
    assert data.read_image(1).shape == (64, 32, 3)  # the others without a word
