"""Objectness, classes that are some of the columns, and the settings of other frameworks, against a plain decoder."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made.split import store_header

from logn import ClassAffine, InputError, Proposals
from logn.base.arrays import sigmoid, softmax
from logn.measure.fitted_methods import fit_for_store
from logn.models.proposals import Postprocessing
from logn.predictions import nms as suppression
from logn.predictions.decoder import DecodeSettings, decode
from logn.predictions.store import Predictions, PredictionWriter, StoreHeader
from logn.statistics.head import Head


def proposals_of(seed, rows=30, columns=6, *, objectness=True, class_boxes=0):
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 40, (rows, *([class_boxes] if class_boxes else []), 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 40, corner.shape)], axis=-1).astype(np.float32)
    logits = rng.normal(-1, 2, (rows, columns)).astype(np.float32)
    found = rng.normal(0, 3, rows).astype(np.float32) if objectness else None
    return Proposals(boxes, logits, height=80, width=80, objectness=found)


def stored(folder, images, **header):
    first = images[0]
    header = store_header(
        first.num_columns,
        dtype="float32",
        class_boxes=first.boxes.ndim == 3,
        objectness=first.objectness is not None,
        **header,
    )
    with PredictionWriter(folder, header) as writer:
        for image_id, proposals in enumerate(images):
            writer.append(image_id, proposals)
    return Predictions(folder)


def iou(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(areas) - shared)


def plain_decode(proposals, header, settings, affine=None):
    """The definition, candidate by candidate: score, best class, threshold, greedy suppression, limit."""
    logits = proposals.logits.astype(np.float64)
    if affine is not None:
        logits = logits * affine.scale + affine.shift
    kind = header.postprocessing.objectness if header.postprocessing else "factor"
    if proposals.objectness is not None and kind == "added":
        logits = logits + proposals.objectness.astype(np.float64)[:, None]
    scores = softmax(logits) if header.head.activation == "softmax" else sigmoid(logits)
    passed = np.ones_like(scores, bool)
    if proposals.objectness is not None and kind != "added":
        if kind == "late factor":
            passed = scores > settings.score_threshold
            settings = replace(settings, score_threshold=0.0)
        scores = scores * sigmoid(proposals.objectness)[:, None]
    scores = passed * scores ** (header.postprocessing.score_power if header.postprocessing else 1.0)
    if settings.multi_label is False:
        foreground = np.delete(
            np.arange(header.head.width), [] if header.head.background is None else header.head.background
        )
        best = foreground[scores[:, foreground].argmax(axis=1)]
        scores = np.where(np.arange(header.head.width) == best[:, None], scores, 0.0)
    candidates = [
        (scores[row, column], row, label)
        for row in range(len(logits))
        for label, column in enumerate(header.head.foreground)
        if scores[row, column] > settings.score_threshold
    ]
    kept = []
    for score, row, label in sorted(candidates, key=lambda found: (-found[0], found[1], found[2])):
        box = proposals.boxes[row] if proposals.boxes.ndim == 2 else proposals.boxes[row, label]
        rivals = [other for _, _, name, other in kept if settings.nms == "class-agnostic" or name == label]
        if settings.nms == "none" or all(iou(box.astype(float), other) <= settings.nms_iou for other in rivals):
            kept.append((score, row, label, box.astype(float)))
    return [found[:3] for found in kept][: settings.max_detections]


def assert_same(found, expected):
    assert [(p, label) for p, label in zip(found.proposal.tolist(), found.labels.tolist(), strict=True)] == [
        (row, label) for _, row, label in expected
    ]
    np.testing.assert_allclose(found.scores, [score for score, _, _ in expected], rtol=2e-5)


@given(
    seed=st.integers(0, 10_000),
    activation=st.sampled_from(["softmax", "sigmoid"]),
    background=st.sampled_from([None, 0, -1]),
    objectness=st.booleans(),
    chosen=st.booleans(),
    corrected=st.booleans(),
    power=st.sampled_from([1.0, 0.5]),
    kind=st.sampled_from(("factor", "late factor", "added")),
    settings=st.builds(
        DecodeSettings,
        nms=st.sampled_from(["class-wise", "class-agnostic", "none"]),
        nms_iou=st.sampled_from([0.3, 0.7]),
        multi_label=st.booleans(),
        score_threshold=st.sampled_from([0.0, 1e-4, 0.05]),
        max_detections=st.sampled_from([-1, 5, 40]),
    ),
)
def test_decoding_is_what_its_settings_say(
    tmp_path_factory, seed, activation, background, objectness, chosen, corrected, power, kind, settings
):
    images = [proposals_of(seed, objectness=objectness), proposals_of(seed + 1, objectness=objectness)]
    store = stored(
        tmp_path_factory.mktemp("store"),
        images,
        activation=activation,
        background=background,
        class_columns=(1, 3, 4) if chosen else None,
        postprocessing=Postprocessing(score_power=power, objectness=kind),
    )
    rng = np.random.default_rng(seed)
    affine = (
        ClassAffine(rng.uniform(0.5, 2, 6), rng.normal(size=6), head=Head(background=background)) if corrected else None
    )
    found = decode(store, affine, settings, threads=1)
    for index, proposals in enumerate(images):
        assert_same(found.take(found.image_index == index), plain_decode(proposals, store.header, settings, affine))


@pytest.mark.parametrize("kind", ["class-wise", "class-agnostic"])
@pytest.mark.parametrize("limit", [3, 40, None])
def test_very_many_proposals_are_suppressed_alike(monkeypatch, tmp_path, kind, limit):
    """Where not all pairs of boxes are compared, but those of candidates."""
    store = stored(tmp_path, [proposals_of(7, rows=400)], activation="sigmoid")
    settings = DecodeSettings(nms=kind, max_detections=limit)
    expected = decode(store, settings=settings)
    monkeypatch.setattr(suppression, "_MANY_PROPOSALS", 10)
    monkeypatch.setattr(suppression, "_BLOCK", 16)
    found = decode(store, settings=settings)
    for name in ("proposal", "labels", "scores"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("kind", ["class-wise", "class-agnostic", "none"])
def test_boxes_per_class_under_each_kind(tmp_path, kind):
    images = [proposals_of(3, class_boxes=6)]
    store = stored(tmp_path, images, activation="sigmoid")
    settings = DecodeSettings(nms=kind, nms_iou=0.4, multi_label=True)
    assert_same(decode(store, settings=settings), plain_decode(images[0], store.header, settings))


def test_no_objectness_is_no_detection(tmp_path):
    proposals = Proposals(
        np.array([[0, 0, 9, 9], [20, 20, 30, 30]]), np.full((2, 2), 200.0), 40, 40, objectness=np.array([-300.0, 300])
    )
    for activation in ("softmax", "sigmoid"):
        store = stored(tmp_path / activation, [proposals], activation=activation)
        assert decode(store).proposal.tolist() == [1, 1]


def test_a_store_says_how_its_model_is_decoded(tmp_path):
    framework = Postprocessing(
        nms="class-agnostic", nms_iou=0.3, multi_label=False, score_threshold=0.2, max_detections=3, min_box_size=0
    )
    store = stored(tmp_path, [proposals_of(1)], activation="sigmoid", postprocessing=framework)
    assert Predictions(tmp_path).header.postprocessing == framework
    resolved = DecodeSettings().resolved(store.header)
    assert (resolved.nms, resolved.nms_iou, resolved.multi_label) == ("class-agnostic", 0.3, False)
    assert (resolved.score_threshold, resolved.max_detections) == (0, 300)  # these say what is measured
    own = DecodeSettings.of_framework(framework)
    assert len(decode(store, settings=own)) == 3
    assert DecodeSettings(nms="none").resolved(store.header).nms == "none"


def test_objectness_comes_back_as_it_was_written_also_where_a_writer_continues(tmp_path):
    images = [proposals_of(1), proposals_of(2, rows=0), proposals_of(3)]
    store = stored(tmp_path, images[:2], activation="sigmoid")
    with PredictionWriter(tmp_path, store.header) as writer:
        writer.append(5, images[2])
    for there, written in zip(Predictions(tmp_path), images, strict=True):
        np.testing.assert_array_equal(there.objectness, written.objectness)


def test_objectness_that_does_not_fit_is_refused(tmp_path):
    for has in (True, False):
        header = StoreHeader(Head(6, activation="softmax", objectness=not has))
        with (
            PredictionWriter(tmp_path / str(has), header) as writer,
            pytest.raises(InputError, match="objectness"),
        ):
            writer.append(1, proposals_of(1, objectness=has))
    with pytest.raises(InputError, match="objectness"):
        Proposals(np.zeros((2, 4)), np.zeros((2, 3)), height=9, width=9, objectness=np.zeros(3))


def test_the_columns_of_classes():
    """Those that are no classes are refused."""
    assert store_header(4, background=0, class_columns=(1, 3)).head.num_classes == 2
    for columns in ((0, 1), (1, 1), (), (7,), (3, 1)):
        with pytest.raises(InputError, match=r"`class_columns`|`head`"):
            store_header(4, background=0, class_columns=columns)


def test_counts_of_the_labels_move_their_columns_alone():
    head = Head.of_classes(None, 5, class_columns=(1, 3), activation="sigmoid")
    affine = fit_for_store("norcal:gamma=1", head, counts=[10, 100])
    np.testing.assert_allclose(affine.shift, [0, -np.log(10), 0, -np.log(100), 0])
