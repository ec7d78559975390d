"""Decode against naive loops, and in all ways that must not change the result."""

import multiprocessing
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.base import processes
from logn.base.arrays import softmax
from logn.base.boxes import box_iou
from logn.errors import InputError, LogNWarning
from logn.methods.affine import ClassAffine
from logn.models.proposals import Postprocessing, Proposals
from logn.predictions import decoder, nms
from logn.predictions.decoder import DecodeSettings, decode, decode_many
from logn.predictions.detections import Detections
from logn.predictions.image_decoder import sort_candidates
from logn.predictions.nms import Boxes, Suppression
from logn.predictions.scores import ImageLogits, ScoreFunction
from logn.predictions.store import Predictions, PredictionWriter, StoreHeader
from logn.statistics.head import Head

SEEDS = st.integers(0, 2**32 - 1)


def made_images(seed, header, *, images=3, rows=25, spreads=(2.0,)):
    """Boxes on a grid, and rounded logits: they make equal scores, whose order matters."""
    rng, result = np.random.default_rng(seed), []
    for image in range(images):
        shape = (rows, header.head.num_classes) if header.class_boxes else (rows,)
        corner = rng.integers(0, 12, (*shape, 2)) * 2.0
        boxes = np.concatenate([corner, corner + rng.integers(0, 10, (*shape, 2))], axis=-1).astype(np.float32)
        spread = spreads[image % len(spreads)]
        logits = np.round(rng.normal(0, spread, (rows, header.head.width)) * 4).astype(np.float32) / 4
        objectness = np.round(rng.normal(0, 2, rows) * 4) / 4 if header.head.objectness else None
        result.append(Proposals(boxes, logits, height=40, width=40, objectness=objectness))
    return result


def made_store(path, header, images):
    with PredictionWriter(path, header) as writer:
        for number, proposals in enumerate(images):
            writer.append(100 + number, proposals)
    return Predictions(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    header = StoreHeader(Head(5, background=-1, activation="softmax"))
    return made_store(tmp_path_factory.mktemp("store"), header, made_images(0, header, images=200, rows=20))


def assert_same(found, wanted, columns=("image_index", "labels", "scores", "boxes", "proposal")):
    for name in columns:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


def iou(left, right):
    width = min(left[2], right[2]) - max(left[0], right[0])
    height = min(left[3], right[3]) - max(left[1], right[1])
    intersection = max(width, 0) * max(height, 0)
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (left, right)) - intersection
    # torchvision divides in float32 and compares in float64.
    return float(np.float32(intersection) / np.float32(union)) if union else 0.0


def naive_decode(proposals, header, transform, chosen):
    """All candidates, full suppression per class, then the best, with Python's own sort."""
    scores = ScoreFunction(transform, header.head)(ImageLogits(proposals, Postprocessing()))
    assert scores.shape == (len(proposals.logits), header.head.num_classes)
    candidates = []
    for (proposal, label), score in np.ndenumerate(scores):
        box = proposals.boxes[proposal, label] if header.class_boxes else proposals.boxes[proposal]
        large = min(box[2] - box[0], box[3] - box[1]) >= chosen.min_box_size
        if score > chosen.score_threshold and large:
            candidates.append((-float(score), proposal, label, tuple(box.tolist())))
    kept = []
    for candidate in sorted(candidates):
        rivals = [other for other in kept if other[2] == candidate[2]]
        if all(iou(other[3], candidate[3]) <= chosen.nms_iou for other in rivals):
            kept.append(candidate)
    return kept[: chosen.max_detections]


HEADERS = [
    StoreHeader(Head(5, background=background, activation=activation), class_boxes=class_boxes)
    for background in (None, 0, -1)
    for activation in ("softmax", "sigmoid")
    for class_boxes in (False, True)
]


