"""What is recommended, for which head, and what it does to the scores."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import conftest

import logn
from logn.base.arrays import sigmoid
from logn.methods.recommend import (
    CLASSIFIER_STRENGTH,
    CLASSIFIER_TRADE,
    DETECTOR_STRENGTH,
    TRADE_SOURCE,
    share_of_prior,
)
from logn.methods.sampled_scores import FEWEST_ABOVE, class_scores, keep_detections, threshold_after
from logn.statistics.head import Head

LEVELS = np.array([0.0, -1.0, -2.5, -3.0, -5.0])


def moments_of(rows, sample_rows=2000, **options):
    return conftest.moments_of(rows, sample_rows=sample_rows, **options)


def long_tailed(rows=2000, seed=0):
    return np.random.default_rng(seed).normal(LEVELS, 1.5, (rows, len(LEVELS)))


def detector_rows(rows=2000, seed=0):
    return np.hstack([np.random.default_rng(seed + 1).normal(2.0, 1.0, (rows, 1)), long_tailed(rows, seed)])


@pytest.mark.parametrize(
    ("metadata", "head"),
    [
        ({"background": 0}, "softmax detector"),
        ({"activation": "softmax"}, "classifier"),
        ({"population": "images"}, "classifier"),
        ({"activation": "sigmoid"}, "sigmoid head"),
    ],
)
def test_a_share_of_the_prior_for_every_head(metadata, head):
    moments = moments_of(detector_rows() if "background" in metadata else long_tailed(), **metadata)
    found = logn.recommend(moments)
    assert (found.method, found.kind) == ("recommended", head)
    assert found.finding.startswith("Long-tailed: of 5 classes")
    affine = found.fit(moments)
    assert affine.method == "recommended"
    np.testing.assert_array_equal(affine.scale, 1.0)
    prior = np.log(moments.mean_probability_of(found.head.activation))
    shift = affine.shift
    if head == "softmax detector":
        assert shift[0] == 0.0
        assert shift.max() == 0.0  # the lowest class keeps its logits, all others are lowered
        prior, shift = prior[1:], shift[1:]
    np.testing.assert_allclose(shift - shift[0], -found.strength * (prior - prior[0]), atol=1e-9)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_level_classes_are_left_alone(activation):
    moments = moments_of(np.random.default_rng(0).normal(size=(500, 6)), activation=activation)
    found = logn.recommend(moments)
    assert found.method == "none"
    assert "little to correct" in found.finding
    assert found.fit(moments) == logn.ClassAffine.identity(6)


def test_one_live_class_has_nothing_to_be_compared_with():
    rows = long_tailed()[:, :3]
    rows[:, 1:] = -5.0
    assert logn.recommend(moments_of(rows, activation="sigmoid")).finding.startswith("Fewer than two classes")


def test_an_unknown_activation_is_taken_for_a_softmax_with_a_warning():
    moments = moments_of(long_tailed())
    with pytest.warns(logn.LogNWarning, match="Softmax or sigmoid[?] Assumed softmax"):
        assert logn.recommend(moments).kind == "classifier"
    assert logn.recommend(moments, activation="sigmoid").kind == "sigmoid head"


def test_unused_and_dead_columns_set_no_minimum():
    rows = np.hstack([detector_rows(), np.full((2000, 1), -40.0)])
    rows[:, 3] -= 30.0
    moments = moments_of(rows, background=0, unused=(3,))
    affine = logn.recommend(moments).fit(moments)
    assert affine.shift[[3, 6]].tolist() == [0.0, 0.0]
    assert sorted(affine.shift)[-1] == 0.0
    assert affine.shift[5] == 0.0  # the lowest class that is live


@given(seed=st.integers(0, 50), threshold=st.sampled_from([0.05, 0.25, 0.5]), objects=st.booleans())
def test_a_sigmoid_head_keeps_its_number_of_detections(seed, threshold, objects):
    rows = long_tailed(500, seed).astype(np.float16).astype(np.float64)
    objectness = np.random.default_rng(seed).normal(2.0, 1.0, 500).astype(np.float16) if objects else None
    factor = sigmoid(objectness.astype(np.float64))[:, None] if objects else 1.0
    moments = logn.ClassMoments(Head(5, activation="sigmoid", objectness=objects), sample_rows=500)
    moments.update(rows, objectness)
    affine = logn.recommend(moments, threshold=threshold).fit(moments)
    before = int((factor * sigmoid(rows) > threshold).sum())
    after = int((factor * sigmoid(affine(rows)) > threshold).sum())
    assert before >= FEWEST_ABOVE
    assert abs(after - before) <= 1  # the sample is the data here; a tie may go either way
    assert threshold_after(affine, moments, threshold).use == pytest.approx(threshold, rel=0.05)


def test_where_few_scores_exceed_the_threshold_a_lower_one_is_kept():
    moments = moments_of(long_tailed(500) - 4.0, activation="sigmoid")
    affine = keep_detections(logn.ClassAffine(np.ones(5), [-3.0, -2.0, -1.0, 0.5, 1.0]), moments, 0.99)
    before = np.sort(class_scores(moments, None, "sigmoid"), axis=None)[::-1]
    after = np.sort(class_scores(moments, affine, "sigmoid"), axis=None)[::-1]
    level = (before[FEWEST_ABOVE - 1] + before[FEWEST_ABOVE]) / 2
    assert abs(int((after > level).sum()) - FEWEST_ABOVE) <= 1
    assert threshold_after(affine, moments, 0.99).use is None


def test_as_many_scores_as_it_takes_are_kept_at_the_threshold_itself():
    rows = np.full((200, 2), -6.0)
    rows[:FEWEST_ABOVE, 0] = 3.0
    moments = moments_of(rows, activation="sigmoid")
    affine = keep_detections(logn.ClassAffine([1.0, 1.0], [-1.0, -1.0]), moments, 0.5)
    assert int((class_scores(moments, affine, "sigmoid") > 0.5).sum()) == FEWEST_ABOVE


def test_without_rows_or_strength_a_sigmoid_map_is_not_shifted():
    moments = moments_of(long_tailed(), activation="sigmoid", sample_rows=0)
    assert "common_shift" not in logn.recommend(moments).fit(moments).settings
    moments = moments_of(long_tailed(), activation="sigmoid")
    unmoved = logn.recommend(moments).fit(moments, strength=0.0)
    assert (unmoved.scale == 1.0).all()
    assert (unmoved.shift == 0.0).all()


def test_the_matching_threshold_keeps_the_number_of_scores():
    moments = moments_of(detector_rows(), background=0)
    found = logn.recommend(moments)
    affine = found.fit(moments)
    matching = threshold_after(affine, moments, found.threshold).use
    before, after = (class_scores(moments, part, "softmax") for part in (None, affine))
    assert int((after > matching).sum()) == int((before > found.threshold).sum())
    assert matching < found.threshold


def test_the_strengths_are_those_of_the_constants_in_the_texts_and_the_pages():
    assert CLASSIFIER_STRENGTH in CLASSIFIER_TRADE
    assert (Path(__file__).parents[2] / TRADE_SOURCE).is_file()
    detector = moments_of(detector_rows(), background=0)
    classifier = moments_of(long_tailed(), activation="softmax")
    strengths = []
    for moments in (detector, classifier):
        found = logn.recommend(moments)
        strengths.append(found.strength)
        assert found.fit(moments) == found.fit(moments, strength=found.strength)
        assert found.to_dict()["strength"] == found.strength
    assert strengths == [DETECTOR_STRENGTH, CLASSIFIER_STRENGTH]
    assert logn.recommend(detector).trade == ""
    (gain, loss), (most, worst) = CLASSIFIER_TRADE[CLASSIFIER_STRENGTH], CLASSIFIER_TRADE[1.0]
    trade = logn.recommend(classifier).trade
    assert f"{share_of_prior(CLASSIFIER_STRENGTH)} changes the accuracy by {gain:+g} points" in trade
    assert f"{loss:+g} on a long-tailed one; the full prior by {most:+g} and {worst:+g}." in trade
    pages = Path(__file__).parents[2] / "docs"
    used = f"{DETECTOR_STRENGTH:g} (detectors), {CLASSIFIER_STRENGTH:g} (classifiers)"
    assert used in (pages / "method.md").read_text()
    used = f"uses {DETECTOR_STRENGTH:g} for detectors and {CLASSIFIER_STRENGTH:g} for classifiers"
    assert used in (pages / "how-to" / "class-mix.md").read_text()


@pytest.mark.parametrize("threshold", [-0.1, 1.5])
def test_a_threshold_is_a_score(threshold):
    with pytest.raises(logn.InputError, match="`threshold` to be from 0 to 1"):
        logn.recommend(moments_of(long_tailed(), activation="sigmoid"), threshold=threshold)
