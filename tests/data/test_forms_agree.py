"""The same data set as COCO and YOLO gives the same ground truth, counts, dimensions and AP."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made.labels import NAMES, SIZES, Thing, coco_content, write_yolo

from logn.data.class_counts import ClassCounts
from logn.data.dataset import DetectionDataset
from logn.data.fractal_dimensions import read_dimensions
from logn.data.labels import Labels
from logn.matching.ground_truth import load_ground_truth
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


def test_both_forms_give_the_same_ground_truth_and_the_same_ap(forms):
    expected, truth = load_ground_truth(forms.coco), load_ground_truth(forms.yolo)
    assert expected.style == truth.style == "coco"
    assert expected.class_names == truth.class_names == NAMES
    np.testing.assert_array_equal(truth.image_index, expected.image_index)
    np.testing.assert_array_equal(truth.labels, expected.labels)
    np.testing.assert_allclose(truth.boxes, expected.boxes, atol=1e-12)
    boxes = some_detections(expected, seed=0)
    wanted, came = evaluate_detections(boxes, expected, COCO), evaluate_detections(boxes, truth, COCO)
    assert 0.05 < wanted["AP"] < 0.95
    for name, value in wanted.values.items():
        assert came[name] == pytest.approx(value, abs=1e-12, nan_ok=True), name


def test_both_forms_give_the_same_data_set_counts_and_dimensions(forms):
    expected, counted, dimensions = (
        DetectionDataset(forms.coco),
        ClassCounts.load(forms.coco),
        read_dimensions(forms.coco),
    )
    assert counted.num_images == len(SIZES)
    for path in (forms.yolo, forms.yolo.parent):
        dataset, counts = DetectionDataset(path), ClassCounts.load(path)
        assert dataset.class_names == counts.names == expected.class_names == counted.names
        for index in range(len(expected)):
            np.testing.assert_array_equal(dataset.read_image(index), expected.read_image(index))
        assert counts.image_counts.tolist() == counted.image_counts.tolist()
        assert counts.instance_counts.tolist() == counted.instance_counts.tolist()
        assert counts.num_images == counted.num_images
        assert read_dimensions(path).tolist() == dimensions.tolist()


def test_only_lvis_labels_are_federated(forms, tmp_path):
    assert {Labels.load(path).protocol for path in (forms.coco, forms.yolo)} == {"coco"}
    content = json.loads(forms.coco.read_text())
    for image in content["images"]:
        image |= {"neg_category_ids": [], "not_exhaustive_category_ids": []}
    lvis = tmp_path / "lvis.json"
    lvis.write_text(json.dumps(content))
    assert Labels.load(lvis).protocol == Labels.load(content).protocol == "lvis"
    assert load_ground_truth(lvis).style == "lvis"


@st.composite
def data_sets(draw):
    sizes, things = {}, {}
    for number in range(draw(st.integers(1, 3))):
        width, height = draw(st.tuples(st.integers(1, 50), st.integers(1, 50)))
        sizes[f"image {number}"] = (width, height)
        objects = []
        for _ in range(draw(st.integers(0, 3))):
            left, top = draw(st.tuples(st.integers(0, width - 1), st.integers(0, height - 1)))
            right, bottom = draw(st.tuples(st.integers(left + 1, width), st.integers(top + 1, height)))
            objects.append(Thing(draw(st.integers(0, 2)), left, top, right, bottom))
        things[f"image {number}"] = tuple(dict.fromkeys(objects))  # YOLO has no two equal lines
    return sizes, things


@given(data_sets())
def test_boxes_written_in_both_forms_are_read_back(tmp_path_factory, made):
    sizes, things = made
    root = tmp_path_factory.mktemp("forms")
    expected, yolo = Labels.load(coco_content(sizes, things)), Labels.load(write_yolo(root, sizes, things))
    assert yolo.image_ids.tolist() == expected.image_ids.tolist()
    assert yolo.image_index.tolist() == expected.image_index.tolist()
    assert yolo.classes.tolist() == expected.classes.tolist()
    np.testing.assert_allclose(yolo.boxes, expected.boxes, atol=1e-12)