@settings(max_examples=60, deadline=None)
@given(
    header=st.sampled_from(HEADERS),
    seed=SEEDS,
    limit=st.sampled_from([None, 1, 3, 10, 40, 300]),
    threshold=st.sampled_from([-1.0, 0.0, 1e-4, 0.05, 0.3]),
    nms_iou=st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]),
    mapped=st.booleans(),
)
def test_equals_naive_decoding(tmp_path_factory, header, seed, limit, threshold, nms_iou, mapped):
    images = made_images(seed, header)
    chosen = DecodeSettings(score_threshold=threshold, nms_iou=nms_iou, max_detections=limit).resolved(header)
    rng = np.random.default_rng(seed)
    transform = ClassAffine(rng.choice([0.5, 1.0, 2.0], 5), rng.choice([-1.0, 0.0, 0.5], 5)) if mapped else None
    found = decode(made_store(tmp_path_factory.mktemp("store"), header, images), transform, chosen)
    for number, proposals in enumerate(images):
        here = found.take(found.image_index == number)
        columns = (column.tolist() for column in (-here.scores, here.proposal, here.labels, here.boxes))
        rows = [(*row[:3], tuple(row[3])) for row in zip(*columns, strict=True)]
        assert rows == naive_decode(proposals, header, transform, chosen)


@pytest.mark.parametrize(("activation", "columns"), [("sigmoid", 1), ("softmax", 2)])
def test_a_score_at_the_threshold_is_dropped(tmp_path, activation, columns):
    header = StoreHeader(Head(columns, activation=activation))
    image = Proposals(np.array([[0, 0, 9, 9]], np.float32), np.zeros((1, columns), np.float32), height=40, width=40)
    store = made_store(tmp_path, header, [image])
    for limit in (None, 10):
        for threshold, kept in ((0.5, 0), (np.nextafter(np.float32(0.5), np.float32(0)), columns)):
            chosen = DecodeSettings(score_threshold=float(threshold), max_detections=limit)
            assert len(decode(store, None, chosen)) == kept


@pytest.mark.parametrize("class_boxes", [False, True])
def test_limit_takes_the_leading_part_at_many_classes(tmp_path, class_boxes):
    """The early stop must give what full suppression gives, on images that need several levels."""
    header = StoreHeader(Head(201, background=-1, activation="softmax"), class_boxes=class_boxes)
    store = made_store(tmp_path, header, made_images(1, header, images=15, rows=60, spreads=(0.1, 1.0, 4.0, 0.5, 8.0)))
    everything = decode(store, None, DecodeSettings(max_detections=-1))
    for limit in (1, 20, 300):
        leading = [
            everything.take(everything.image_index == number).take(slice(0, limit)) for number in range(len(store))
        ]
        assert_same(decode(store, None, DecodeSettings(max_detections=limit)), Detections.concatenate(leading))


RANDOM = np.random.default_rng(5).normal(0, 1, (2, 5))
TRANSFORMS = [
    None,
    ClassAffine(np.ones(5), RANDOM[0]),  # shift only
    ClassAffine(np.exp(RANDOM[1] / 2), RANDOM[0]),
    ClassAffine(np.ones(5), np.linspace(-30, 30, 5)),  # too wide to share exponentials
    ClassAffine(np.full(5, 80.0), np.zeros(5)),  # exponentials would overflow
    np.tanh,
]


@pytest.mark.parametrize("header", HEADERS)
def test_many_methods_equal_each_alone_on_any_number_of_threads(tmp_path, header):
    store = made_store(tmp_path, header, made_images(3, header, images=40))
    for transform, found in zip(TRANSFORMS, decode_many(store, TRANSFORMS, threads=3), strict=True):
        assert_same(found, decode(store, transform, threads=1))
        assert len(found)


@pytest.mark.parametrize("number", range(len(TRANSFORMS)))
def test_maps_of_all_kinds_give_the_softmax_of_the_mapped_logits(tmp_path, number):
    header = StoreHeader(Head(5, background=0, activation="softmax"), dtype="float32")
    images, transform = made_images(4, header), TRANSFORMS[number]
    # Scores near the least number that float32 can hold have few digits.
    chosen = DecodeSettings(score_threshold=1e-30, max_detections=None)
    found = decode(made_store(tmp_path, header, images), transform, chosen)
    for index, proposals in enumerate(images):
        mapped = proposals.logits.astype(np.float64) if transform is None else transform(proposals.logits)
        here = found.take(found.image_index == index)
        np.testing.assert_allclose(here.scores, softmax(mapped)[here.proposal, here.labels + 1], rtol=2e-6)


