"""What is found at an equal number of detections, against plain loops over all detections; and its intervals."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.matching.bootstrap_draws import Draws
from logn.measure.compare import compare
from logn.measure.comparison import CompareSettings, Comparison
from logn.measure.detection.bootstrap import paired_interval
from logn.measure.detection.metrics import COUNTED_AT, count_name
from logn.measure.tables import write_comparison
from logn.methods.affine import ClassAffine
from logn.models.proposals import Proposals
from logn.predictions.decoder import DecodeSettings, decode
from logn.predictions.store import Predictions, PredictionWriter, StoreHeader
from logn.statistics.head import Head

CLASSES, FREQUENCY = 4, "rrcf"
METHODS = {"raised": ClassAffine([1.0, 2, 1, 1], [2.0, 0, 1, 0]), "lowered": ClassAffine([1.0] * 4, [-9.0, -8, -7, -9])}
DECODE = DecodeSettings(max_detections=9)


def made_problem(folder, seed, *, federated, images=14):
    """A store whose scores tie, images that do not stand in the order of their ids, and their annotations."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(50)[:images] + 1
    listed, annotations = [], []
    with PredictionWriter(folder, StoreHeader(Head(CLASSES, activation="sigmoid"), dtype="float32")) as writer:
        for image in ids.tolist():
            number = int(rng.integers(1, 6))
            corner = rng.integers(0, 4, (number, 2)) * 12.0
            boxes, labels = np.hstack([corner, corner + 20]), rng.integers(0, CLASSES - 2, number)
            labels[0] = 2 if image == ids[0] else labels[0]  # one object of this class in all
            source = rng.integers(0, number, 8)
            proposals = boxes[source] + rng.integers(-4, 5, (8, 4))
            logits = rng.integers(-4, 4, (8, CLASSES)) / 2.0
            logits[np.arange(8), labels[source]] += 1
            writer.append(image, Proposals(proposals.astype(np.float32), logits.astype(np.float32), 70, 70))
            entry = {"id": image, "width": 70, "height": 70}
            if federated:
                absent = np.setdiff1d(np.flatnonzero(rng.random(CLASSES) < 0.3), labels)
                entry |= {"neg_category_ids": (absent + 1).tolist()}
                entry |= {"not_exhaustive_category_ids": [int(labels[0]) + 1] if rng.random() < 0.5 else []}
            listed.append(entry)
            for index, (box, label) in enumerate(zip(boxes.tolist(), labels.tolist(), strict=True)):
                crowd = int(not federated and index > 0 and rng.random() < 0.3)
                annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1, "iscrowd": crowd}
                annotations.append(annotation | {"bbox": [*box[:2], 20.0, 20.0], "area": 400.0})
    categories = [{"id": c + 1, "name": str(c), "frequency": FREQUENCY[c]} for c in range(CLASSES)]
    return Predictions(folder), {"images": listed, "annotations": annotations, "categories": categories}


def overlap(box, other):
    low, high = np.maximum(box[:2], other[:2]), np.minimum(box[2:], other[2:])
    shared = np.prod(np.maximum(high - low, 0))
    return shared / (np.prod(box[2:] - box[:2]) + np.prod(other[2:] - other[:2]) - shared)


