"""Samplers against the numbers of MMDetection's and Detectron2's rules."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logn_research.datasets.samplers import (
    SAMPLERS,
    ClassBalancedSampler,
    RandomSampler,
    RepeatFactorSampler,
    make_sampler,
    repeat_factors,
)

from logn.errors import InputError

TEN_IMAGES = [[0], [0, 1], [0], [0, 2], *([0] for _ in range(6))]

label_lists = st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=1, max_size=30).filter(any)


def test_repeat_factors_on_lvis():
    # LVIS v1 has 99,388 training images with an annotation.
    factors = repeat_factors([1, 5, 10, 11, 50, 99, 100, 5000], 99_388)
    wanted = [9.969353, 4.458430, 3.152586, 3.005873, 1.409879, 1.001958, 1.0, 1.0]
    # By the formula a class in 99 images is repeated and one in 100 is not.
    np.testing.assert_allclose(factors, wanted, atol=5e-7)
    np.testing.assert_array_equal(np.ceil(factors), [10, 5, 4, 4, 2, 2, 1, 1])


def test_ceil_form_repeats_as_mmdetection():
    sampler = RepeatFactorSampler(TEN_IMAGES, 3, threshold=0.5)
    np.testing.assert_allclose(sampler.repeats[:4], [1, 2.236068, 1, 2.236068], atol=5e-7)
    order = sampler.indices(epoch=0, seed=3)
    assert len(order) == 14
    np.testing.assert_array_equal(np.bincount(order), [1, 3, 1, 3, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(np.sort(sampler.indices(epoch=9, seed=1)), np.sort(order))


def test_stochastic_form_draws_the_fraction_anew():
    sampler = RepeatFactorSampler(TEN_IMAGES, 3, threshold=0.5, rounding="stochastic")
    counts = np.stack([np.bincount(sampler.indices(epoch), minlength=10) for epoch in range(2000)])
    assert set(np.unique(counts[:, 1])) == {2, 3}
    np.testing.assert_allclose(counts.mean(axis=0), sampler.expected_repeats(), atol=0.05)


def test_empty_images_are_skipped_and_do_not_count():
    with_empty = RepeatFactorSampler([[], *TEN_IMAGES, []], 3, threshold=0.5)
    without = RepeatFactorSampler(TEN_IMAGES, 3, threshold=0.5)
    np.testing.assert_array_equal(with_empty.repeats, without.repeats)
    np.testing.assert_array_equal(with_empty.indices(), without.indices() + 1)
    assert len(RandomSampler([[], [0]], 1, skip_empty=False).indices()) == 2


@given(label_lists, st.integers(1, 5), st.sampled_from(["random", "ceil", "stochastic", "balanced"]))
def test_processes_share_an_epoch(labels, world_size, kind):
    sampler = make(kind, labels)
    whole = sampler.indices(3, 11)
    shares = [sampler.indices(3, 11, rank=rank, world_size=world_size, pad=False) for rank in range(world_size)]
    np.testing.assert_array_equal(np.sort(np.concatenate(shares)), np.sort(whole))
    padded = [sampler.indices(3, 11, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert len({len(share) for share in padded}) == 1
    assert len(padded[0]) == -(-len(whole) // world_size)
    # They go through it in step: together they are where one process would be.
    np.testing.assert_array_equal(np.stack(padded, axis=1).ravel()[: len(whole)], whole)
    np.testing.assert_array_equal(sampler.indices(3, 11), whole)


@given(label_lists, st.sampled_from(["random", "ceil"]))
def test_label_distribution_is_that_of_the_shown_objects(labels, kind):
    sampler = make(kind, labels)
    shown = np.concatenate([np.asarray(labels[index], np.int64) for index in sampler.indices()])
    np.testing.assert_allclose(sampler.label_distribution(), np.bincount(shown, minlength=5) / len(shown))


def test_a_class_counts_once_in_an_image_however_many_objects_it_has():
    labels = [[0, 0, 0, 1], [0], [0], [1, 1]]
    sampler = RepeatFactorSampler(labels, 2, threshold=0.75)
    assert sampler.image_counts.tolist() == [3, 2]
    np.testing.assert_allclose(sampler.repeats, np.sqrt([1.5, 1, 1, 1.5]))
    # Class 0 is one of three images, class 1 one of two; an epoch draws four.
    chances = ClassBalancedSampler(labels, 2).expected_repeats()
    np.testing.assert_allclose(chances, 4 * np.array([1 / 6 + 1 / 4, 1 / 6, 1 / 6, 1 / 4]))


def test_label_distribution_shifts_from_head_to_tail():
    labels = [[0, 0]] * 98 + [[0, 1], [2]]
    plain = RandomSampler(labels, 3).label_distribution()
    repeated = RepeatFactorSampler(labels, 3, threshold=0.1).label_distribution()
    balanced = ClassBalancedSampler(labels, 3).label_distribution()
    assert plain[0] > repeated[0] > balanced[0]
    assert plain[2] < repeated[2] < balanced[2]


def test_class_balanced_draws_classes_equally():
    labels = [[0]] * 90 + [[1]] * 9 + [[2]]
    sampler = ClassBalancedSampler(labels, 4)  # class 3 has no image and no share
    drawn = np.concatenate([sampler.indices(epoch) for epoch in range(200)])
    shares = np.bincount([labels[index][0] for index in drawn], minlength=4) / len(drawn)
    np.testing.assert_allclose(shares, [1 / 3, 1 / 3, 1 / 3, 0], atol=0.02)
    np.testing.assert_allclose(sampler.label_distribution(), [1 / 3, 1 / 3, 1 / 3, 0])
    np.testing.assert_allclose(sampler.expected_repeats(), [100 / 3 / 90] * 90 + [100 / 3 / 9] * 9 + [100 / 3])


def test_seed_and_epoch_change_the_order():
    sampler = RandomSampler([[0]] * 50, 1)
    orders = {tuple(sampler.indices(epoch, seed).tolist()) for epoch in range(3) for seed in range(3)}
    assert len(orders) == 9


def test_samplers_by_their_names():
    data = SimpleNamespace(labels_per_image=lambda: [*TEN_IMAGES, []], num_classes=3)
    rounded, drawn = (make_sampler(f"repeat-factor-{form}", data, threshold=0.5) for form in ("ceil", "stochastic"))
    for sampler, rounding in ((rounded, "ceil"), (drawn, "stochastic")):
        assert sampler.rounding == rounding
        np.testing.assert_array_equal(sampler.repeats, RepeatFactorSampler(TEN_IMAGES, 3, threshold=0.5).repeats)
    assert isinstance(make_sampler("class-balanced", data), ClassBalancedSampler)
    assert len(make_sampler("random", data).images) == 10
    for name in SAMPLERS:
        assert len(make_sampler(name, data, skip_empty=False).images) == 11
    with pytest.raises(InputError, match="Expected `name` to be one of"):
        make_sampler("sorted", data)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: RandomSampler([[], []], 2), "at least one image"),
        (lambda: RandomSampler([[2]], 2), "within 0 to 1, but got 2 to 2"),
        (lambda: RepeatFactorSampler([[0]], 1, rounding="floor"), "`rounding`"),
        (lambda: RepeatFactorSampler([[0]], 1, threshold=float("nan")), "`threshold`"),
        (lambda: RandomSampler([[0]], 1).indices(rank=2, world_size=2), "`rank`"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(InputError, match=words):
        call()


def make(kind, labels):
    if kind == "random":
        return RandomSampler(labels, 5)
    if kind == "balanced":
        return ClassBalancedSampler(labels, 5)
    return RepeatFactorSampler(labels, 5, threshold=0.6, rounding=kind)
