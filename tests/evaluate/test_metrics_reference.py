"""The worked examples of the metrics, with the numbers that the reference implementations gave."""

import numpy as np
import pytest

from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.evaluate.detection.matching import match_detections
from logn.evaluate.detection.metrics import (
    EvaluationProtocol,
    average_precision_pool,
    evaluate_detections,
    fixed_protocol,
)
from logn.evaluate.detection.tide import error_types

# (image, category, x y w h); images 1 and 2 stand at positions 0 and 1, category c at position c - 1.
FEDERATED_BOXES = [(1, 1, [0, 0, 10, 10]), (1, 2, [20, 20, 10, 10]), (2, 2, [0, 0, 10, 10]), (2, 3, [30, 30, 10, 10])]
FEDERATED_DETECTIONS = [
    (1, 1, [0, 0, 10, 10], 0.9),
    (1, 3, [5, 5, 10, 10], 0.8),
    (1, 2, [20, 20, 10, 8.2], 0.7),
    (1, 4, [5, 5, 10, 10], 0.99),
    (2, 1, [50, 50, 10, 10], 0.95),
    (2, 2, [40, 40, 10, 10], 0.85),
    (2, 2, [0, 0, 10, 10], 0.5),
    (2, 3, [30, 30, 10, 10], 0.4),
]


def annotations(boxes):
    return [
        {"id": number, "image_id": image, "category_id": category, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        for number, (image, category, box) in enumerate(boxes, start=1)
    ]


def made_detections(entries):
    """Detections from (image, category, x y w h, score), sorted as the decoder sorts them."""
    image, category, box, score = (np.array(column) for column in zip(*entries, strict=True))
    corners = np.hstack([box[:, :2], box[:, :2] + box[:, 2:]])
    order = np.lexsort((-score, image))
    columns = image - 1, category - 1, score, corners, np.arange(len(score))
    return Detections(*(column[order] for column in columns))


@pytest.fixture
def federated():
    images = [
        {"id": 1, "neg_category_ids": [3], "not_exhaustive_category_ids": []},
        {"id": 2, "neg_category_ids": [1], "not_exhaustive_category_ids": [2]},
    ]
    categories = [{"id": number, "name": f"c{number}", "frequency": group} for number, group in enumerate("rcff", 1)]
    return load_ground_truth({"images": images, "categories": categories, "annotations": annotations(FEDERATED_BOXES)})


def test_lvis_average_precision(federated):
    result = evaluate_detections(made_detections(FEDERATED_DETECTIONS), federated, groups=federated.frequency)
    expected = {"AP": 0.591914, "AP50": 0.666667, "AP75": 0.666667, "APr": 0.5, "APc": 0.775743, "APf": 0.5}
    assert {name: result[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert np.isnan(result.per_class[3])


def test_a_limit_of_two_an_image_counts_what_is_later_filtered_out(federated):
    protocol = EvaluationProtocol(max_detections=2)
    result = evaluate_detections(made_detections(FEDERATED_DETECTIONS), federated, protocol, groups=federated.frequency)
    expected = {"AP": 0.166667, "APr": 0.5, "APc": 0.0, "APf": 0.0}
    assert {name: result[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert result.protocol.describe().startswith("LVIS box AP, federated, at most 2 detections per image")


@pytest.mark.parametrize(("limit", "expected"), [(10_000, 0.591914), (1, 0.0)])
def test_average_precision_fixed(federated, limit, expected):
    protocol = fixed_protocol(EvaluationProtocol(), limit)
    result = evaluate_detections(made_detections(FEDERATED_DETECTIONS), federated, protocol)
    assert result["AP"] == pytest.approx(expected, abs=1e-6)
    assert result.protocol.max_detections is None
    assert result.protocol.per_class_limit == limit


def test_average_precision_pool(federated):
    matched = match_detections(made_detections(FEDERATED_DETECTIONS), federated)
    expected = {"AP-Pool": 0.579538, "APr-Pool": 0.5, "APc-Pool": 0.775743, "APf-Pool": 0.5}
    assert average_precision_pool(matched, federated, groups=federated.frequency) == pytest.approx(expected, abs=1e-6)


def test_error_types():
    truth_at = [(1, 0), (1, 200), (1, 500), (2, 100), (2, 300), (2, 600)]
    found_at = [(1, 0.95, 0), (1, 0.90, 0), (1, 0.85, 100), (1, 0.80, 205), (1, 0.60, 400), (1, 0.50, 305)]
    found_at += [(1, 0.30, 500), (2, 0.9, 600)]
    truth = load_ground_truth(
        {
            "images": [{"id": 1}],
            "categories": [{"id": 1}, {"id": 2}],
            "annotations": annotations([(1, category, [x, 0, 10, 10]) for category, x in truth_at]),
        },
        style="coco",
    )
    detections = made_detections([(1, category, [x, 0, 10, 10], score) for category, score, x in found_at])
    result = error_types(detections, truth, match_detections(detections, truth), groups=np.array(["f", "r"]))
    expected = {"Cls": 17.114569, "Loc": 10.714286, "Both": 0.777935, "Dupe": 0.777935, "Bkg": 0.777935}
    expected |= {"Miss": 8.415842, "FP": 11.669024, "FN": 43.988685}
    assert 100 * result.base == pytest.approx(38.330976, abs=1e-6)
    assert {name: 100 * gain for name, gain in result.gains.items()} == pytest.approx(expected, abs=1e-6)
    assert result.counts == {"Cls": 1, "Loc": 1, "Both": 1, "Dupe": 1, "Bkg": 1, "Miss": 1}
    assert 100 * result.per_group["f"]["AP50"] == pytest.approx(42.998586, abs=1e-6)
    assert 100 * result.per_group["r"]["AP50"] == pytest.approx(33.663366, abs=1e-6)
    assert np.isnan(result.per_group["c"]["AP50"])
