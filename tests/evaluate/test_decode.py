"""Decode against a naive suppression, and in all ways that must not change the result."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.calibrators.affine import ClassAffine
from logn.errors import InputError
from logn.evaluate.decode import decoder
from logn.evaluate.decode.decoder import DecodeSettings, decode, decode_many
from logn.evaluate.decode.detections import Detections
from logn.evaluate.decode.scores import ImageLogits, ScoreFunction, Scratch
from logn.evaluate.store.store import PredictionStore, PredictionWriter, StoreHeader
from logn.logits.arrays import foreground_columns, softmax
from logn.logits.proposals import Proposals

COLUMNS = ("image_index", "labels", "scores", "boxes", "proposal")


def made_images(
    seed: int, header: StoreHeader, *, images: int = 3, rows: int = 25, spread: float = 2.0
) -> list[Proposals]:
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(images):
        shape = (rows, header.num_classes) if header.class_boxes else (rows,)
        corner = rng.integers(0, 12, (*shape, 2)) * 2.0
        boxes = np.concatenate([corner, corner + rng.integers(0, 10, (*shape, 2))], axis=-1)
        # Rounded logits make equal scores, whose order matters.
        logits = np.round(rng.normal(0, spread, (rows, header.num_columns)) * 4) / 4
        result.append(Proposals(boxes.astype(np.float32), logits.astype(np.float32), height=40, width=40))
    return result


def made_store(path, header: StoreHeader, images: list[Proposals]) -> PredictionStore:
    with PredictionWriter(path, header) as writer:
        for number, proposals in enumerate(images):
            writer.append(100 + number, proposals)
    return PredictionStore(path)


def iou(left, right) -> float:
    width = min(left[2], right[2]) - max(left[0], right[0])
    height = min(left[3], right[3]) - max(left[1], right[1])
    intersection = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (left, right)]
    union = sum(areas) - intersection
    # torchvision divides in float32 and compares in float64.
    return float(np.float32(intersection) / np.float32(union)) if union else 0.0


def naive_decode(proposals: Proposals, header: StoreHeader, transform, chosen: DecodeSettings) -> list[tuple]:
    """All candidates, full suppression per class, then the best, with Python's own sort."""
    foreground = foreground_columns(header.num_columns, header.background)
    function = ScoreFunction(transform, header.num_columns, header.activation, foreground)
    flat, scores = function(ImageLogits(proposals.logits, Scratch())).above(-1.0)
    assert len(flat) == len(proposals.logits) * header.num_classes
    candidates = []
    for place, score in zip(flat.tolist(), scores.tolist(), strict=True):
        proposal, label = divmod(place, header.num_classes)
        box = proposals.boxes[proposal, label] if header.class_boxes else proposals.boxes[proposal]
        large = min(box[2] - box[0], box[3] - box[1]) >= chosen.min_box_size
        if score > chosen.score_threshold and large:
            candidates.append((-score, proposal, label, tuple(box.tolist())))
    kept: list[tuple] = []
    for candidate in sorted(candidates):
        rivals = [other for other in kept if other[2] == candidate[2]]
        if all(iou(other[3], candidate[3]) <= chosen.nms_iou for other in rivals):
            kept.append(candidate)
    return kept[: chosen.max_detections]


def as_tuples(found: Detections) -> list[tuple]:
    columns = (-found.scores, found.proposal, found.labels, found.boxes)
    return [(*row[:3], tuple(row[3])) for row in zip(*(column.tolist() for column in columns), strict=True)]


def assert_same(left: Detections, right: Detections) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


HEADERS = [
    StoreHeader(num_columns=5, background=background, activation=activation, class_boxes=class_boxes)
    for background in (None, 0, -1)
    for activation in ("softmax", "sigmoid")
    for class_boxes in (False, True)
]


