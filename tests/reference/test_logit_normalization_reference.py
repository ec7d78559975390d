"""Logit Normalization against worked numbers: three foreground classes, the background last."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.conftest import moments_of

import logn
from logn.base.arrays import softmax

X = np.array([[2.0, 0.5, -1.0, 3.0], [0.0, 1.5, -2.0, 4.0], [1.0, -0.5, 0.5, 2.0], [-1.0, 0.0, -3.0, 5.0]])
T = np.array([1.0, 0.8, 0.2, 1.5])
SCORES = 2e-6


@pytest.fixture
def moments():
    return moments_of(X)


def test_exact_statistics(moments):
    np.testing.assert_allclose(moments.mean, [0.5, 0.375, -1.375, 3.5], atol=1e-15)
    np.testing.assert_allclose(moments.variance, [1.666667, 0.729167, 2.229167, 1.666667], atol=1e-6)
    np.testing.assert_allclose(moments.m2 / moments.count, [1.25, 0.546875, 1.671875, 1.25], atol=1e-15)
    assert moments.count.tolist() == [4.0] * 4


def test_baseline_softmax():
    np.testing.assert_allclose(softmax(T), [0.255312, 0.209032, 0.114719, 0.420938], atol=SCORES)


def test_equation_1_on_all_columns(moments):
    logits = logn.logit_normalization(moments, background=None, activation="softmax")(T)
    np.testing.assert_allclose(logits, [0.387297, 0.497706, 1.054893, -1.549189], atol=SCORES)
    np.testing.assert_allclose(softmax(logits), [0.237502, 0.265227, 0.463021, 0.034250], atol=SCORES)


def test_full_formula_logits(moments):
    logits = logn.logit_normalization(moments, background=-1, margin="min")(T)
    np.testing.assert_allclose(logits, [-0.677770, -1.112518, 0.133955, 1.5], atol=SCORES)


def test_official_head_divides_without_eps(moments):
    logits = logn.logit_normalization(moments, background=-1, eps=0.0)(T)
    np.testing.assert_allclose(logits, [-0.677772, -1.112526, 0.133955, 1.5], atol=SCORES)
    np.testing.assert_allclose(softmax(logits), [0.078580, 0.050875, 0.176947, 0.693598], atol=SCORES)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"use_std": False, "margin": 0.0}, [0.131995, 0.122458, 0.386746, 0.358801]),
        ({"strength": 0.0, "margin": 0.0}, [0.209701, 0.246644, 0.110503, 0.433152]),
        ({"strength": 0.0, "use_std": False, "margin": -1.375}, [0.113780, 0.093155, 0.051125, 0.741940]),
        ({"strength": 0.0, "use_std": False, "margin": "min"}, [0.113780, 0.093155, 0.051125, 0.741940]),
        ({"margin": 0.0}, [0.140670, 0.157091, 0.274242, 0.427998]),
        ({}, [0.078580, 0.050875, 0.176946, 0.693598]),
        ({"margin": "min"}, [0.078580, 0.050875, 0.176946, 0.693598]),
        ({"margin": "mean"}, [0.133492, 0.139543, 0.264835, 0.462129]),
        ({"margin": "max"}, [0.159308, 0.216911, 0.294720, 0.329062]),
        ({"margin": "background"}, [0.142325, 0.636635, 0.192258, 0.028782]),
        ({"margin": -4}, [0.013962, 0.003193, 0.041397, 0.941448]),
        ({"std_power": 2.0}, [0.091873, 0.042206, 0.169885, 0.696036]),
    ],
)
def test_components_and_margins(moments, options, expected):
    scores = softmax(logn.logit_normalization(moments, **({"background": -1} | options))(T))
    np.testing.assert_allclose(scores, expected, atol=SCORES)


def test_a_very_negative_margin_leaves_little_foreground(moments):
    scores = softmax(logn.logit_normalization(moments, background=-1, margin=-12.0)(T))
    np.testing.assert_allclose(scores, [3.018781e-05, 2.894172e-07, 2.070349e-04, 9.997625e-01], rtol=1e-6)


def test_a_constant_logit_follows_the_papers_eps():
    constant = moments_of(np.array([[1.0, 0.0], [1.0, 1.0]]))
    affine = logn.logit_normalization(constant, background=None, activation="softmax", active=np.ones(2, bool))
    assert affine(np.array([1.1, 0.5]))[0] == pytest.approx(31.6228, abs=1e-3)


@pytest.mark.parametrize(
    ("margin", "expected"),
    [(-1.0, [0.148154, 0.121298, 0.066570, 0.663979]), (2.0, [0.401415, 0.328650, 0.180367, 0.089568])],
)
def test_a_margin_alone_equals_moving_the_background(moments, margin, expected):
    shifted = logn.logit_normalization(moments, background=-1, margin=margin, strength=0.0, use_std=False)(T)
    moved = T - np.array([0, 0, 0, margin])
    np.testing.assert_allclose(softmax(shifted), expected, atol=SCORES)
    np.testing.assert_allclose(softmax(moved), expected, atol=SCORES)


def test_folding_into_a_linear_layer(moments):
    weight, bias = np.array([[3, 4], [0.6, 0.8], [0, 0.5], [1, -1.0]]), np.array([0.1, 0.2, 0.3, 0.4])
    feature = np.array([1.0, 2.0])
    affine = logn.logit_normalization(moments, background=-1, eps=0.0)
    expected = [7.145654, 0.761202, 0.870707, -0.6]
    np.testing.assert_allclose(affine(weight @ feature + bias), expected, atol=SCORES)
    folded = (affine.scale[:, None] * weight) @ feature + affine.scale * bias + affine.shift
    np.testing.assert_allclose(folded, expected, atol=SCORES)


def equations_1_and_2(rows, background, eps, margin):
    """The paper's equations once more, by loops over the columns."""
    columns = rows.shape[1]
    place = None if background is None else background % columns
    mean = [sum(column) / len(column) for column in rows.T]
    variance = [sum((x - m) ** 2 for x in column) / (len(rows) - 1) for column, m in zip(rows.T, mean, strict=True)]
    std = [(value + eps) ** 0.5 for value in variance]
    classes = [c for c in range(columns) if c != place]
    if margin == "min":
        margin = 0.0 if place is None else min(mean[c] for c in classes)
    return lambda x: [(x[c] - mean[c] + margin) / std[c] if c in classes else x[c] for c in range(columns)]


@given(
    rows=hnp.arrays(np.float64, st.tuples(st.integers(3, 30), st.integers(2, 6)), elements=st.floats(-20, 20)),
    background=st.sampled_from([None, 0, -1]),
    options=st.sampled_from([{}, {"eps": 0.0}, {"eps": 0.5}, {"margin": 0.0}, {"margin": -2.5, "eps": 0.0}]),
)
def test_the_defaults_are_the_papers_equations(rows, background, options):
    assume((rows.std(axis=0) > 1e-2).all() and not ((rows >= 0) & (rows <= 1)).all())
    affine = logn.logit_normalization(moments_of(rows), background=background, active=[True] * rows.shape[1], **options)
    expected = equations_1_and_2(rows, background, **({"eps": 1e-5, "margin": "min"} | options))
    np.testing.assert_allclose(affine(rows[0]), expected(rows[0]), rtol=1e-9, atol=1e-9)
