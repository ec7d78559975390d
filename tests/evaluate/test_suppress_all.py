"""Decoding without a limit per image: all classes at once must give what the greedy loop gives, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.evaluate.decode import nms
from logn.evaluate.decode.image_decoder import sort_candidates
from logn.evaluate.decode.nms import Boxes, Suppression, box_iou
from logn.logits.proposals import Proposals

SEEDS = st.integers(0, 2**32 - 1)


def made_boxes(rng, count, crowd):
    corner = rng.uniform(0, 100 / crowd, (count, 2))
    return np.hstack([corner, corner + rng.uniform(10, 40, (count, 2))]).astype(np.float32)


def made_candidates(rng, proposals, classes, share, levels):
    """Some of all pairs; with few levels there are many equal scores."""
    flat = np.flatnonzero(rng.random(proposals * classes) < share)
    scores = (rng.integers(1, levels + 1, len(flat)) / levels).astype(np.float32)
    return flat, scores


def suppression(boxes):
    return Suppression("class-wise", Boxes(Proposals(boxes, np.zeros((len(boxes), 1)), height=1, width=1), 99), 0.5)


def greedy(boxes, found):
    """Candidate by candidate, as the definition says."""
    overlaps = box_iou(boxes[:, None], boxes) > np.float32(0.5)
    kept = []
    for position, (proposal, label) in enumerate(zip(found.proposals, found.labels, strict=True)):
        earlier = [found.proposals[other] for other in kept if found.labels[other] == label]
        if not overlaps[proposal, earlier].any():
            kept.append(position)
    return np.array(kept, dtype=np.intp)


@given(
    seed=SEEDS,
    proposals=st.integers(1, 25),
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
    found = sort_candidates(flat, scores, classes)
    wanted = greedy(boxes, found)
    in_order = np.argsort(-scores, kind="stable")
    for way in (suppression(boxes), suppression(np.repeat(boxes[:, None], classes, axis=1))):
        np.testing.assert_array_equal(way.best(found.proposals, found.labels, limit), wanted[:limit])
        np.testing.assert_array_equal(way.all(flat, scores, classes), np.sort(in_order[wanted]))


@pytest.mark.parametrize("constant", ["_BITS_PER_PAIR", "_MANY_PROPOSALS", "_PAIRS_AT_ONCE"])
@pytest.mark.parametrize("value", [0, 10**9])
def test_the_choice_of_the_way_does_not_show(monkeypatch, constant, value):
    monkeypatch.setattr(nms, constant, value)
    rng = np.random.default_rng(0)
    boxes = made_boxes(rng, 40, 3.0)
    flat, scores = made_candidates(rng, 40, 5, 0.7, 20)
    kept = suppression(boxes).all(flat, scores, 5)
    wanted = greedy(boxes, sort_candidates(flat, scores, 5))
    np.testing.assert_array_equal(kept, np.sort(np.argsort(-scores, kind="stable")[wanted]))


def test_no_proposals_at_all():
    nothing = suppression(np.empty((0, 4), np.float32))
    assert nothing.all(np.empty(0, np.intp), np.empty(0, np.float32), 3).tolist() == []
