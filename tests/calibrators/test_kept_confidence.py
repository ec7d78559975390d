"""The common scale that keeps the mean confidence: it exists, it is the only one, and it changes no prediction."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import logn
from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.match_confidence import keep_confidence, solve_kept_confidence
from logn.calibrators.method_spec import fit_method
from logn.logits.arrays import softmax

CLASSES = 5


def drawn_rows(seed, number, scale):
    """As the sample holds them, so that the confidence can be compared exactly."""
    rng = np.random.default_rng(seed)
    rows = scale * (rng.normal(size=(number, CLASSES)) * rng.uniform(0.5, 2, CLASSES) + rng.normal(size=CLASSES))
    return rows.astype(np.float16).astype(np.float64)


ROWS = st.builds(drawn_rows, st.integers(0, 10_000), st.integers(5, 40), st.floats(0.2, 3))


def moments_of(rows, **options):
    result = logn.ClassMoments(rows.shape[1], **{"sample_rows": 100, **options})
    result.update(rows)
    return result


def confidence(logits):
    return softmax(logits).max(axis=1).mean()


def untied(rows):
    """Normalised rows whose highest logit stands alone, so that every confidence up to 1 can be reached."""
    if not (rows.std(axis=0) > 0.1).all():
        return False
    normalised = np.sort(logn.logit_normalization(moments_of(rows))(rows), axis=1)
    return bool((normalised[:, -1] - normalised[:, -2] > 1e-3).all())


@given(rows=ROWS, options=st.sampled_from([{}, {"use_std": False}, {"use_mean": False}, {"std_power": 2.0}]))
def test_the_mean_confidence_stays_and_so_does_every_prediction(rows, options):
    assume(untied(rows))
    plain = logn.logit_normalization(moments_of(rows), activation="softmax", **options)
    kept = logn.logit_normalization(moments_of(rows), keep_confidence=True, **options)
    assert confidence(kept(rows)) == pytest.approx(confidence(rows), abs=1e-6)
    np.testing.assert_allclose(kept(rows), kept.settings["common_scale"] * plain(rows), rtol=1e-9, atol=1e-9)
    assert kept.settings["common_scale"] > 0
    assert kept.settings["common_scale_error"] >= 0


@given(rows=ROWS, factors=st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)))
def test_confidence_grows_with_the_scale_so_there_is_one_solution(rows, factors):
    low, high = sorted(factors)
    assert (softmax(low * rows).max(axis=1) <= softmax(high * rows).max(axis=1) + 1e-12).all()


@given(rows=ROWS, factor=st.floats(0.05, 20))
def test_a_scale_put_in_before_is_taken_out(rows, factor):
    assume(untied(rows))
    affine = logn.logit_normalization(moments_of(rows))
    scaled = ClassAffine(affine.scale * factor, affine.shift * factor)
    assume(confidence(rows) < 0.99)  # where all are sure, the scale is hardly determined
    expected = solve_kept_confidence(rows, affine).factor
    assert factor * solve_kept_confidence(rows, scaled).factor == pytest.approx(expected, rel=1e-4)


def test_the_confidence_sets_the_common_scale_whatever_it_was():
    rows = np.random.default_rng(0).normal(size=(80, 4)) * [1.0, 2.0, 3.0, 4.0]
    rows = rows.astype(np.float16).astype(np.float64)
    balanced = fit_method("logn:balanced,keep_confidence=true", moments=moments_of(rows))
    assert confidence(balanced(rows)) == pytest.approx(confidence(rows), abs=1e-8)
    same = fit_method("logn:keep_confidence=true", moments=moments_of(rows))
    np.testing.assert_allclose(same.scale, balanced.scale, rtol=1e-6)
    assert same.settings["confidence"] == pytest.approx(confidence(rows))
    assert same.settings["sample_rows"] == 80
    without = fit_method("logn:balanced,activation=softmax", moments=moments_of(rows, sample_rows=0))  # needs no rows
    assert (1 / without.scale).mean() == pytest.approx(1.0)


def test_dead_classes_get_the_common_scale_and_nothing_else():
    rng = np.random.default_rng(0)
    rows = rng.normal([1.0, -2.0, 0.0, -20.0], 1.0, size=(200, 4))
    rows[:, 3] = -20.0
    affine = logn.logit_normalization(moments_of(rows, sample_rows=200), keep_confidence=True)
    assert affine.scale[3] == pytest.approx(affine.settings["common_scale"])
    assert affine.shift[3] == 0.0


def test_the_error_of_the_scale_by_the_delta_method():
    rows = np.array([[2.0, 0.5, -1.0], [0.0, 1.5, -2.0], [1.0, -0.5, 0.5]])
    affine = logn.ClassAffine([0.5, 1.0, 2.0], [0.0, -0.5, 0.25])
    found = solve_kept_confidence(rows, affine)

    def confidence(factor):
        return softmax(factor * affine(rows)).max(axis=1)

    before = softmax(rows).max(axis=1)
    assert confidence(found.factor).mean() == pytest.approx(before.mean(), abs=1e-8)
    slope = (confidence(found.factor + 1e-5) - confidence(found.factor - 1e-5)).mean() / 2e-5
    assert found.error == pytest.approx((confidence(found.factor) - before).std(ddof=1) / np.sqrt(3) / slope, rel=1e-5)


def test_the_error_of_the_scale_is_what_resampling_shows():
    rng = np.random.default_rng(0)
    population = rng.normal([2.0, 0.0, -1.0, -2.0], [2.0, 1.0, 1.5, 2.0], size=(20_000, 4))
    affine = logn.logit_normalization(moments_of(population))
    solved = [solve_kept_confidence(np.random.default_rng(seed).choice(population, 400), affine) for seed in range(100)]
    spread = np.std([solution.factor for solution in solved])
    assert spread == pytest.approx(np.mean([solution.error for solution in solved]), rel=0.25)


def test_any_method_can_keep_the_confidence():
    rows = np.random.default_rng(1).normal(size=(60, 3)) * 2
    adjusted = logn.logit_adjustment([100, 10, 1])
    kept = keep_confidence(adjusted, rows)
    assert confidence(kept(rows)) == pytest.approx(confidence(rows), abs=1e-8)
    assert kept.method == "loga"
    assert (kept(rows).argmax(axis=1) == adjusted(rows).argmax(axis=1)).all()
    one_class = keep_confidence(ClassAffine([2.0], [1.0]), rows[:, :1])
    assert one_class.scale.tolist() == [2.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"background": 0, "keep_confidence": True}, "only for a softmax without a background, but got a background"),
        ({"activation": "sigmoid", "keep_confidence": True}, "without a background, but got sigmoids"),
        (
            {"keep_confidence": True},
            "row sample to keep the mean confidence, but got none.*or take keep_confidence=False",
        ),
    ],
)
def test_where_it_cannot_be_kept_the_reason_is_given(options, words):
    rows = np.random.default_rng(0).normal(size=(20, 4))
    with pytest.raises(logn.InputError, match=words):
        logn.logit_normalization(moments_of(rows, sample_rows=0), **options)


def test_bad_rows_and_ties_are_refused():
    with pytest.raises(logn.InputError, match=r"at least one row of logits \(N, C\), but got shape \(0, 2\)"):
        keep_confidence(ClassAffine.identity(2), np.zeros((0, 2)))
    with pytest.raises(logn.InputError, match="`rows` to be finite, but row 1 is not"):
        keep_confidence(ClassAffine.identity(2), np.array([[0.0, 1.0], [np.nan, 1.0]]))
    with pytest.raises(logn.InputError, match="without a background to keep"):
        keep_confidence(ClassAffine.identity(2, background=0), np.zeros((1, 2)))
    with pytest.raises(logn.InputError, match=r"have ties and reach 0\.5 at most"):
        keep_confidence(ClassAffine([1.0, 2.0], [0.0, 0.0]), np.array([[2.0, 1.0]]))


def test_the_map_comes_first():
    with pytest.raises(logn.InputError, match=r"Expected `affine` to be a logn.ClassAffine, but got ndarray\."):
        logn.keep_confidence(np.zeros((4, 3)), logn.ClassAffine.identity(3))
