"""A made, long-tailed detection problem: a store of predictions, its annotations, statistics and counts."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from logn.data.class_counts import ClassCounts
from logn.models.proposals import Proposals
from logn.predictions.store import Predictions, PredictionWriter, StoreHeader
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

COUNTS = np.array([900, 400, 200, 90, 60, 30, 12, 8, 4, 2])
GROUPS = "fffccccrrr"
NAMES = tuple(f"thing {number}" for number in range(len(COUNTS)))
SIDE, PROPOSALS = 200, 30


@dataclass(frozen=True)
class MadeSplit:
    """Where everything lies, and the parts that tests use most."""

    folder: Path
    moments: ClassMoments
    counts: ClassCounts

    @property
    def store(self):
        return Predictions(self.folder / "store")

    @property
    def annotations(self):
        return self.folder / "annotations.json"


def made_image(rng, activation):
    """Boxes, labels, and proposals whose logits lean to frequent classes; the background, if any, is last."""
    classes = len(COUNTS)
    number = rng.integers(2, 6)
    corner = rng.uniform(0, 140, (number, 2))
    boxes = np.hstack([corner, corner + rng.uniform(15, 60, (number, 2))]).round(1)
    labels = rng.integers(0, classes, number)
    source = rng.integers(0, number, PROPOSALS)
    proposals = (boxes[source] + rng.normal(0, 4, (PROPOSALS, 4))).clip(0, SIDE)
    proposals = np.sort(proposals.reshape(-1, 2, 2), axis=1).reshape(-1, 4) + np.array([0, 0, 1, 1])
    logits = rng.normal(-3, 1, (PROPOSALS, classes + (activation == "softmax")))
    logits[:, :classes] += 0.6 * np.log(COUNTS / COUNTS.mean())
    logits[np.arange(PROPOSALS), labels[source]] += rng.normal(3, 1.5, PROPOSALS)
    if activation == "softmax":
        logits[:, -1] += 3
    return boxes, labels, Proposals(proposals.astype(np.float32), logits.astype(np.float32), SIDE, SIDE)


def store_header(
    num_columns,
    *,
    background=None,
    activation="softmax",
    class_names=None,
    class_columns=None,
    objectness=False,
    source=None,
    **rest,
):
    """A header of a store from words about its head and about the rest."""
    known = {"activation": activation, "objectness": objectness, "source": source}
    return StoreHeader(Head.of_classes(class_names, num_columns, background, class_columns, **known), **rest)


def make_split(folder, *, activation="softmax", images=40, seed=0, dtype="float32"):
    rng = np.random.default_rng(seed)
    columns = len(COUNTS) + (activation == "softmax")
    background = -1 if activation == "softmax" else None
    header = StoreHeader(
        Head.of_classes(NAMES, columns, background=background, activation=activation),
        dtype=dtype,
        category_ids=tuple(range(1, len(COUNTS) + 1)),
    )
    moments = ClassMoments(Head(columns, background=background, activation=activation))
    listed, annotations = [], []
    with PredictionWriter(folder / "store", header) as writer:
        for image in range(1, images + 1):
            boxes, labels, proposals = made_image(rng, activation)
            writer.append(image, proposals)
            moments.update(proposals.logits)
            absent = np.setdiff1d(rng.choice(len(COUNTS), 4, replace=False), labels)
            entry = {"id": image, "width": SIDE, "height": SIDE, "neg_category_ids": (absent + 1).tolist()}
            listed.append(entry | {"not_exhaustive_category_ids": [int(labels[0]) + 1] if image % 5 == 0 else []})
            for (left, top, right, bottom), label in zip(boxes.tolist(), labels.tolist(), strict=True):
                annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1}
                annotation |= {"bbox": [left, top, right - left, bottom - top], "iscrowd": 0}
                annotation["area"] = (right - left) * (bottom - top)
                annotation["segmentation"] = [[left, top, right, top, right, bottom, left, bottom]]
                annotations.append(annotation)
    categories = [{"id": number + 1, "name": name, "frequency": GROUPS[number]} for number, name in enumerate(NAMES)]
    content = {"images": listed, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(content))
    moments.save(folder / "statistics.safetensors")
    return MadeSplit(folder, moments, ClassCounts(COUNTS, names=NAMES, num_images=2000))
