"""The other post-hoc methods against worked numbers: three foreground classes, the background last."""

import numpy as np
import pytest

import logn
from logn.classes.counts import fractal_dimension
from logn.logits.arrays import softmax

T = np.array([1.0, 0.8, 0.2, 1.5])
N = np.array([100, 10, 1])
SCORES = 2e-6


@pytest.mark.parametrize(
    ("tau", "expected"), [(1.0, [0.018477, 0.151280, 0.830243]), (0.5, [0.123726, 0.320335, 0.555939])]
)
def test_logit_adjustment_without_background(tau, expected):
    np.testing.assert_allclose(softmax(logn.methods.logit_adjustment(N, tau)(T[:3])), expected, atol=SCORES)


def test_logit_adjustment_logits():
    np.testing.assert_allclose(logn.methods.logit_adjustment(N)(T[:3]), [1.104360, 3.206945, 4.909530], atol=SCORES)


@pytest.mark.parametrize(
    ("tau", "priors", "expected"),
    [
        (1.0, True, [0.017984, 0.147239, 0.808065, 0.026712]),
        (0.5, True, [0.103657, 0.268372, 0.465759, 0.162212]),
        (0.5, False, [0.040701, 0.105377, 0.182880, 0.671042]),
    ],
)
def test_logit_adjustment_beside_a_background(tau, priors, expected):
    affine = logn.methods.logit_adjustment(N, tau, background=-1, priors=priors)
    np.testing.assert_allclose(softmax(affine(T)), expected, atol=SCORES)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gamma": 0.6}, [0.026659, 0.086892, 0.189846, 0.696603]),
        ({"gamma": 1.0}, [0.004566, 0.037386, 0.205180, 0.752867]),
        ({"gamma": 0.6, "on_logits": True}, [0.133295, 0.152997, 0.152851, 0.560857]),
        ({"gamma": 0.9, "weights": "effective-number"}, [0.043035, 0.054095, 0.193363, 0.709507]),
    ],
)
def test_norcal(options, expected):
    np.testing.assert_allclose(softmax(logn.methods.norcal(N, background=-1, **options)(T)), expected, atol=SCORES)


def test_norcal_shift_is_the_weight_of_the_probabilities():
    affine = logn.methods.norcal(N, 0.6, background=-1)
    weighted = softmax(T) * np.exp(affine.shift)
    np.testing.assert_allclose(weighted, [0.016109, 0.052506, 0.114719, 0.420938], atol=SCORES)
    np.testing.assert_allclose(weighted / weighted.sum(), softmax(affine(T)), atol=1e-15)


def test_fractal_dimension():
    first = [(0.1, 0.1), (0.9, 0.1), (0.1, 0.9), (0.9, 0.9), (0.5, 0.5), (0.3, 0.7), (0.7, 0.3), (0.5, 0.1), (0.1, 0.5)]
    second = [(0.10, 0.10), (0.12, 0.12), (0.14, 0.10), (0.60, 0.12)]
    third = [(0.2, 0.2), (0.8, 0.8)]
    dimensions = fractal_dimension(first + second + third, [0] * 9 + [1] * 4 + [2] * 2, num_classes=3)
    np.testing.assert_allclose(dimensions, [1.795877, 1.0, 1.0], atol=SCORES)


def test_a_centre_on_the_far_edge_lies_in_no_cell():
    centres = [(0.1, 0.1), (0.9, 0.1), (0.1, 0.9), (1.0, 1.0)]
    # Four boxes, so grids of 1 and 4 cells: one cell and three cells are occupied.
    assert fractal_dimension(centres, [0] * 4, num_classes=1)[0] == pytest.approx(np.log2(3))


@pytest.mark.parametrize(
    ("counts", "dimensions", "power", "expected"),
    [
        ([60, 20, 1], None, 2.0, [0.140705, 0.185636, 0.374211, 0.299448]),
        ([60, 20, 1], [1.795877, 1.0, 1.0], 2.0, [0.048318, 0.205595, 0.414444, 0.331643]),
        ([60, 20, 1], [1.795877, 1.0, 1.0], 0.0, [0.140705, 0.185636, 0.374211, 0.299448]),
        # Uniform frequencies leave the spatial part alone.
        ([100 / 3] * 3, [1.795877, 1.0, 1.0], 2.0, [0.096088, 0.253725, 0.139247, 0.510940]),
    ],
)
def test_fracal_softmax(counts, dimensions, power, expected):
    affine = logn.methods.fracal(counts, 100, dimensions, background=-1, power=power)
    np.testing.assert_allclose(softmax(affine(T)), expected, atol=SCORES)


def test_fracal_frequency_shift():
    affine = logn.methods.fracal([60, 20, 1], 100, None, background=-1)
    np.testing.assert_allclose(affine.shift, [-0.255273, 0.221849, 1.522879, 0.0], atol=SCORES)
    natural = logn.methods.fracal([60, 20, 1], 100, None, background=-1, base=np.e)
    np.testing.assert_allclose(natural.shift, affine.shift * np.log(10), atol=1e-12)


