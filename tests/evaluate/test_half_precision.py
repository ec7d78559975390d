"""float16 logits: AP may move by less than 0.05 points."""

from __future__ import annotations

import numpy as np
import pytest

from logn.calibrators.affine import ClassAffine
from logn.evaluate.decode.decoder import decode_many
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.evaluate.detection.metrics import evaluate_detections
from logn.evaluate.store.store import PredictionStore, PredictionWriter, StoreHeader
from logn.logits.proposals import Proposals

CLASSES, IMAGES, ROWS = 30, 150, 60


def made_problem(rng: np.random.Generator):
    annotations, images = [], []
    for image in range(1, IMAGES + 1):
        count = int(rng.integers(2, 8))
        corner = rng.uniform(0, 300, (count, 2))
        objects = np.hstack([corner, corner + rng.uniform(30, 120, (count, 2))])
        labels = rng.integers(0, CLASSES, count)
        of_object = rng.integers(0, count, ROWS)
        boxes = (objects[of_object] + rng.normal(0, 8, (ROWS, 4))).astype(np.float32)
        logits = rng.normal(0, 1.5, (ROWS, CLASSES + 1))
        logits[np.arange(ROWS), labels[of_object]] += rng.normal(4, 2, ROWS)
        logits[:, -1] += 3
        images.append(Proposals(boxes, logits.astype(np.float32), height=450, width=450))
        for box, label in zip(objects.tolist(), labels.tolist(), strict=True):
            sides = [box[2] - box[0], box[3] - box[1]]
            entry = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1, "iscrowd": 0}
            annotations.append(entry | {"bbox": [*box[:2], *sides], "area": sides[0] * sides[1]})
    truth = {
        "images": [{"id": image, "width": 450, "height": 450} for image in range(1, IMAGES + 1)],
        "categories": [{"id": number + 1, "name": str(number)} for number in range(CLASSES)],
        "annotations": annotations,
    }
    return images, truth


@pytest.mark.parametrize("seed", range(2))
def test_ap_hardly_moves(tmp_path, seed):
    rng = np.random.default_rng(seed)
    images, content = made_problem(rng)
    truth = load_ground_truth(content, style="coco", num_classes=CLASSES)
    affine = ClassAffine.over_foreground(rng.uniform(0.7, 1.4, CLASSES), rng.normal(0, 1, CLASSES), -1, method="made")
    ap = {}
    for dtype in ("float16", "float32"):
        with PredictionWriter(tmp_path / dtype, StoreHeader(CLASSES + 1, background=-1, dtype=dtype)) as writer:
            for number, proposals in enumerate(images):
                writer.append(number + 1, proposals)
        found = decode_many(PredictionStore(tmp_path / dtype), [None, affine])
        ap[dtype] = np.array([100 * evaluate_detections(detections, truth)["AP"] for detections in found])
    assert (ap["float32"] > 10).all()
    assert not np.array_equal(ap["float16"], ap["float32"])  # the rounding is seen, but
    assert np.abs(ap["float16"] - ap["float32"]).max() < 0.05
