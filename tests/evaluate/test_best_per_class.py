"""The best of each class over all images: whatever is skipped on the way, they are those of a sort of everything."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.calibrators.affine import ClassAffine
from logn.evaluate.decode import decoder
from logn.evaluate.decode.decoder import DecodeSettings, Purpose, decode_for, decode_many
from logn.evaluate.decode.detections import Detections, Skipped
from logn.evaluate.decode.image_decoder import Decoded
from logn.evaluate.store.store import PredictionStore, PredictionWriter, StoreHeader
from logn.logits.proposals import Postprocessing, Proposals

COLUMNS = ("image_index", "labels", "scores", "boxes", "proposal")


def assert_same(found: Detections, wanted: Detections) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


def best_rows(everything: Detections, limit: int) -> np.ndarray:
    """Class by class with a stable sort, as the definition says."""
    rows = [np.empty(0, np.intp)]
    for label in np.unique(everything.labels):
        of_class = np.flatnonzero(everything.labels == label)
        rows.append(of_class[np.argsort(-everything.scores[of_class], kind="stable")][:limit])
    return np.sort(np.concatenate(rows))


def plain_best(everything: Detections, limit: int, looked_at: np.ndarray | None) -> Detections:
    """The best of each class; what is not looked at has used up places, and goes."""
    best = everything.take(best_rows(everything, limit))
    return best if looked_at is None else best.take(looked_at[best.image_index, best.labels])


def made_part(rng: np.random.Generator, image: int, size: int, classes: np.ndarray, levels: int) -> Detections:
    return Detections(
        image_index=np.full(size, image, np.int32),
        labels=rng.choice(classes, size),
        scores=-np.sort(-(rng.integers(1, levels + 1, size) / levels).astype(np.float32)),
        boxes=rng.random((size, 4), dtype=np.float32),
        proposal=rng.integers(0, 100, size).astype(np.int32),
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    number=st.sampled_from([4, 5, 70_000]),
    limit=st.integers(1, 12),
    levels=st.sampled_from([1, 3, 40, 10**6]),
    sizes=st.lists(st.integers(0, 60), max_size=6),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    often=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_the_best_of_each_class_are_those_of_a_sort_of_all(seed, number, limit, levels, sizes, share, often):
    rng = np.random.default_rng(seed)
    classes = np.array([0, 1, 2, number - 1], np.int32)
    evaluated = np.zeros((len(sizes), number), bool)
    evaluated[:, classes] = rng.random((len(sizes), 4)) < share
    buffer, parts = decoder._Buffer(number, limit), []
    for image, size in enumerate(sizes):
        part = made_part(rng, image, size, classes, levels)
        parts.append(part)
        chosen = evaluated[part.image_index, part.labels]
        others = part.take(~chosen)
        buffer.add(Decoded(part.take(chosen), Skipped(others.image_index, others.labels, others.scores)))
        if often:
            buffer._trim(limit)
    whole = Detections.concatenate(parts)
    assert_same(buffer.best().detections, plain_best(whole, limit, evaluated))
    for label in classes:
        scores = -np.sort(-whole.scores[whole.labels == label])
        assert buffer.floor[label] == (scores[limit - 1] if len(scores) >= limit else 0)


def made_store(path, header: StoreHeader, seed: int, images: int = 24, rows: int = 25) -> PredictionStore:
    rng = np.random.default_rng(seed)
    with PredictionWriter(path, header) as writer:
        for image in range(images):
            shape = (rows, header.num_classes) if header.class_boxes else (rows,)
            corner = rng.integers(0, 12, (*shape, 2)) * 2.0
            boxes = np.concatenate([corner, corner + rng.integers(0, 10, (*shape, 2))], axis=-1)
            # Rounded logits make equal scores, whose order matters; the images differ in how sure the model is.
            logits = np.round(rng.normal(0, 1 + image % 3, (rows, header.num_columns)) * 4) / 4
            objectness = np.round(rng.normal(0, 2, rows) * 4) / 4 if header.objectness else None
            writer.append(100 + image, Proposals(boxes, logits, height=40, width=40, objectness=objectness))
    return PredictionStore(path)


HEADERS = {
    "softmax": StoreHeader(num_columns=6, background=-1),
    "sigmoid": StoreHeader(num_columns=5, activation="sigmoid"),
    "a box per class": StoreHeader(num_columns=6, background=0, class_boxes=True),
    "objectness": StoreHeader(num_columns=5, activation="sigmoid", objectness=True),
    "softmax with objectness": StoreHeader(num_columns=6, background=-1, objectness=True),
    "late objectness": StoreHeader(
        num_columns=5, activation="sigmoid", objectness=True, postprocessing=Postprocessing(objectness="late factor")
    ),
    "a power": StoreHeader(num_columns=5, activation="sigmoid", postprocessing=Postprocessing(score_power=0.5)),
    "best class": StoreHeader(num_columns=6, background=-1, postprocessing=Postprocessing(multi_label=False)),
    "some columns": StoreHeader(num_columns=6, background=-1, class_columns=(4, 0, 2)),
    "best class of all columns": StoreHeader(
        num_columns=6, background=-1, class_columns=(4, 0, 2), postprocessing=Postprocessing(multi_label=False)
    ),
    "across classes": StoreHeader(num_columns=6, background=-1, postprocessing=Postprocessing(nms="class-agnostic")),
    "no suppression": StoreHeader(num_columns=6, background=-1, postprocessing=Postprocessing(nms="none")),
}


@pytest.mark.parametrize(
    ("name", "limit", "cap"),
    [*((name, 9, None) for name in HEADERS), ("softmax", 1, None), ("softmax", 60, None), ("softmax", 9, 12)],
)
def test_skipping_what_cannot_be_among_the_best_changes_nothing(tmp_path, name, limit, cap, monkeypatch):
    """One pass for two purposes, floors raised after every image, against everything decoded and sorted."""
    header = HEADERS[name]
    store = made_store(tmp_path, header, seed=len(name))
    columns = np.arange(header.num_columns)
    methods = [None, ClassAffine(1.0 + 0.1 * columns, -0.3 * columns), ClassAffine(columns * 0 + 1.0, 0.5 * columns)]
    evaluated = np.random.default_rng(0).random((len(store), header.num_classes)) < 0.3
    capped = DecodeSettings(max_detections=9, score_threshold=0.01)
    ranked = DecodeSettings(max_detections=cap, score_threshold=1e-7, max_per_class=limit)
    everything = decode_many(store, methods, DecodeSettings(max_detections=cap, score_threshold=1e-7), threads=1)
    monkeypatch.setattr(decoder, "_IMAGES_AT_ONCE", 1)
    monkeypatch.setattr(decoder, "_FEW", 0)
    monkeypatch.setattr(decoder, "_GROWTH", 1)
    purposes = [Purpose(capped, evaluated), Purpose(ranked, evaluated), Purpose(ranked)]
    found = decode_for(store, methods, purposes, threads=1)
    for method, whole in enumerate(everything):
        assert_same(found[1][method].detections, plain_best(whole, limit, evaluated))
        assert_same(found[2][method].detections, plain_best(whole, limit, None))
    for decoded, every in zip(found[0], decode_many(store, methods, capped), strict=True):
        chosen = evaluated[every.image_index, every.labels]
        assert_same(decoded.detections, every.take(chosen))
        for column in ("image_index", "labels", "scores"):
            np.testing.assert_array_equal(getattr(decoded.skipped, column), getattr(every.take(~chosen), column))


def test_floors_spare_the_work(tmp_path, monkeypatch):
    """With floors an image gives far fewer candidates to suppression than without."""
    store = made_store(tmp_path, HEADERS["softmax"], seed=1, images=60)
    sizes: list[int] = []
    add = decoder._Buffer.add

    def watch(self, part):
        sizes.append(len(part.detections))
        add(self, part)

    monkeypatch.setattr(decoder._Buffer, "add", watch)
    monkeypatch.setattr(decoder, "_FEW", 0)
    monkeypatch.setattr(decoder, "_IMAGES_AT_ONCE", 1)
    decode_many(store, [None], DecodeSettings(max_detections=None, score_threshold=1e-7, max_per_class=10), threads=1)
    assert sum(sizes[-20:]) < 0.2 * sum(sizes[:3]) * 20 / 3
