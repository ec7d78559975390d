"""The class mix of a deployment from logits without labels."""

import numpy as np
import pytest

import logn
from logn.methods.deployment_mix import estimate_prior
from logn.statistics.head import Head

TRAINING = np.array([0.6, 0.25, 0.1, 0.05])
DEPLOYED = np.array([0.2, 0.2, 0.3, 0.3])


def draw(mix, rows, seed, apart=2.5):
    """Logits, calibrated for the mix TRAINING, of rows whose classes have the mix `mix`."""
    rng = np.random.default_rng(seed)
    classes = rng.choice(len(mix), size=rows, p=mix)
    seen = apart * np.eye(len(mix))[classes] + rng.normal(size=(rows, len(mix)))
    return apart * seen + np.log(TRAINING)


def saerens(logits, prior, steps=5000):
    """The fixed point of Saerens et al. as their paper writes it, in probabilities."""
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    mix = prior.copy()
    for _ in range(steps):
        adapted = scores * (mix / prior)
        mix = (adapted / adapted.sum(axis=1, keepdims=True)).mean(axis=0)
    return mix


def estimate(logits, **options):
    return estimate_prior(logits, **({"counts": TRAINING, "activation": "softmax", "num_bootstrap": 50} | options))


def test_it_is_the_fixed_point_of_the_paper():
    logits = draw(DEPLOYED, 1000, 0, apart=1.5)
    np.testing.assert_allclose(estimate(logits).shares, saerens(logits, TRAINING), atol=1e-3)


@pytest.mark.parametrize("mix", [DEPLOYED, TRAINING, np.array([0.97, 0.01, 0.01, 0.01])])
def test_a_known_mix_is_recovered_to_2_percent(mix):
    found = estimate(draw(mix, 40_000, 1))
    assert np.abs(found.shares - mix).sum() / 2 < 0.02
    assert (found.upper - found.lower < 0.03).all()


def test_a_deployment_of_one_class():
    found = estimate(draw(np.array([0.0, 0.0, 0.0, 1.0]), 5000, 2))
    assert found.shares[3] > 0.98
    assert (found.target > 0).all()  # so that a method can aim at it
    assert found.target.sum() == pytest.approx(1.0)


def test_intervals_cover():
    covered = []
    for seed in range(60):
        found = estimate(draw(TRAINING, 400, 100 + seed), num_bootstrap=100, confidence=0.9)
        covered.append((found.lower <= TRAINING) & (found.upper >= TRAINING))
    assert np.mean(covered) > 0.8  # 0.9 less three standard errors of 60 draws


@pytest.mark.parametrize("proposals", [1, 5])
def test_of_certain_rows_the_intervals_are_those_of_a_multinomial_over_images(proposals):
    rows = np.repeat(50 * np.eye(2) + np.log([0.5, 0.5]), [120, 280], axis=0)
    logits = np.repeat(rows[:, None], proposals, axis=1)  # all proposals of an image say the same
    found = estimate_prior(logits, counts=[500, 500], activation="softmax", num_bootstrap=2000)
    np.testing.assert_allclose(found.shares, [0.3, 0.7], atol=1e-6)
    np.testing.assert_allclose(found.upper - found.lower, 2 * 1.96 * np.sqrt(0.3 * 0.7 / 400), rtol=0.08)


def test_draws_of_a_single_image_are_that_image():
    found = estimate(draw(DEPLOYED, 50, 6)[None])
    np.testing.assert_allclose(found.lower, found.shares, atol=1e-3)
    np.testing.assert_allclose(found.upper, found.shares, atol=1e-3)


def test_sigmoids_have_a_share_each_and_a_background_is_a_class():
    rng = np.random.default_rng(0)
    present = rng.random((8000, 2)) < [0.5, 0.1]
    logits = 4 * (2 * present - 1) + rng.normal(size=(8000, 2))
    prior = np.array([0.2, 0.4])
    calibrated = 8 * (logits / 4 * 2) + np.log(prior / (1 - prior))
    moments = logn.ClassMoments(Head(2, activation="sigmoid"))
    moments.update(np.where(rng.random((4000, 2)) < prior, 50.0, -50.0))
    found = estimate_prior(calibrated, moments, num_bootstrap=20)
    np.testing.assert_allclose(found.shares, [0.5, 0.1], atol=0.02)
    with_background = logn.ClassMoments(Head(4, background=0), sample_rows=4000)
    with_background.update(draw(TRAINING, 4000, 3))
    mix = estimate_prior(draw(DEPLOYED, 20_000, 4), with_background, num_bootstrap=20)
    np.testing.assert_allclose(mix.shares, DEPLOYED, atol=0.02)
    np.testing.assert_allclose(mix.target, DEPLOYED[1:] / DEPLOYED[1:].sum(), atol=0.02)
    sampled = estimate_prior(with_background, with_background, num_bootstrap=20)
    np.testing.assert_allclose(sampled.shares, TRAINING, atol=0.05)


def test_larger_inputs_are_subsampled(monkeypatch):
    monkeypatch.setattr("logn.methods.deployment_mix.MOST_ROWS", 5000)
    found = estimate(draw(DEPLOYED, 20_000, 5).reshape(4000, 5, 4))
    assert found.num_rows == 5000
    np.testing.assert_allclose(found.shares, DEPLOYED, atol=0.03)


@pytest.mark.parametrize(
    ("logits", "options", "sentence"),
    [
        (np.zeros(3), {}, r"`logits` to be \(rows, columns\)"),
        (np.full((4, 4), np.nan), {}, "finite, but got nan"),
        (np.zeros((4, 4)), {"activation": None}, "Softmax or sigmoid"),
        (np.zeros((4, 4)), {"counts": None}, "The class mix of training is unknown"),
        (np.zeros((4, 4)), {"background": 0}, "The class mix of training is unknown"),
        (np.zeros((4, 3)), {}, "`counts` to have 3 foreground classes, but got 4"),
        (np.zeros((4, 4)), {"confidence": 1.0}, "`confidence` between 0 and 1"),
    ],
)
def test_mistakes_are_named(logits, options, sentence):
    with pytest.raises(logn.InputError, match=sentence):
        estimate(logits, **options)
