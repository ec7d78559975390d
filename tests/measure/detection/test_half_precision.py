"""float16 logits: AP may move by less than 0.05 points."""

import numpy as np
import pytest
from tests.made.split import make_split

from logn.matching.ground_truth import load_ground_truth
from logn.measure.detection.metrics import evaluate_detections
from logn.methods.affine import ClassAffine
from logn.predictions.decoder import decode_many
from logn.statistics.head import Head


@pytest.mark.parametrize("seed", range(2))
def test_ap_hardly_moves(tmp_path, seed):
    rng = np.random.default_rng(seed)
    affine = ClassAffine.over_foreground(
        rng.uniform(0.7, 1.4, 10), rng.normal(0, 1, 10), Head(background=-1), method="made"
    )
    ap = {}
    for dtype in ("float16", "float32"):
        (tmp_path / dtype).mkdir()
        split = make_split(tmp_path / dtype, images=300, seed=seed, dtype=dtype)
        truth = load_ground_truth(split.annotations, style="coco")
        found = decode_many(split.store, [None, affine])
        ap[dtype] = np.array([100 * evaluate_detections(detections, truth)["AP"] for detections in found])
    assert (ap["float32"] > 10).all()
    assert not np.array_equal(ap["float16"], ap["float32"])  # the rounding is seen, but
    assert np.abs(ap["float16"] - ap["float32"]).max() < 0.05