@pytest.mark.parametrize("settings", [{}, {"multi_label": False}, {"nms": "class-agnostic"}])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_scores_that_underflow_are_dropped_in_any_company(tmp_path, activation, settings):
    """A score of 0 is no detection; what is left does not depend on threads, other methods or the images before."""
    header = StoreHeader(Head(5, background=-1, activation=activation))
    store = made_store(tmp_path, header, made_images(6, header, images=30))
    lowered = ClassAffine([1, 1, 1, 1, 1], [-250.0, -90.0, -95.0, -103.0, 0.0])
    chosen = DecodeSettings(max_detections=3, **settings)
    found = decode(store, lowered, chosen, threads=1)
    assert 0 < found.scores.min() < 1e-37
    assert 0 not in found.labels
    assert_same(found, decode_many(store, [None, lowered], chosen, threads=3)[1])
    alone = [decode(store.part(np.array([image])), lowered, chosen, threads=1) for image in range(len(store))]
    assert_same(found, Detections.concatenate(alone), ("labels", "scores", "boxes"))


def test_empty_images_and_stores(tmp_path):
    header = StoreHeader(Head(3, background=-1, activation="softmax"))
    empty = Proposals(np.zeros((0, 4)), np.zeros((0, 3)), height=5, width=5)
    some = made_store(tmp_path / "some", header, [empty, *made_images(0, header, images=1), empty])
    assert set(decode(some, ClassAffine([2.0, 1.0, 1.0], [0.0, 1.0, 0.0])).image_index.tolist()) == {1}
    assert len(decode(made_store(tmp_path / "none", header, []))) == 0


def test_transform_never_changes_the_store(tmp_path):
    header = StoreHeader(Head(3, activation="softmax"), dtype="float32")
    store = made_store(tmp_path, header, made_images(0, header, images=2))

    def destroy(logits):
        logits[:] = 0
        return logits

    destroyed, untouched = decode_many(store, [destroy, None])
    assert_same(untouched, decode(store))
    np.testing.assert_allclose(destroyed.scores, 1 / 3)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda store: DecodeSettings(max_detections=0), "max_detections"),
        (lambda store: DecodeSettings(nms_iou=1.5), "nms_iou"),
        (lambda store: DecodeSettings(nms="soft"), "nms"),
        (lambda store: Postprocessing(nms="soft"), "nms"),
        (lambda store: DecodeSettings(score_threshold=1.0), "score_threshold"),
        (lambda store: decode(store, ClassAffine.identity(4)), "4 columns"),
        (lambda store: decode(store, lambda logits: logits[:, :2]), r"\(20, 2\)"),
        (lambda store: decode_many(store, [None], processes=0), "processes"),
        (lambda store: decode_many(store, [None], processes=2, threads=2), "threads"),
    ],
)
def test_bad_arguments_are_refused(store, call, named):
    with pytest.raises(InputError, match=named):
        call(store)


def made_boxes(rng, count, crowd):
    corner = rng.uniform(0, 100 / crowd, (count, 2))
    return np.hstack([corner, corner + rng.uniform(10, 40, (count, 2))]).astype(np.float32)


def made_candidates(rng, proposals, classes, share, levels):
    """Some of all pairs; with few levels there are many equal scores."""
    flat = np.flatnonzero(rng.random(proposals * classes) < share)
    return flat, (rng.integers(1, levels + 1, len(flat)) / levels).astype(np.float32)


def suppression(boxes):
    return Suppression("class-wise", Boxes(Proposals(boxes, np.zeros((len(boxes), 1)), height=1, width=1), 99), 0.5)


def greedy(boxes, candidates):
    """Candidate by candidate, as the definition says."""
    overlaps, kept = box_iou(boxes[:, None], boxes) > np.float32(0.5), []
    for position, (proposal, label) in enumerate(zip(candidates.proposals, candidates.labels, strict=True)):
        earlier = [candidates.proposals[other] for other in kept if candidates.labels[other] == label]
        if not overlaps[proposal, earlier].any():
            kept.append(position)
    return np.array(kept, dtype=np.intp)


