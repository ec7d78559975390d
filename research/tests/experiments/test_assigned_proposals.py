"""Which class a proposal belongs to: that of the box it overlaps most, from one half on, crowds left out."""

import numpy as np

from logn.evaluate.detection.assignment import assign, assigned
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.evaluate.store.store import PredictionStore, PredictionWriter, StoreHeader
from logn.logits.proposals import Proposals


def test_an_overlap_of_exactly_one_half_is_enough_and_the_best_box_counts():
    proposals = np.array([[0, 0, 10, 5], [0, 0, 10, 4.9], [0, 0, 10, 9], [50, 50, 60, 60]], float)
    boxes, labels = np.array([[0, 0, 10, 10], [0, 0, 10, 8]], float), np.array([3, 5])
    assert assign(proposals, boxes[:1], labels[:1]).tolist() == [3, -1, 3, -1]
    assert assign(proposals, boxes, labels).tolist() == [5, 5, 3, -1]
    assert assign(proposals, np.empty((0, 4)), np.empty(0, np.int64)).tolist() == [-1] * 4


def test_crowds_are_no_objects(tmp_path):
    boxes = np.array([[0, 0, 10, 10], [20, 20, 30, 30]], np.float32)
    with PredictionWriter(tmp_path / "store", StoreHeader(num_columns=2, activation="sigmoid")) as writer:
        writer.append(1, Proposals(boxes, np.zeros((2, 2)), height=40, width=40))
    content = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "cup"}, {"id": 2, "name": "fork"}]}
    content["annotations"] = [
        {"id": 1, "image_id": 1, "category_id": 2, "bbox": [0, 0, 10, 10], "iscrowd": 1},
        {"id": 2, "image_id": 1, "category_id": 2, "bbox": [20, 20, 10, 10], "iscrowd": 0},
    ]
    truth = load_ground_truth(content, style="coco")
    ((_, classes),) = assigned(PredictionStore(tmp_path / "store"), truth)
    assert classes.tolist() == [-1, 1]
