"""Score scale: no metric moves, and the distribution comes back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.errors import InputError
from logn.evaluate.decode.detections import Detections
from logn.evaluate.decode.score_scale import ScoreScale, score_scale
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.evaluate.detection.metrics import evaluate_detections

CLASSES = 4


def made_truth(rng: np.random.Generator, images: int = 30) -> dict:
    annotations = []
    for image in range(1, images + 1):
        for _ in range(rng.integers(1, 5)):
            x, y, w, h = rng.integers(0, 60), rng.integers(0, 60), rng.integers(8, 30), rng.integers(8, 30)
            box = [float(value) for value in (x, y, w, h)]
            label = int(rng.integers(1, CLASSES + 1))
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image, "category_id": label, "bbox": box}
                | {"area": box[2] * box[3], "iscrowd": 0}
            )
    return {
        "images": [
            {"id": image, "width": 100, "height": 100, "neg_category_ids": [], "not_exhaustive_category_ids": []}
            for image in range(1, images + 1)
        ],
        "categories": [{"id": label, "name": f"class {label}", "frequency": "f"} for label in range(1, CLASSES + 1)],
        "annotations": annotations,
    }


def made_detections(truth: dict, rng: np.random.Generator) -> Detections:
    """Several shifted boxes for each object, some of them of another class, with scores that half know it."""
    rows = []
    for annotation in truth["annotations"]:
        x, y, w, h = annotation["bbox"]
        for _ in range(6):
            shift = rng.normal(0, 3, 2)
            label = annotation["category_id"] - 1 if rng.random() < 0.7 else int(rng.integers(0, CLASSES))
            right = label == annotation["category_id"] - 1 and np.abs(shift).max() < 3
            score = rng.beta(4, 2) if right else rng.beta(2, 4)
            box = (x + shift[0], y + shift[1], x + w + shift[0], y + h + shift[1])
            rows.append((annotation["image_id"] - 1, label, score, box))
    rows.sort(key=lambda row: (row[0], -row[2]))
    return Detections(
        image_index=np.array([row[0] for row in rows], np.int32),
        labels=np.array([row[1] for row in rows], np.int32),
        scores=np.array([row[2] for row in rows], np.float32),
        boxes=np.array([row[3] for row in rows], np.float32),
        proposal=np.arange(len(rows), dtype=np.int32),
    )


def correct(found: Detections) -> Detections:
    """Scores of the same detections under an imagined correction: each class moves by its own power."""
    scores = found.scores.astype(np.float64) ** np.array([0.4, 1.0, 2.0, 3.0])[found.labels]
    order = np.lexsort((-scores, found.image_index))
    return dataclasses.replace(found, scores=scores.astype(np.float32)).take(order)


@pytest.mark.parametrize("seed", range(3))
def test_no_metric_moves(seed):
    rng = np.random.default_rng(seed)
    content = made_truth(rng)
    truth = load_ground_truth(content)
    original = made_detections(content, rng)
    corrected = correct(original)
    scale = score_scale(original.scores, corrected.scores)
    rescaled = dataclasses.replace(corrected, scores=scale(corrected.scores))
    before, after = evaluate_detections(corrected, truth), evaluate_detections(rescaled, truth)
    assert 0.1 < before["AP"] < 0.9
    backwards = dataclasses.replace(corrected, scores=1 - scale(corrected.scores))
    assert evaluate_detections(backwards, truth)["AP"] != before["AP"]
    np.testing.assert_equal(dict(after.values), dict(before.values))  # NaN where there is no object of a size


@settings(max_examples=50, deadline=None)
@given(
    before=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60),
    after=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60),
    probes=st.lists(st.floats(0, 1, width=32), min_size=2, max_size=60),
)
def test_strictly_increasing_for_any_scores(before, after, probes):
    scale = score_scale(before, after)
    unique = np.unique(np.array(probes))
    mapped = scale(unique)
    assert ((mapped >= 0) & (mapped <= 1)).all()
    distinct = np.diff(unique) > 1e-12
    assert (np.diff(mapped)[distinct] > 0).all()


@pytest.mark.parametrize("power", [0.3, 1.0, 4.0])
def test_a_threshold_keeps_as_many_as_before(power):
    rng = np.random.default_rng(2)
    original = rng.beta(0.5, 3, 20_000)
    corrected = rng.permutation(original) ** power
    scale = score_scale(original, corrected)
    for threshold in (0.05, 0.25, 0.5, 0.8):
        before = (original >= threshold).sum()
        assert (scale(corrected) >= threshold).sum() == pytest.approx(before, rel=0.02, abs=3)
        assert (corrected >= scale.inverse()(threshold)).sum() == pytest.approx(before, rel=0.02, abs=3)


def test_file_round_trip(tmp_path):
    scale = score_scale(np.linspace(0.01, 0.9, 50), np.linspace(0.2, 0.95, 50))
    scale.save(tmp_path / "scale.safetensors")
    loaded = ScoreScale.load(tmp_path / "scale.safetensors")
    np.testing.assert_array_equal(loaded.knots, scale.knots)
    np.testing.assert_array_equal(loaded.values, scale.values)


@pytest.mark.parametrize(
    ("original", "corrected", "message"),
    [
        ([], [0.5], "Expected `original` to have scores"),
        ([0.5], [1.5], "Expected `corrected` to be scores from 0 to 1"),
        ([0.5], [float("nan")], "Expected `corrected` to be scores from 0 to 1"),
    ],
)
def test_bad_scores_are_refused(original, corrected, message):
    with pytest.raises(InputError, match=message):
        score_scale(original, corrected)


def test_bad_maps_are_refused():
    with pytest.raises(InputError, match="Expected `values` to increase strictly"):
        ScoreScale(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.0, 1.0]))
