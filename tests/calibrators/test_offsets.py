"""Shift, and scale, of each class by labelled rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logn
from logn.calibrators import labelled_fit
from logn.calibrators.labelled_fit import fit_to_labels
from logn.logits.arrays import softmax


def draw(rows, seed, mix=(0.7, 0.2, 0.1), bias=(2.0, 0.0, -1.0)):
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(mix), size=rows, p=mix)
    return logn.LabelledRows(2 * (2 * np.eye(len(mix))[labels] + rng.normal(size=(rows, len(mix)))) + bias, labels)


def penalised_loss(shift, rows, strength, weight, class_weight):
    """As the module's docstring writes it."""
    scores = softmax(rows.logits + shift)[np.arange(len(rows)), rows.labels]
    return -(weight * np.log(scores)).sum() + strength / 2 * (class_weight * shift**2).sum()


def test_it_is_the_minimum_of_the_loss(monkeypatch):
    monkeypatch.setattr(labelled_fit, "STRENGTHS", (10.0,))
    rows = draw(200, 0)
    found = fit_to_labels(rows, logn.ClassAffine.identity(3), "softmax").affine.shift
    seen = np.bincount(rows.labels)
    class_weight = (1 / seen) * 200 / 3  # all classes weigh alike, and all rows together 200
    weight = class_weight[rows.labels]
    best = penalised_loss(found, rows, 10.0, weight, class_weight)
    for column in range(3):  # an independent check: no step in any direction is better
        for step in (-1e-3, 1e-3):
            moved = found + step * np.eye(3)[column]
            assert penalised_loss(moved, rows, 10.0, weight, class_weight) > best


def test_with_scales_it_is_the_minimum_of_the_loss_too(monkeypatch):
    monkeypatch.setattr(labelled_fit, "STRENGTHS", (10.0,))
    rows = draw(200, 0)
    affine = fit_to_labels(rows, logn.ClassAffine.identity(3), "softmax", with_scale=True).affine
    centre, spread = rows.logits.mean(axis=0), rows.logits.std(axis=0)
    factor = affine.scale - 1
    shift = affine.shift + factor * centre
    class_weight = (1 / np.bincount(rows.labels)) * 200 / 3
    weight = class_weight[rows.labels]

    def loss(shift, factor):
        scores = softmax(rows.logits + shift + factor * (rows.logits - centre))[np.arange(200), rows.labels]
        return -(weight * np.log(scores)).sum() + 5 * (class_weight * (shift**2 + spread**2 * factor**2)).sum()

    best = loss(shift, factor)
    for column in range(3):
        for step in (-1e-3, 1e-3):
            assert loss(shift + step * np.eye(3)[column], factor) > best
            assert loss(shift, factor + step * np.eye(3)[column]) > best


def test_the_shrinkage_is_one_of_those_on_the_page_and_the_last_of_them_is_the_base():
    base = logn.ClassAffine([1.0, 0.5, 2.0], [-1.0, 0.0, 0.5], method="base")
    rows = draw(120, 8)
    found = fit_to_labels(rows, base, "softmax")
    assert (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, np.inf) == labelled_fit.STRENGTHS
    assert found.strength == labelled_fit.STRENGTHS[int(np.argmin(found.losses))]
    weight = (1 / np.bincount(rows.labels))[rows.labels]
    scores = softmax(base(rows.logits))[np.arange(len(rows)), rows.labels]
    assert found.losses[-1] == pytest.approx(-(weight * np.log(scores)).sum() / weight.sum())
    # Held to the base by a thousand rows of each class, hardly anything moves; by one row, much does.
    away = np.abs(np.array(found.losses) - found.losses[-1])
    assert away[6] < 0.1 * away[0]


def test_sigmoids_are_at_the_minimum_of_their_loss_and_rows_of_no_class_weigh_one(monkeypatch):
    monkeypatch.setattr(labelled_fit, "STRENGTHS", (10.0,))
    rng = np.random.default_rng(11)
    labels = np.repeat([-1, 0, 1], [60, 90, 10])
    real = np.stack([labels == 0, labels == 1], axis=1)
    rows = logn.LabelledRows(2.0 * real + rng.normal(size=(160, 2)), labels)
    found = fit_to_labels(rows, logn.ClassAffine.identity(2), "sigmoid").affine.shift
    class_weight = np.array([50 / 90, 50 / 10])  # a hundred rows with a class, half of the weight for each
    weight = np.where(labels >= 0, class_weight[labels], 1.0)

    def loss(shift):
        moved = rows.logits + shift
        return (weight[:, None] * (np.logaddexp(0, moved) - real * moved)).sum() + 5 * (class_weight * shift**2).sum()

    for column in range(2):
        for step in (-1e-3, 1e-3):
            assert loss(found + step * np.eye(2)[column]) > loss(found)


