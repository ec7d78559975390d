"""Decoding without a limit per image: all classes at once must give what the greedy loop gives, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.evaluate.decode import nms
from logn.evaluate.decode.candidates import sort_candidates
from logn.evaluate.decode.nms import AgnosticSuppression, ClassBoxSuppression
from logn.evaluate.decode.overlap_graph import OverlapGraph

SEEDS = st.integers(0, 2**32 - 1)


def made_boxes(rng, count, crowd):
    corner = rng.uniform(0, 100 / crowd, (count, 2))
    return np.hstack([corner, corner + rng.uniform(10, 40, (count, 2))]).astype(np.float32)


def made_candidates(rng, proposals, classes, share, levels):
    """Some of all pairs; with few levels there are many equal scores."""
    flat = np.flatnonzero(rng.random(proposals * classes) < share)
    scores = (rng.integers(1, levels + 1, len(flat)) / levels).astype(np.float32)
    return flat, scores


def greedy(boxes, flat, scores, classes):
    """Candidate by candidate, as the definition says."""
    overlaps = nms.pairwise_iou(boxes) > np.float32(0.5)
    kept = []
    for position in np.argsort(-scores, kind="stable"):
        proposal, label = divmod(int(flat[position]), classes)
        earlier = [flat[other] // classes for other in kept if flat[other] % classes == label]
        if not overlaps[proposal, earlier].any():
            kept.append(position)
    return np.sort(np.array(kept, dtype=np.intp))


@given(
    seed=SEEDS,
    proposals=st.integers(1, 25),
    classes=st.sampled_from([1, 3, 63, 64, 65, 130]),
    crowd=st.sampled_from([0.1, 1.0, 10.0]),
    share=st.sampled_from([0.0, 0.1, 0.9]),
    levels=st.sampled_from([1, 4, 10**6]),
)
@settings(max_examples=150, deadline=None)
def test_survivors_of_all_classes_at_once_are_those_of_the_greedy_loop(seed, proposals, classes, crowd, share, levels):
    rng = np.random.default_rng(seed)
    boxes = made_boxes(rng, proposals, crowd)
    flat, scores = made_candidates(rng, proposals, classes, share, levels)
    graph = OverlapGraph(nms.pairwise_iou(boxes) > np.float32(0.5))
    expected = greedy(boxes, flat, scores, classes)
    np.testing.assert_array_equal(graph.survivors(flat, scores, classes), expected)
    # Memory of the first method is used again by the next.
    other, other_scores = made_candidates(rng, proposals, classes, 0.5, levels)
    again = graph.survivors(other, other_scores, classes)
    np.testing.assert_array_equal(again, greedy(boxes, other, other_scores, classes))


@given(seed=SEEDS, proposals=st.integers(1, 60), crowd=st.sampled_from([0.3, 3.0, 30.0]))
@settings(max_examples=40, deadline=None)
def test_every_way_to_suppress_keeps_the_same(seed, proposals, crowd):
    rng = np.random.default_rng(seed)
    classes = 7
    boxes = made_boxes(rng, proposals, crowd)
    flat, scores = made_candidates(rng, proposals, classes, 0.6, 50)
    shared = AgnosticSuppression(boxes, 0.5)
    kept = shared.survivors(flat, scores, classes)
    found = sort_candidates(flat, scores, classes)
    by_loop = found.take(shared.keep(found.proposals, found.labels, None))
    by_graph = sort_candidates(flat[kept], scores[kept], classes)
    for name in ("proposals", "labels", "scores"):
        np.testing.assert_array_equal(getattr(by_graph, name), getattr(by_loop, name))
    own_boxes = ClassBoxSuppression(np.repeat(boxes[:, None], classes, axis=1), 0.5)
    np.testing.assert_array_equal(own_boxes.survivors(flat, scores, classes), kept)


@pytest.mark.parametrize("comparisons", [0, 10**9])
def test_the_choice_of_the_way_does_not_show(monkeypatch, comparisons):
    monkeypatch.setattr(nms, "_COMPARISONS_PER_PAIR", comparisons)
    rng = np.random.default_rng(0)
    boxes = made_boxes(rng, 40, 3.0)
    flat, scores = made_candidates(rng, 40, 5, 0.7, 20)
    kept = AgnosticSuppression(boxes, 0.5).survivors(flat, scores, 5)
    np.testing.assert_array_equal(kept, greedy(boxes, flat, scores, 5))


def test_no_proposals_at_all():
    nothing = AgnosticSuppression(np.empty((0, 4), np.float32), 0.5)
    assert nothing.survivors(np.empty(0, np.intp), np.empty(0, np.float32), 3).tolist() == []