class Plain:
    """The definition in loops: every detection, ranked over all images, then matched one after the other."""

    def __init__(self, store, content):
        self.boxes = [entry for entry in content["annotations"] if not entry["iscrowd"]]
        self.crowds = [entry for entry in content["annotations"] if entry["iscrowd"]]
        self.not_exhaustive = {image["id"]: image.get("not_exhaustive_category_ids", []) for image in content["images"]}
        self.ids, self.store = store.image_ids.tolist(), store
        self.verified = {
            (image["id"], label)
            for image in content["images"]
            for label in range(CLASSES)
            if "neg_category_ids" not in image
            or label + 1 in image["neg_category_ids"]
            or any(box["image_id"] == image["id"] and box["category_id"] == label + 1 for box in self.boxes)
        }

    def ranked(self, method):
        found, rows = decode(self.store, method, DECODE), []
        columns = (getattr(found, name).tolist() for name in ("image_index", "labels", "scores", "boxes"))
        for position, (index, label, score, box) in enumerate(zip(*columns, strict=True)):
            image = self.ids[index]
            rows.append((-score, image, (image, label) not in self.verified, position, label, np.array(box)))
        return sorted(rows, key=lambda row: row[:4])

    def outcomes(self, ranked):
        """Image, class and outcome of each: whether it found an object, is a false alarm, or neither counts."""
        free, outcomes = dict(enumerate(self.boxes)), []
        for _, image, unverified, _, label, box in ranked:
            close = {
                number: overlap(box, np.add(entry["bbox"], [0, 0, *entry["bbox"][:2]]))
                for number, entry in free.items()
                if entry["image_id"] == image and entry["category_id"] == label + 1 and not unverified
            }
            best = max(close, key=lambda number: (close[number], number), default=None)
            if best is not None and close[best] >= 0.5:
                del free[best]
                outcomes.append((image, label, "right"))
            else:
                outcomes.append((image, label, "neither" if unverified or self.excused(image, label, box) else "wrong"))
        return outcomes

    def excused(self, image, label, box):
        """Whether a detection that found nothing is no false alarm."""
        inside = any(
            self.inside(box, crowd) >= 0.5
            for crowd in self.crowds
            if crowd["image_id"] == image and crowd["category_id"] == label + 1
        )
        return inside or label + 1 in self.not_exhaustive.get(image, [])

    @staticmethod
    def inside(box, crowd):
        other = np.add(crowd["bbox"], [0, 0, *crowd["bbox"][:2]])
        sides = np.maximum(np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2]), 0)
        return np.prod(sides) / np.prod(box[2:] - box[:2])

    def values(self, outcomes, weights=None):
        """Per class right, wrong and objects, where an image counts as often as it was drawn."""
        weights = weights or dict.fromkeys(self.ids, 1)
        table = np.zeros((3, CLASSES))
        for image, label, outcome in outcomes:
            if outcome != "neither":
                table[["right", "wrong"].index(outcome), label] += weights[image]
        for entry in self.boxes:
            table[2, entry["category_id"] - 1] += weights[entry["image_id"]]
        return table

    def first(self, outcomes, count, weights):
        """The first detections that make up a number, where an image counts as often as it was drawn."""
        kept, number = [], 0
        for outcome in outcomes:
            if number >= count:
                break
            kept.append(outcome)
            number += weights[outcome[0]]
        return kept


def named(tables, at):
    """The metrics of tables `(draws, 3, classes)` by name; each class varies as between samples of images."""
    right, wrong, objects = np.moveaxis(tables, 1, 0)
    with np.errstate(all="ignore"):
        means = {
            "recall": right / objects,
            "precision": right / (right + wrong),
            "F1": 2 * right / (right + wrong + objects),
        }
    means = {name: np.where(objects > 0, share, np.nan) for name, share in means.items()}
    return means, {"found": right, "false-alarms": wrong}


def averaged(means, sums, at):
    values = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a group without objects
        for group in ("", "r", "c", "f"):
            chosen = [c for c in range(CLASSES) if group in ("", FREQUENCY[c])]
            shown = means if not group else {"recall": means["recall"]}
            values |= {
                count_name(name, at, group): np.nanmean(share[:, chosen], axis=1) for name, share in shown.items()
            }
            values |= {count_name(name, at, group): number[:, chosen].sum(axis=1) for name, number in sums.items()}
    return values


def widened(means, plain):
    images = [len({box["image_id"] for box in plain.boxes if box["category_id"] == c + 1}) for c in range(CLASSES)]
    factor = np.array([np.sqrt(k / (k - 1)) if k > 1 else 1.0 for k in images])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        middle = {name: np.nanmean(share, axis=0) for name, share in means.items()}
    return {name: middle[name] + (share - middle[name]) * factor for name, share in means.items()}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), federated=st.booleans(), errors=st.booleans(), images=st.sampled_from([0, 3]))
