"""The other post-hoc methods against worked numbers: three foreground classes, the background last."""

import numpy as np
import pytest

from logn.base.arrays import softmax
from logn.data.fractal_dimensions import fractal_dimension
from logn.methods import fracal, inverse_image_frequency, logit_adjustment, norcal, tau_norm, temperature

T = np.array([1.0, 0.8, 0.2, 1.5])
N = np.array([100, 10, 1])
IMAGES, DIMENSIONS = [60, 20, 1], [1.795877, 1.0, 1.0]
SCORES = 2e-6


@pytest.mark.parametrize(
    ("affine", "expected"),
    [
        (logit_adjustment(N, 1.0), [0.018477, 0.151280, 0.830243]),
        (logit_adjustment(N, 0.5), [0.123726, 0.320335, 0.555939]),
        (logit_adjustment(N, 1.0, background=-1), [0.017984, 0.147239, 0.808065, 0.026712]),
        (logit_adjustment(N, 0.5, background=-1), [0.103657, 0.268372, 0.465759, 0.162212]),
        (logit_adjustment(N, 0.5, background=-1, priors=False), [0.040701, 0.105377, 0.182880, 0.671042]),
        (norcal(N, 0.6, background=-1), [0.026659, 0.086892, 0.189846, 0.696603]),
        (norcal(N, 1.0, background=-1), [0.004566, 0.037386, 0.205180, 0.752867]),
        (norcal(N, 0.6, on_logits=True, background=-1), [0.133295, 0.152997, 0.152851, 0.560857]),
        (norcal(N, 0.9, weights="effective-number", background=-1), [0.043035, 0.054095, 0.193363, 0.709507]),
        (fracal(IMAGES, 100, background=-1), [0.140705, 0.185636, 0.374211, 0.299448]),
        (fracal(IMAGES, 100, DIMENSIONS, background=-1), [0.048318, 0.205595, 0.414444, 0.331643]),
        (fracal(IMAGES, 100, DIMENSIONS, background=-1, power=0.0), [0.140705, 0.185636, 0.374211, 0.299448]),
        # Uniform frequencies leave the spatial part alone.
        (fracal([100 / 3] * 3, 100, DIMENSIONS, background=-1), [0.096088, 0.253725, 0.139247, 0.510940]),
        (inverse_image_frequency(N, "raw"), [0.105375, 0.651137, 0.243488]),
        (inverse_image_frequency(N, "smooth"), [0.150773, 0.712571, 0.136656]),
    ],
)
def test_scores(affine, expected):
    np.testing.assert_allclose(softmax(affine(T[: len(expected)])), expected, atol=SCORES)


def test_logits_and_shifts():
    np.testing.assert_allclose(logit_adjustment(N)(T[:3]), [1.104360, 3.206945, 4.909530], atol=SCORES)
    affine = fracal(IMAGES, 100, None, background=-1)
    np.testing.assert_allclose(affine.shift, [-0.255273, 0.221849, 1.522879, 0.0], atol=SCORES)
    natural = fracal(IMAGES, 100, None, background=-1, base=np.e)
    np.testing.assert_allclose(natural.shift, affine.shift * np.log(10), atol=1e-12)


def test_norcal_shift_is_the_weight_of_the_probabilities():
    affine = norcal(N, 0.6, background=-1)
    weighted = softmax(T) * np.exp(affine.shift)
    np.testing.assert_allclose(weighted, [0.016109, 0.052506, 0.114719, 0.420938], atol=SCORES)
    np.testing.assert_allclose(weighted / weighted.sum(), softmax(affine(T)), atol=1e-15)


def test_fractal_dimension():
    first = [(0.1, 0.1), (0.9, 0.1), (0.1, 0.9), (0.9, 0.9), (0.5, 0.5), (0.3, 0.7), (0.7, 0.3), (0.5, 0.1), (0.1, 0.5)]
    second = [(0.10, 0.10), (0.12, 0.12), (0.14, 0.10), (0.60, 0.12)]
    third = [(0.2, 0.2), (0.8, 0.8)]
    dimensions = fractal_dimension(first + second + third, [0] * 9 + [1] * 4 + [2] * 2, num_classes=3)
    np.testing.assert_allclose(dimensions, DIMENSIONS, atol=SCORES)
    # A centre on the far edge lies in no cell. Four boxes, so grids of 1 and 4 cells: one and three are occupied.
    centres = [(0.1, 0.1), (0.9, 0.1), (0.1, 0.9), (1.0, 1.0)]
    assert fractal_dimension(centres, [0] * 4, num_classes=1)[0] == pytest.approx(np.log2(3))


@pytest.mark.parametrize(
    ("variant", "factors"),
    [
        ("raw", [0.104360, 2.406945, 4.709530]),
        ("smooth", [1.103378, 3.320604, 5.025352]),
        ("relative", [-2.207275, 2.312535, 4.700480]),
        ("base2", [0.150560, 3.472488, 6.794416]),
        ("base10", [0.045323, 1.045323, 2.045323]),
    ],
)
def test_inverse_image_frequency(variant, factors):
    np.testing.assert_allclose(inverse_image_frequency(N, variant).scale, factors, atol=1e-6)


@pytest.mark.parametrize(
    ("tau", "expected"), [(0.0, [11, 2.2, 1]), (0.7, [3.565444, 2.2, 1.624505]), (1.0, [2.2, 2.2, 2.0])]
)
@pytest.mark.parametrize("background", [None, 0, -1])
def test_tau_norm_drops_the_biases_of_the_classes(tau, expected, background):
    weight, bias, feature = np.array([[3, 4], [0.6, 0.8], [0, 0.5]]), np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0])
    if background is None:
        np.testing.assert_allclose(tau_norm(weight, tau)(weight @ feature), expected, atol=SCORES)
    else:
        place = 0 if background == 0 else 3
        weight, bias = np.insert(weight, place, [1.0, -1.0], axis=0), np.insert(bias, place, 0.4)
        expected = np.insert(expected, place, -0.6)
    found = tau_norm(weight, tau, bias, background=background)(weight @ feature + bias)
    np.testing.assert_allclose(found, expected, atol=SCORES)


def test_defaults_are_those_that_the_authors_published():
    # NorCal's gamma 0.6 on image counts; FRACAL's lambda 2 and base 10.
    np.testing.assert_allclose(norcal(N).shift, -0.6 * np.log(N), atol=1e-12)
    dimensions = np.array(DIMENSIONS)
    frequency = -np.log10(np.array([0.6, 0.2, 0.01])) - np.log10(3)
    np.testing.assert_allclose(fracal(IMAGES, 100, dimensions).shift, frequency - 2 * np.log(dimensions), atol=1e-12)
    np.testing.assert_allclose(inverse_image_frequency(N).scale, np.log(112 / (N + 1)) + 1, atol=1e-12)


@pytest.mark.parametrize("background", [None, 0, -1])
def test_a_temperature_divides_the_background_too(background):
    np.testing.assert_allclose(temperature(4, 2.0, background=background)(T), T / 2, atol=1e-15)