def test_held_out_rows_get_the_map_that_was_fitted_without_them(monkeypatch):
    monkeypatch.setattr(labelled_fit, "STRENGTHS", (3.0,))
    rows, weight = draw(60, 12), np.ones(60)
    monkeypatch.setattr(labelled_fit, "_weights", lambda *arguments: (weight, np.ones(3)))
    total, folds = 0.0, labelled_fit._folds(rows.units, 0)
    for number in range(5):
        kept = labelled_fit._prepared(rows, rows.logits, weight, np.ones(3), None, folds != number)
        shift, factor = labelled_fit._minimum(kept, 3.0, "softmax", True)
        fitted = logn.ClassAffine(1 + factor, shift - factor * rows.logits[folds != number].mean(axis=0))
        scores = softmax(fitted(rows.logits[folds == number]))
        total -= np.log(scores[np.arange(len(scores)), rows.labels[folds == number]]).sum()
    found = fit_to_labels(rows, logn.ClassAffine.identity(3), "softmax", with_scale=True)
    assert found.losses[0] == pytest.approx(total / 60, rel=1e-9)


def test_images_are_spread_over_five_folds_and_never_cut():
    units = np.repeat(np.arange(100, 123), 3)
    folds = labelled_fit._folds(units, seed=0)
    assert all(len(np.unique(folds[units == unit])) == 1 for unit in np.unique(units))
    assert sorted(np.bincount(folds) // 3) == [4, 4, 5, 5, 5]
    assert sorted(labelled_fit._folds(np.array([7, 9, 7]), seed=0).tolist()) in ([0, 0, 1], [0, 1, 1])


def test_no_class_is_turned_upside_down(monkeypatch):
    monkeypatch.setattr(labelled_fit, "STRENGTHS", (1.0,))
    rng = np.random.default_rng(9)
    labels = np.repeat([0, 1], 50)
    logits = np.stack([3.0 * (labels == 0), -3.0 * (labels == 1)], axis=1) + rng.normal(size=(100, 2))
    assert logn.vector_scaling(logn.LabelledRows(logits, labels)).scale[1] == pytest.approx(0.1)


def test_a_known_bias_is_found():
    found = logn.offsets(draw(20_000, 1))
    relative = found.shift - found.shift.mean()
    np.testing.assert_allclose(relative, [-5 / 3, 1 / 3, 4 / 3], atol=0.1)
    assert found.scale.tolist() == [1.0, 1.0, 1.0]


def test_vector_scaling_finds_a_known_scale():
    rows = draw(20_000, 2, bias=(0.0, 0.0, 0.0))
    found = logn.vector_scaling(logn.LabelledRows(rows.logits * [4.0, 1.0, 1.0], rows.labels))
    np.testing.assert_allclose(found.scale / found.scale[1], [0.25, 1.0, 1.0], rtol=0.15)
    assert found.method == "vector"


def test_a_base_that_is_right_is_kept_where_labels_are_few():
    right = logn.ClassAffine([1.0, 1.0, 1.0], [-2.0, 0.0, 1.0], method="right")
    away = [np.abs(np.ptp(logn.offsets(draw(30, seed), right).shift - right.shift)) for seed in range(10)]
    alone = [np.ptp(logn.offsets(draw(30, seed)).shift - right.shift) for seed in range(10)]
    assert np.mean(away) < 0.6 * np.mean(alone)


def test_classes_without_a_label_stay_where_the_base_put_them():
    rows = draw(300, 3)
    wide = logn.LabelledRows(np.hstack([rows.logits, rows.logits[:, :1] - 3]), rows.labels)
    base = logn.ClassAffine([1.0, 1.0, 1.0, 0.5], [0.0, 0.0, 0.0, 7.0])
    found = logn.vector_scaling(wide, base)
    assert (found.scale[3], found.shift[3]) == (0.5, 7.0)
    assert found.settings["unlabelled_classes"] == 1


@pytest.mark.parametrize("background", [0, -1])
def test_the_background_is_left_alone(background):
    rows = draw(500, 4, mix=(0.6, 0.3, 0.1))
    for make in (logn.offsets, logn.vector_scaling):
        found = make(rows, background=background)
        assert (found.scale[background], found.shift[background]) == (1.0, 0.0)
        assert found.background == background


def test_sigmoids_and_rows_of_no_class():
    rng = np.random.default_rng(5)
    labels = rng.choice([-1, 0, 1], size=3000, p=[0.5, 0.3, 0.2])
    there = np.stack([labels == 0, labels == 1], axis=1)
    rows = logn.LabelledRows(9.0 * there + 3 * rng.normal(size=there.shape) - 4.5 + [3.0, 0.0], labels)
    found = logn.offsets(rows, activation="sigmoid", target=[0.3, 0.2])
    odds = np.log(0.3 / 0.7) - np.log(0.2 / 0.8)
    assert found.shift[0] - found.shift[1] == pytest.approx(odds - 3.0, abs=0.2)
    with pytest.raises(logn.InputError, match="of a softmax to be columns, but got -1"):
        logn.offsets(rows)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_never_worse_on_held_out_folds_than_the_base_and_the_order_of_classes_does_not_matter(seed):
    rows = draw(80, seed)
    if len(np.unique(rows.labels)) < 3:
        return
    found = logn.offsets(rows)
    assert found.settings["held_out_loss"] <= found.settings["base_loss"]
    order = np.random.default_rng(seed).permutation(3)
    turned = logn.offsets(logn.LabelledRows(rows.logits[:, order], np.argsort(order)[rows.labels]))
    np.testing.assert_allclose(turned.shift, found.shift[order], atol=1e-3)


def test_by_specification_with_a_base_a_target_and_fewer_rows():
    rows = draw(2000, 6)
    moments = logn.ClassMoments(3, mean_probability=True, metadata=logn.StatisticsMetadata(activation="softmax"))
    moments.update(rows.logits)
    inputs = logn.FitInputs(moments, labelled=rows)
    assert inputs.fit("offsets").settings["base"] == "p2p"
    few = inputs.fit("offsets:base=none,rows=100")
    assert (few.settings["base"], few.settings["labelled_rows"]) == ("none", 100)
    mixed = inputs.fit("vector:base=none,target=training").settings["target"]
    np.testing.assert_allclose(mixed, moments.mean_probability)
    # Aimed at the mix that was labelled, all rows weigh alike; nearly nothing is left to gain on logits like these.
    with pytest.raises(logn.InputError, match="labelled rows"):
        logn.fit_method("offsets", moments=moments)


def test_logn_can_be_the_base(monkeypatch):
    monkeypatch.setattr(labelled_fit, "STRENGTHS", (np.inf,))  # nothing but the base
    rows = draw(300, 13)
    moments = logn.ClassMoments(3, metadata=logn.StatisticsMetadata(activation="softmax"))
    moments.update(rows.logits)
    found = logn.FitInputs(moments, labelled=rows).fit("offsets:base=logn")
    assert found.settings["base"] == "logn"
    assert found == logn.logit_normalization(moments)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.zeros(50, int), "at least two classes, but all 50 are of one"),
        (np.arange(50), "columns from 0 to 2, but got 3 for row 3"),
        (np.zeros(49, int), "one whole number for each of the 50 rows"),
        (np.zeros(50), "one whole number"),
    ],
)
def test_bad_labels_get_a_sentence(labels, words):
    with pytest.raises(logn.InputError, match=words):
        logn.offsets(logn.LabelledRows(np.random.default_rng(0).normal(size=(50, 3)), labels))


def test_other_columns_and_nan_are_refused():
    with pytest.raises(logn.InputError, match="to have 4 columns, but got 3"):
        logn.offsets(draw(50, 7), logn.ClassAffine.identity(4))
    with pytest.raises(logn.InputError, match="finite, but row 0, column 1 is nan"):
        logn.LabelledRows([[0.0, np.nan]], [0])
