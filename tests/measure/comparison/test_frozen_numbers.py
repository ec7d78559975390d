"""Numbers of made problems, kept in `frozen_numbers.json`: what is rewritten must still give them, to 1e-9.

`python -m tests.measure.comparison.test_frozen_numbers` writes them again, where a change of numbers is meant.
"""

import json
import math
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from tests.made.split import make_split

import logn
from logn.measure.comparison import CompareSettings

KEPT = Path(__file__).with_name("frozen_numbers.json")
DETECTION = ["recommended", "logn", "logn:use_std=false", "p2p", "loga", "norcal", "temperature:value=2"]
CLASSIFICATION = ["recommended", "logn", "p2p", "loga", "iif"]


def plain(value):
    """Numbers, texts, lists and mappings, as JSON has them."""
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def maps_of(split, specifications):
    fitted = {
        name: logn.methods.fit(name, moments=split.moments, counts=split.counts.image_counts) for name in specifications
    }
    return {name: {"scale": affine.scale, "shift": affine.shift} for name, affine in fitted.items()}


def statistics_of(split):
    moments = split.moments
    return {"count": moments.count, "mean": moments.mean, "variance": moments.variance}


def rows_of(comparison):
    """Each method's metrics, their intervals against none, the kinds of error, and recall at an equal number."""
    return [
        {
            "method": row.name,
            "metrics": dict(row.values),
            "differences": {
                name: {"difference": change.difference, "low": change.low, "high": change.high}
                for name, change in row.differences.items()
            },
            "tide": row.tide,
            "recall": [asdict(point) for point in row.recall.values()],
        }
        for row in comparison.rows
    ]


def detector(split, style):
    settings = CompareSettings(style=style, num_bootstrap=50, errors=True)
    comparison = logn.compare(
        split.store, split.annotations, DETECTION, settings=settings, moments=split.moments, counts=split.counts
    )
    return {"statistics": statistics_of(split), "maps": maps_of(split, DETECTION[:-1]), "rows": rows_of(comparison)}


def classifier():
    rng = np.random.default_rng(5)
    counts = np.array([900, 500, 200, 90, 40, 15, 6])
    frequent = rng.choice(len(counts), 2000, p=counts / counts.sum())
    even = rng.integers(0, len(counts), 700)
    train, test = (
        3 * np.eye(len(counts))[labels] + rng.normal(size=(len(labels), len(counts))) + 0.7 * np.log(counts)
        for labels in (frequent, even)
    )
    settings = CompareSettings(num_bootstrap=50)
    comparison = logn.compare(test, even, CLASSIFICATION, settings=settings, train_logits=train, counts=counts)
    return {"rows": rows_of(comparison)}


def measured(folder):
    (folder / "softmax").mkdir()
    (folder / "sigmoid").mkdir()
    softmax = make_split(folder / "softmax")
    sigmoid = make_split(folder / "sigmoid", activation="sigmoid", seed=1)
    return plain({"lvis": detector(softmax, "lvis"), "coco": detector(sigmoid, "coco"), "classifier": classifier()})


def different(kept, now, path=""):
    """Where two contents differ by more than 1e-9; what only the new one has is no difference."""
    if isinstance(kept, dict):
        return [line for name, value in kept.items() for line in different(value, now.get(name), f"{path}/{name}")]
    if isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        pairs = enumerate(zip(kept, now, strict=True))
        return [line for index, (value, other) in pairs for line in different(value, other, f"{path}/{index}")]
    if isinstance(kept, float | int) and isinstance(now, float | int):
        return [] if kept == pytest.approx(now, rel=1e-9, abs=1e-9) else [f"{path}: {kept} -> {now}"]
    return [] if kept == now else [f"{path}: {kept} -> {now}"]


def test_made_problems_give_the_same_numbers(softmax_split, sigmoid_split):
    kept = json.loads(KEPT.read_text())
    now = plain(
        {
            "lvis": detector(softmax_split, "lvis"),
            "coco": detector(sigmoid_split, "coco"),
            "classifier": classifier(),
        }
    )
    assert different(kept, now) == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        KEPT.write_text(json.dumps(measured(Path(place)), indent=1) + "\n")