@settings(max_examples=60, deadline=None)
@given(
    header=st.sampled_from(HEADERS),
    seed=st.integers(0, 10**6),
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
        expected = naive_decode(proposals, header, transform, chosen)
        assert as_tuples(found.of_image(number)) == expected


@pytest.mark.parametrize(("activation", "columns"), [("sigmoid", 1), ("softmax", 2)])
def test_a_score_at_the_threshold_is_dropped(tmp_path, activation, columns):
    header = StoreHeader(num_columns=columns, activation=activation)
    image = Proposals(np.array([[0, 0, 9, 9]], np.float32), np.zeros((1, columns), np.float32), height=40, width=40)
    store = made_store(tmp_path, header, [image])
    for limit in (None, 10):
        for threshold, kept in ((0.5, 0), (np.nextafter(np.float32(0.5), np.float32(0)), columns)):
            chosen = DecodeSettings(score_threshold=float(threshold), max_detections=limit)
            assert len(decode(store, None, chosen)) == kept


@pytest.mark.parametrize("class_boxes", [False, True])
def test_limit_takes_the_leading_part_at_many_classes(tmp_path, class_boxes):
    """The early stop must give what full suppression gives, on images that need several levels."""
    header = StoreHeader(num_columns=201, background=-1, class_boxes=class_boxes)
    images = [
        image
        for spread in (0.1, 1.0, 4.0, 0.5, 8.0)
        for image in made_images(int(spread * 10), header, images=3, rows=60, spread=spread)
    ]
    store = made_store(tmp_path, header, images)
    everything = decode(store, None, DecodeSettings(max_detections=-1))
    for limit in (1, 20, 300):
        some = decode(store, None, DecodeSettings(max_detections=limit))
        leading = [everything.of_image(number).take(slice(0, limit)) for number in range(len(store))]
        assert_same(some, Detections.concatenate(leading))


def made_transforms(columns: int) -> list:
    rng = np.random.default_rng(5)
    return [
        None,
        ClassAffine(np.ones(columns), rng.normal(0, 1, columns)),  # shift only
        ClassAffine(rng.uniform(0.5, 2, columns), rng.normal(0, 1, columns)),
        ClassAffine(np.ones(columns), np.linspace(-30, 30, columns)),  # too wide to share exponentials
        ClassAffine(np.full(columns, 80.0), np.zeros(columns)),  # exponentials would overflow
        lambda logits: np.tanh(logits),
    ]


@pytest.mark.parametrize("header", HEADERS)
def test_many_methods_equal_each_alone_on_any_number_of_threads(tmp_path, header):
    store = made_store(tmp_path, header, made_images(3, header, images=40))
    transforms = made_transforms(5)
    together = decode_many(store, transforms, threads=3)
    for transform, found in zip(transforms, together, strict=True):
        assert_same(found, decode(store, transform, threads=1))
        assert len(found)


@pytest.mark.parametrize("number", range(len(made_transforms(5))))
def test_maps_of_all_kinds_give_the_softmax_of_the_mapped_logits(tmp_path, number):
    header = StoreHeader(num_columns=5, background=0, dtype="float32")
    images = made_images(4, header)
    transform = made_transforms(5)[number]
    # Scores near the least number that float32 can hold have few digits.
    chosen = DecodeSettings(score_threshold=1e-30, max_detections=None)
    found = decode(made_store(tmp_path, header, images), transform, chosen)
    for index, proposals in enumerate(images):
        mapped = proposals.logits.astype(np.float64) if transform is None else transform(proposals.logits)
        here = found.of_image(index)
        expected = softmax(mapped)[here.proposal, here.labels + 1]
        np.testing.assert_allclose(here.scores, expected, rtol=2e-6)


@pytest.mark.parametrize("settings", [{}, {"multi_label": False}, {"nms": "class-agnostic"}])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_scores_that_underflow_are_dropped_in_any_company(tmp_path, activation, settings):
    """A score of 0 is no detection; what is left does not depend on threads, other methods or the images before."""
    header = StoreHeader(num_columns=5, background=-1, activation=activation)
    images = made_images(6, header, images=30)
    store = made_store(tmp_path, header, images)
    lowered = ClassAffine([1, 1, 1, 1, 1], [-250.0, -90.0, -95.0, -103.0, 0.0])
    chosen = DecodeSettings(max_detections=3, **settings)
    found = decode(store, lowered, chosen, threads=1)
    assert 0 < found.scores.min() < 1e-37
    assert 0 not in found.labels
    assert_same(found, decode_many(store, [None, lowered], chosen, threads=3)[1])
    alone = [decode(store.part(np.array([place])), lowered, chosen, threads=1) for place in range(len(store))]
    for name in ("labels", "scores", "boxes"):
        np.testing.assert_array_equal(getattr(found, name), np.concatenate([getattr(one, name) for one in alone]))


@pytest.mark.parametrize("limit", [1, 7, 50, 10_000])
def test_best_per_class_over_all_images(tmp_path, limit, monkeypatch):
    """The streamed limit per class equals a stable sort of everything, wherever it happens to cut."""
    header = HEADERS[0]
    store = made_store(tmp_path, header, made_images(6, header, images=60))
    everything = decode(store, None, DecodeSettings(max_detections=None))
    expected = []
    for label in range(header.num_classes):
        rows = np.flatnonzero(everything.labels == label)
        expected.append(rows[np.argsort(-everything.scores[rows], kind="stable")][:limit])
    wanted = everything.take(np.sort(np.concatenate(expected)))
    chosen = DecodeSettings(max_detections=None, max_per_class=limit)
    assert_same(decode(store, None, chosen), wanted)
    # Floors are raised, and what is below them goes, after every few images.
    monkeypatch.setattr(decoder, "_FEW", 0)
    monkeypatch.setattr(decoder, "_GROWTH", 1)
    assert_same(decode(store, None, chosen), wanted)


def test_empty_images_and_stores(tmp_path):
    header = StoreHeader(num_columns=3, background=-1)
    empty = Proposals(np.zeros((0, 4)), np.zeros((0, 3)), height=5, width=5)
    store = made_store(tmp_path, header, [empty, *made_images(0, header, images=1), empty])
    found = decode(store, ClassAffine([2.0, 1.0, 1.0], [0.0, 1.0, 0.0]))
    assert set(found.image_index.tolist()) == {1}
    with PredictionWriter(tmp_path / "nothing", header):
        pass
    assert len(decode(PredictionStore(tmp_path / "nothing"))) == 0


def test_transform_never_changes_the_store(tmp_path):
    header = StoreHeader(num_columns=3, dtype="float32")
    store = made_store(tmp_path, header, made_images(0, header, images=2))

    def destroy(logits):
        logits[:] = 0
        return logits

    destroyed, untouched = decode_many(store, [destroy, None])
    assert_same(untouched, decode(store))
    np.testing.assert_allclose(destroyed.scores, 1 / 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_detections": 0}, "Expected `max_detections` to be at least 1"),
        ({"max_per_class": 0}, "Expected `max_per_class` to be at least 1"),
        ({"nms_iou": 1.5}, "Expected `nms_iou`"),
        ({"score_threshold": 1.0}, "Expected `score_threshold`"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        DecodeSettings(**arguments)


def test_maps_of_other_models_are_refused(tmp_path):
    header = StoreHeader(num_columns=3)
    store = made_store(tmp_path, header, made_images(0, header, images=1))
    with pytest.raises(InputError, match="to cover the 3 columns of the predictions, but it covers 4"):
        decode(store, ClassAffine.identity(4))
    with pytest.raises(InputError, match="to keep the shape"):
        decode(store, lambda logits: logits[:, :2])