@given(
    seed=SEEDS,
    proposals=st.integers(0, 25),
    classes=st.sampled_from([1, 3, 65]),
    crowd=st.sampled_from([0.1, 1.0, 10.0]),
    share=st.sampled_from([0.0, 0.1, 0.9]),
    levels=st.sampled_from([1, 4, 10**6]),
    limit=st.sampled_from([1, 7, 10**4]),
)
@settings(max_examples=150, deadline=None)
def test_every_way_to_suppress_keeps_what_the_greedy_loop_keeps(seed, proposals, classes, crowd, share, levels, limit):
    rng = np.random.default_rng(seed)
    boxes = made_boxes(rng, proposals, crowd)
    flat, scores = made_candidates(rng, proposals, classes, share, levels)
    candidates = sort_candidates(flat, scores, classes)
    wanted = greedy(boxes, candidates)
    for way in (suppression(boxes), suppression(np.repeat(boxes[:, None], classes, axis=1))):
        np.testing.assert_array_equal(way.best(candidates.proposals, candidates.labels, limit), wanted[:limit])


@pytest.mark.parametrize("constant", ["_MANY_PROPOSALS", "_PAIRS_AT_ONCE"])
@pytest.mark.parametrize("value", [0, 10**9])
def test_the_choice_of_the_way_does_not_show(monkeypatch, constant, value):
    monkeypatch.setattr(nms, constant, value)
    rng = np.random.default_rng(0)
    boxes = made_boxes(rng, 40, 3.0)
    candidates = sort_candidates(*made_candidates(rng, 40, 5, 0.7, 20), 5)
    kept = suppression(boxes).best(candidates.proposals, candidates.labels, 10**4)
    np.testing.assert_array_equal(kept, greedy(boxes, candidates))


METHODS = [None, ClassAffine([2.0, 1.0, 0.5, 1.0, 1.0], [0.0, 1.0, 0.0, -2.0, 0.0])]


def test_two_processes_give_what_one_gives(store):
    part = store.part(np.arange(3, 190))  # a store of some images goes to the processes as it is
    steps = []
    together = decode_many(part, METHODS, processes=2, progress=steps.append)
    assert not multiprocessing.active_children()
    assert sum(steps) == len(part)
    for ours, wanted in zip(together, decode_many(part, METHODS, threads=1), strict=True):
        assert len(ours)
        assert_same(ours, wanted)


SCRIPT = """
import os, signal
from logn.predictions.decoder import decode_many
from logn.predictions.store import Predictions
store = Predictions({path!r})
"""


def test_a_script_needs_no_main_guard(store):
    script = f'{SCRIPT.format(path=str(store.path))}print("once", len(decode_many(store, [None], processes=2)[0]))'
    path = store.path / "script.py"
    path.write_text(script)
    expected = f"once {len(decode_many(store, [None], threads=1)[0])}\n"
    for command in ([sys.executable, str(path)], [sys.executable, "-c", script]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (expected, "")


def test_after_a_killed_process_the_other_images_are_decoded(store):
    def kill(_):
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.warns(LogNWarning, match="killed"):
        found = decode_many(store, METHODS, processes=2, progress=kill)
    for of_method, expected in zip(found, decode_many(store, METHODS, threads=1), strict=True):
        assert_same(of_method, expected)


def test_no_process_outlives_one_that_was_killed(store):
    """What they print to is closed when the last of them has ended: until then the call below does not come back."""
    kill = "decode_many(store, [None], processes=2, progress=lambda number: os.kill(os.getpid(), signal.SIGKILL))"
    command = [sys.executable, "-c", SCRIPT.format(path=str(store.path)) + kill]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=False).returncode == -9


def test_maps_of_the_caller_and_systems_without_processes_stay_in_this_one(store, monkeypatch):
    started = []

    def refuse(number, prepare):
        started.append(number)
        raise OSError("no semaphores here")

    monkeypatch.setattr(processes, "FreshPool", refuse)
    for method, tried in ((lambda logits: logits + 1, []), (None, [2])):
        assert_same(decode_many(store, [method], processes=2)[0], decode_many(store, [method], threads=1)[0])
        assert started == tried


def test_processes_are_started_where_there_is_enough_to_do(store, monkeypatch):
    started = []
    monkeypatch.setattr(processes, "started_processes", lambda stack, number, prepare: started.append(number))
    monkeypatch.setattr(decoder, "available_processors", lambda: 3)
    decode_many(store, METHODS)
    assert not started
    monkeypatch.setattr(decoder, "_ENOUGH_LOGITS", 1)
    decode_many(store, METHODS)
    assert started == [3]