def test_fracal_sigmoid():
    transform = logn.methods.FracalSigmoid.fit([60, 20, 1], 100, [1.795877, 1.0, 1.0])
    np.testing.assert_allclose(transform(T[:3]), [0.451118, 0.537844, 0.482177], atol=SCORES)


def test_fracal_sigmoid_on_tensors():
    torch = pytest.importorskip("torch")
    transform = logn.methods.FracalSigmoid.fit([60, 20, 1], 100, [1.795877, 1.0, 1.0])
    np.testing.assert_allclose(transform(torch.tensor(T[:3])).numpy(), transform(T[:3]), atol=1e-12)


@pytest.mark.parametrize(
    ("variant", "factors", "expected"),
    [
        ("raw", [0.104360, 2.406945, 4.709530], [0.105375, 0.651137, 0.243488]),
        ("smooth", [1.103378, 3.320604, 5.025352], [0.150773, 0.712571, 0.136656]),
    ],
)
def test_inverse_image_frequency(variant, factors, expected):
    affine = logn.methods.inverse_image_frequency(N, variant)
    np.testing.assert_allclose(affine.scale, factors, atol=SCORES)
    np.testing.assert_allclose(softmax(affine(T[:3])), expected, atol=SCORES)


@pytest.mark.parametrize(
    ("tau", "expected"), [(0.0, [11, 2.2, 1]), (0.7, [3.565444, 2.2, 1.624505]), (1.0, [2.2, 2.2, 2.0])]
)
def test_tau_norm_drops_the_bias(tau, expected):
    weight, bias = np.array([[3, 4], [0.6, 0.8], [0, 0.5]]), np.array([0.1, 0.2, 0.3])
    feature = np.array([1.0, 2.0])
    np.testing.assert_allclose(logn.methods.tau_norm(weight, tau)(weight @ feature), expected, atol=SCORES)
    np.testing.assert_allclose(logn.methods.tau_norm(weight, tau, bias)(weight @ feature + bias), expected, atol=SCORES)


@pytest.mark.parametrize("background", [0, -1])
def test_tau_norm_beside_a_background_drops_the_biases_of_the_classes(background):
    weight, bias = np.array([[3, 4], [0.6, 0.8], [0, 0.5]]), np.array([0.1, 0.2, 0.3])
    own_weight, own_bias, feature = np.array([[1.0, -1.0]]), np.array([0.4]), np.array([1.0, 2.0])
    order = (own_weight, weight) if background == 0 else (weight, own_weight)
    biases = (own_bias, bias) if background == 0 else (bias, own_bias)
    whole, offsets = np.concatenate(order), np.concatenate(biases)
    found = logn.methods.tau_norm(whole, 0.7, offsets, background=background)(whole @ feature + offsets)
    expected = [3.565444, 2.2, 1.624505]
    np.testing.assert_allclose(found, [-0.6, *expected] if background == 0 else [*expected, -0.6], atol=SCORES)


def test_defaults_are_those_that_the_authors_published():
    # NorCal's gamma 0.6 on image counts; FRACAL's lambda 2 and base 10, in both forms.
    np.testing.assert_allclose(logn.methods.norcal(N).shift, -0.6 * np.log(N), atol=1e-12)
    dimensions = np.array([1.795877, 1.0, 1.0])
    frequency = -np.log10(np.array([0.6, 0.2, 0.01])) - np.log10(3)
    shift = logn.methods.fracal([60, 20, 1], 100, dimensions).shift
    np.testing.assert_allclose(shift, frequency - 2 * np.log(dimensions), atol=1e-12)
    spatial = -np.log10(dimensions**2 / (dimensions**2).sum()) - np.log10(3)
    np.testing.assert_allclose(
        logn.methods.FracalSigmoid.fit([60, 20, 1], 100, dimensions).shift, frequency + spatial, atol=1e-12
    )
    np.testing.assert_allclose(logn.methods.inverse_image_frequency(N).scale, np.log(112 / (N + 1)) + 1, atol=1e-12)


@pytest.mark.parametrize("background", [None, 0, -1])
def test_a_temperature_divides_the_background_too(background):
    np.testing.assert_allclose(logn.methods.temperature(4, 2.0, background=background)(T), T / 2, atol=1e-15)


def test_cascade_averages_logits():
    stages = np.array([[1, 0.8, 0.2, 1.5], [0.5, 1, 0, 2], [0.2, 1.2, 0.4, 1]])
    np.testing.assert_allclose(softmax(stages.mean(axis=0)), [0.173058, 0.266923, 0.119936, 0.440082], atol=SCORES)
    np.testing.assert_allclose(softmax(stages).mean(axis=0), [0.174708, 0.267167, 0.121192, 0.436933], atol=SCORES)


@pytest.mark.parametrize(
    ("variant", "factors"),
    [
        ("relative", [-2.207275, 2.312535, 4.700480]),
        ("base2", [0.150560, 3.472488, 6.794416]),
        ("base10", [0.045323, 1.045323, 2.045323]),
    ],
)
def test_other_inverse_image_frequencies(variant, factors):
    np.testing.assert_allclose(logn.methods.inverse_image_frequency(N, variant).scale, factors, atol=1e-6)
