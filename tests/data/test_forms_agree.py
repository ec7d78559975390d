"""The same data set as COCO, YOLO and Pascal VOC gives the same ground truth, counts, dimensions and AP."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made.labels import NAMES, SIZES, THINGS, Thing, coco_content, write_voc, write_yolo

from logn.data.annotations import label_protocol, read_annotations
from logn.data.class_counts import ClassCounts
from logn.data.dataset import DetectionDataset
from logn.data.fractal_dimensions import read_dimensions
from logn.matching.labels import load_ground_truth
from logn.measure.detection.metrics import COCO_CAP, EvaluationProtocol, evaluate_detections
from logn.predictions.detections import Detections

COCO = EvaluationProtocol("coco", max_detections=COCO_CAP)


def detections(images, labels, scores, boxes):
    kinds = (np.int32, np.int32, np.float32, np.float32)
    arrays = (np.asarray(values, kind) for values, kind in zip((images, labels, scores, boxes), kinds, strict=True))
    return Detections(*arrays, np.arange(len(images), dtype=np.int32))


def some_detections(truth, seed):
    """Boxes near the true ones and elsewhere, some of another class."""
    rng = np.random.default_rng(seed)
    boxes = np.hstack([truth.boxes[:, :2], truth.boxes[:, :2] + truth.boxes[:, 2:]])
    near = np.repeat(boxes, 3, axis=0) + rng.normal(0, 1.5, (3 * len(boxes), 4))
    labels = np.repeat(truth.labels, 3)
    labels[::4] = rng.integers(0, truth.num_classes, len(labels[::4]))
    images = np.repeat(truth.image_index, 3)
    order = np.argsort(images, kind="stable")
    return detections(images[order], labels[order], np.sort(rng.uniform(0, 1, len(images)))[::-1], near[order])


def test_every_form_gives_the_same_ground_truth_and_the_same_ap(forms):
    truths = [load_ground_truth(path) for path in (forms.coco, forms.yolo, forms.voc)]
    assert [truth.style for truth in truths] == ["coco"] * 3
    expected = truths[0]
    found = some_detections(expected, seed=0)
    wanted = evaluate_detections(found, expected, COCO)
    assert 0.05 < wanted["AP"] < 0.95
    for truth in truths[1:]:
        assert truth.class_names == NAMES
        np.testing.assert_array_equal(truth.image_index, expected.image_index)
        np.testing.assert_array_equal(truth.labels, expected.labels)
        np.testing.assert_allclose(truth.boxes, expected.boxes, atol=1e-12)
        came = evaluate_detections(found, truth, COCO)
        for name, value in wanted.values.items():
            assert came[name] == pytest.approx(value, abs=1e-12, nan_ok=True), name


def test_every_form_gives_the_same_data_set_counts_and_dimensions(forms):
    expected, counted, dimensions = (
        DetectionDataset(forms.coco),
        ClassCounts.load(forms.coco),
        read_dimensions(forms.coco),
    )
    assert counted.num_images == len(SIZES)
    for path in (forms.yolo, forms.yolo.parent, forms.voc):
        dataset, counts = DetectionDataset(path), ClassCounts.load(path)
        assert dataset.class_names == counts.names == expected.class_names == counted.names
        for index in range(len(expected)):
            np.testing.assert_array_equal(dataset.read_image(index), expected.read_image(index))
        assert counts.image_counts.tolist() == counted.image_counts.tolist()
        assert counts.instance_counts.tolist() == counted.instance_counts.tolist()
        assert counts.num_images == counted.num_images
        assert read_dimensions(path).tolist() == dimensions.tolist()


def test_only_lvis_labels_are_federated(forms, tmp_path):
    assert {label_protocol(read_annotations(path)) for path in (forms.coco, forms.yolo, forms.voc)} == {"coco"}
    content = json.loads(forms.coco.read_text())
    for image in content["images"]:
        image |= {"neg_category_ids": [], "not_exhaustive_category_ids": []}
    lvis = tmp_path / "lvis.json"
    lvis.write_text(json.dumps(content))
    assert label_protocol(read_annotations(lvis)) == label_protocol(read_annotations(content)) == "lvis"
    assert load_ground_truth(lvis).style == "lvis"


@st.composite
def data_sets(draw):
    sizes, things = {}, {}
    for number in range(draw(st.integers(1, 3))):
        width, height = draw(st.tuples(st.integers(1, 50), st.integers(1, 50)))
        sizes[f"image {number}"] = (width, height)
        found = []
        for _ in range(draw(st.integers(0, 3))):
            left, top = draw(st.tuples(st.integers(0, width - 1), st.integers(0, height - 1)))
            right, bottom = draw(st.tuples(st.integers(left + 1, width), st.integers(top + 1, height)))
            found.append(Thing(draw(st.integers(0, 2)), left, top, right, bottom))
        things[f"image {number}"] = tuple(dict.fromkeys(found))  # YOLO has no two equal lines
    return sizes, things


@given(data_sets())
def test_boxes_written_in_every_form_are_read_back(tmp_path_factory, made):
    sizes, things = made
    root = tmp_path_factory.mktemp("forms")
    expected = read_annotations(coco_content(sizes, things))
    yolo = read_annotations(write_yolo(root / "yolo", sizes, things))
    voc = read_annotations(write_voc(root / "voc", sizes, things))
    for found in (yolo, voc):
        assert [image["id"] for image in found.images] == [image["id"] for image in expected.images]
        assert found.image_ids.tolist() == expected.image_ids.tolist()
        np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-12)
    assert yolo.category_ids.tolist() == expected.category_ids.tolist()
    names = {category["id"]: category["name"] for category in voc.categories}
    assert [names[number] for number in voc.category_ids.tolist()] == [
        NAMES[number - 1] for number in expected.category_ids.tolist()
    ]


def test_difficult_objects_need_not_be_found_and_finding_them_is_no_fault(tmp_path):
    things = {"a": (*THINGS["a"], Thing(1, 40, 2, 55, 8, difficult=True)), "b": THINGS["b"]}
    voc = load_ground_truth(write_voc(tmp_path / "voc", SIZES, things))
    coco = load_ground_truth(coco_content(SIZES, things))
    assert voc.crowd.tolist() == coco.crowd.tolist() == [False, False, False, True, False, False]
    assert voc.boxes_per_class.tolist() == [2, 1, 2]
    found = detections([0, 1], [1, 1], [0.9, 0.8], [[40, 2, 55, 8], [1, 30, 31, 60]])
    assert evaluate_detections(found, voc, COCO).per_class[1] == pytest.approx(1.0)
    assert ClassCounts.load(tmp_path / "voc").instance_counts.tolist() == [2, 1, 2]