def test_numbers_and_intervals_are_those_of_the_definition(tmp_path_factory, seed, federated, errors, images):
    store, content = made_problem(tmp_path_factory.mktemp("store"), seed, federated=federated)
    chosen = CompareSettings(decode=DECODE, num_bootstrap=20, errors=errors, report_images=images, at=0.3)
    found, plain = compare(store, content, METHODS, settings=chosen), Plain(store, content)
    ranked = {row.name: plain.ranked(METHODS.get(row.name)) for row in found.rows}
    outcomes = {name: plain.outcomes(rows) for name, rows in ranked.items()}
    drawn = [dict(zip(plain.ids, row, strict=True)) for row in Draws(len(plain.ids), 20).counts().tolist()]
    for at in (*COUNTED_AT, 0.3):
        above = [np.float32(-row[0]) > np.float32(at) for row in ranked["none"]]
        count, draws = sum(above), {}
        for row in found.rows:
            point, kept = row.recall[at], outcomes[row.name][:count]
            wanted = {name: value[0] for name, value in averaged(*named(plain.values(kept)[None], at), at).items()}
            assert point.detections == len(kept) == min(count, len(ranked[row.name]))
            assert (point.found, point.objects) == (wanted[count_name("found", at)], len(plain.boxes))
            assert point.values == pytest.approx(wanted, abs=1e-12, nan_ok=True)
            assert {name: row[name] for name in wanted} == point.values | {}
            more = sum(-other[0] > point.threshold for other in ranked[row.name])
            ties = [other[0] for other in ranked[row.name]][count - 1 : count + 1]
            assert more == len(kept) or (len(set(ties)) == 1 and point.threshold == -ties[0])
            tables = []
            for weights in drawn:
                number = sum(
                    weights[other[1]] for other, is_above in zip(ranked["none"], above, strict=True) if is_above
                )
                tables.append(plain.values(plain.first(outcomes[row.name], number, weights), weights))
            means, sums = named(np.array(tables), at)
            draws[row.name] = averaged(widened(means, plain), sums, at)
            for name in wanted:
                change = row.differences[name]
                expected = paired_interval(draws["none"][name], draws[row.name][name], change.difference)
                np.testing.assert_allclose([change.low, change.high], [expected.low, expected.high], atol=1e-9)


def test_the_uncorrected_model_keeps_its_threshold_and_recall_is_shown(softmax_split, tmp_path):
    split, methods = softmax_split, {"same": ClassAffine(np.ones(11), np.zeros(11)), "logn": "logn"}
    settings = CompareSettings(num_bootstrap=30)
    found = compare(split.store, split.annotations, methods, settings=settings, moments=split.moments)
    for row in found.rows[:2]:
        assert {at: point.threshold for at, point in row.recall.items()} == {at: at for at in COUNTED_AT}
        for at in COUNTED_AT:
            change = row.differences[count_name("recall", at)]
            assert (change.difference, change.low, change.high) == (0, 0, 0)
    assert found["none"].recall[0.05].recall > found["none"].recall[0.5].recall > 0
    found.save(tmp_path)
    point = found["logn"].recall[0.25]
    assert Comparison.load(tmp_path)["logn"].recall[0.25] == point
    assert point.detections == found["none"].recall[0.25].detections
    text = write_comparison(found, "markdown")
    assert "recall@n:0.25" in text.splitlines()[0]
    assert (
        f"none has above 0.25; thresholds that keep as many: none 0.25, same 0.25, logn {point.threshold:.3g}" in text
    )
    change = found["logn"].differences["recall@n:0.25"]
    assert f"{100 * point.recall:.1f} {100 * change.difference:+.1f} [{100 * change.low:.1f}" in text
