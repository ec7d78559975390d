"""Images with masks from LVIS files, against the lvis package and pycocotools."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from logn_research.datasets.sample_dataset import Category, SampleDataset
from PIL import Image

from logn.errors import InputError

TRIANGLE = [[2.0, 2.0, 12.5, 3.0, 6.0, 11.5]]
RUNS = {"size": [20, 30], "counts": [45, 4, 16, 4, 531]}


def lvis_content():
    """Three images (one empty), category ids with gaps and out of order, every kind of mask, one crowd region."""
    from pycocotools import mask as coco_mask

    packed = coco_mask.frPyObjects(RUNS, 20, 30)
    compressed = {"size": [20, 30], "counts": packed["counts"].decode()}
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


def test_a_sample_has_image_boxes_labels_and_masks(tmp_path):
    from pycocotools import mask as coco_mask

    dataset = SampleDataset(write(tmp_path, lvis_content()))
    sample = dataset[1]
    assert sample.image_id == 10
    assert sample.image.dtype == np.uint8
    assert sample.image.shape == (20, 30, 3)
    assert abs(int(sample.image.mean()) - 10) <= 2  # JPEG
    assert (sample.boxes.dtype, sample.labels.dtype) == (np.float32, np.int64)
    masks = sample.masks()
    assert (masks.dtype, masks.shape) == (np.bool_, (4, 20, 30))
    triangle = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(TRIANGLE, 20, 30)))
    np.testing.assert_array_equal(masks[0], triangle.astype(np.bool_))
    runs = coco_mask.decode(coco_mask.frPyObjects(RUNS, 20, 30)).astype(np.bool_)
    np.testing.assert_array_equal(masks[1], runs)
    np.testing.assert_array_equal(dataset[0].masks()[0], runs)
    assert masks[3].all()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as loader:
        from_a_process = loader.submit(dataset.__getitem__, 1).result()
    np.testing.assert_array_equal(from_a_process.masks(), sample.masks())


def test_an_image_without_objects(tmp_path):
    sample = SampleDataset(write(tmp_path, lvis_content()))[-1]
    assert sample.boxes.shape == (0, 4)
    assert sample.labels.shape == (0,)
    assert sample.masks().shape == (0, 20, 30)


def test_a_broken_mask_names_its_annotation(tmp_path):
    content = lvis_content()
    content["annotations"][0]["segmentation"] = {"size": [5, 5], "counts": [25]}
    dataset = SampleDataset(write(tmp_path, content))
    with pytest.raises(InputError, match=r"lvis\.json`"):
        dataset[1].masks()


def test_masks_do_not_depend_on_the_file_any_more(tmp_path):
    file = write(tmp_path, lvis_content())
    sample = SampleDataset(file)[1]
    file.unlink()
    assert sample.masks().any()


def test_agrees_with_the_lvis_package(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "float", float, raising=False)  # lvis 0.5.3 was written for an older NumPy
    from lvis import LVIS

    file = write(tmp_path, lvis_content())
    theirs, ours = LVIS(str(file)), SampleDataset(file)
    assert [labels.tolist() for labels in ours.labels_per_image()] == [[0], [2, 1, 1], []]
    for position, image_id in enumerate(ours.image_ids.tolist()):
        entries = theirs.load_anns(theirs.get_ann_ids(img_ids=[image_id]))
        np.testing.assert_array_equal(
            ours.category_ids[ours.labels_of(position)], [entry["category_id"] for entry in entries]
        )
        for mask, entry in zip(ours[position].masks(), entries, strict=True):
            np.testing.assert_array_equal(mask, theirs.ann_to_mask(entry).astype(np.bool_))


def test_classes_boxes_and_counts(tmp_path):
    dataset = SampleDataset(write(tmp_path, lvis_content()))
    assert dataset.categories == (Category(3, "cup", "f"), Category(7, "café", "r"), Category(90, "bun", "c"))
    np.testing.assert_array_equal(dataset.image_sizes, [[20, 30]] * 3)
    np.testing.assert_array_equal(dataset.instance_counts, [1, 2, 1])
    np.testing.assert_array_equal(dataset.image_counts, [1, 1, 1])
    np.testing.assert_array_equal(dataset.labels_of(1), [2, 1, 0, 1])
    np.testing.assert_array_equal(dataset.is_crowd_of(1), [False, False, True, False])
    np.testing.assert_array_equal(dataset.boxes_of(1)[0], np.float32([2, 2, 12.5, 11.5]))


def test_agrees_with_pycocotools(tmp_path):
    from pycocotools.coco import COCO

    file = write(tmp_path, lvis_content())
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = COCO(str(file))
    ours = SampleDataset(file)
    for position, image_id in enumerate(ours.image_ids.tolist()):
        entries = theirs.loadAnns(theirs.getAnnIds(imgIds=[image_id]))
        boxes = np.array([entry["bbox"] for entry in entries]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        np.testing.assert_allclose(ours.boxes_of(position), boxes, atol=1e-5)


def test_degenerate_boxes_are_dropped_and_counted(tmp_path):
    content = lvis_content()
    boxes = [[5, 5, 0, 4], [5, 5, 4, 0], [5, 5, 0.5, 4], [40, 5, 4, 4], [-9, 5, 4, 4], [28, 18, 9, 9], [29.9, 1, 3, 3]]
    content["annotations"] = [annotation(i, 10, 3, box, []) for i, box in enumerate(boxes)]
    with pytest.warns(UserWarning, match="6 are dropped .* 1 are clipped"):
        dataset = SampleDataset(write(tmp_path, content))
    assert (dataset.dropped_boxes, dataset.clipped_boxes) == (6, 1)
    np.testing.assert_array_equal(dataset.boxes_of(1), [[28, 18, 30, 20]])
    assert dataset.instance_counts.tolist() == [1, 0, 0]


def test_rounding_over_the_edge_is_clipped_without_a_word(tmp_path, recwarn):
    content = lvis_content()
    content["annotations"] = [annotation(1, 10, 3, [-0.3, 0, 30.6, 20.2], [])]
    dataset = SampleDataset(write(tmp_path, content))
    np.testing.assert_array_equal(dataset.boxes_of(1), [[0, 0, 30, 20]])
    assert not recwarn.list


def test_labels_of_boxes_have_no_masks(tmp_path):
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    (tmp_path / "data.yaml").write_text("val: .\nnames: [cup]\n")
    (tmp_path / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    sample = SampleDataset(tmp_path)[0]
    with pytest.raises(InputError, match="gives no masks: only boxes are read of YOLO"):
        sample.masks()


def test_reading_needs_no_torch(tmp_path):
    file = write(tmp_path, lvis_content())
    code = (
        "import sys; from logn_research.datasets.sample_dataset import SampleDataset; "
        "from logn_research.datasets.samplers import make_sampler; import logn_research.training.augmentation; "
        f"d = SampleDataset({str(file)!r}); assert d[1].masks().any(); make_sampler('random', d).indices(); "
        "assert not {'torch', 'matplotlib', 'typer'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
