"""Methods that are fitted to labels, in comparisons: the labels that are measured on are never seen before."""

import json

import numpy as np
import pytest

import logn
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.comparison.sweep import first_half
from logn.evaluate.detection.assignment import labelled_proposals
from logn.evaluate.detection.task import read_truth

SETTINGS = CompareSettings(num_bootstrap=0, split=True)
METHODS = ["offsets:base=none", "vector:base=none"]


def maps_of(found):
    return {row.name: row.transform for row in found.rows}


@pytest.mark.parametrize("kind", ["softmax_split", "sigmoid_split"])
def test_detectors_fit_to_one_half_and_labels_of_the_other_change_nothing(kind, request):
    split = request.getfixturevalue(kind)
    before = maps_of(logn.compare(split.store, split.annotations, METHODS, settings=SETTINGS))
    content = json.loads(split.annotations.read_text())
    measured = ~first_half(split.store.image_ids)
    ids = set(split.store.image_ids[measured].tolist())
    for entry in content["annotations"]:
        if entry["image_id"] in ids:
            entry["category_id"] = entry["category_id"] % 10 + 1
    after = maps_of(logn.compare(split.store, content, METHODS, settings=SETTINGS))
    for name in METHODS:
        assert before[name] == after[name]
    for entry in content["annotations"]:
        if entry["image_id"] not in ids:
            entry["category_id"] = entry["category_id"] % 10 + 1
    assert maps_of(logn.compare(split.store, content, METHODS, settings=SETTINGS)) != before


def test_proposals_get_the_column_of_their_box(softmax_split):
    store = softmax_split.store
    truth = read_truth(store, softmax_split.annotations, SETTINGS, masks=False)
    images = np.arange(len(store)) < 3
    rows = labelled_proposals(store, truth, images)
    assert np.unique(rows.units).tolist() == [0, 1, 2]
    np.testing.assert_array_equal(rows.logits[:30], store[0].logits)
    boxes = truth.boxes[truth.image_index == 0]
    corners = np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]])
    for box, label in zip(store[0].boxes, rows.labels[:30], strict=True):  # one by one, by its definition
        low, high = np.maximum(box[:2], corners[:, :2]), np.minimum(box[2:], corners[:, 2:])
        shared = np.maximum(high - low, 0).prod(axis=1)
        overlap = shared / ((box[2:] - box[:2]).prod() + boxes[:, 2:].prod(axis=1) - shared)
        best = overlap.argmax()
        assert label == (truth.labels[truth.image_index == 0][best] if overlap[best] >= 0.5 else 10)


def rows(seed, number=600):
    rng = np.random.default_rng(seed)
    labels = rng.choice(4, size=number, p=[0.5, 0.3, 0.15, 0.05])
    return (2 * np.eye(4)[labels] + rng.normal(size=(number, 4)) + [2.0, 1.0, 0.0, -1.0]), labels


def test_classifiers_fit_to_one_half_or_to_dev():
    logits, labels = rows(0)
    options = {"settings": SETTINGS, "counts": [50, 30, 15, 5], "train_logits": rows(2)[0]}
    before = logn.compare(logits, labels, METHODS, **options)
    measured = ~first_half(np.arange(len(labels)))
    turned = np.where(measured, (labels + 1) % 4, labels)
    after = logn.compare(logits, turned, METHODS, **options)
    for name in METHODS:
        assert maps_of(before)[name] == maps_of(after)[name]
    balanced = {row.name: row["balanced"] for row in before.rows}
    assert balanced["offsets:base=none"] > balanced["none"] + 0.05
    dev = rows(1)
    by_dev = logn.compare(logits, labels, ["offsets:base=none"], dev=dev, settings=CompareSettings(num_bootstrap=0))
    assert maps_of(by_dev)["offsets:base=none"] == logn.offsets(logn.LabelledRows(*dev))


def test_without_labels_of_their_own_they_are_refused(softmax_split):
    with pytest.raises(logn.InputError, match=r"`split` \(`--split`\), or labelled rows of their own, for the method"):
        logn.compare(*rows(0), ["offsets"], settings=CompareSettings(num_bootstrap=0))
    with pytest.raises(logn.InputError, match="must not be seen before"):
        logn.compare(softmax_split.store, softmax_split.annotations, ["vector"])


def test_a_target_reaches_all_methods_that_can_aim(softmax_split):
    mix = logn.ClassShares(np.arange(1.0, 11.0), tuple(f"thing {number}" for number in reversed(range(10))))
    settings = CompareSettings(num_bootstrap=0)
    found = maps_of(
        logn.compare(
            softmax_split.store,
            softmax_split.annotations,
            ["loga", "norcal:target=uniform"],
            settings=settings,
            counts=softmax_split.counts,
            target=mix,
        )
    )
    counts = softmax_split.counts.instance_counts
    assert found["loga"] == logn.logit_adjustment(counts, background=-1, target=np.arange(10.0, 0.0, -1.0))
    assert found["norcal:target=uniform"] == logn.norcal(counts, background=-1)
