"""The exponential profile of long-tailed CIFAR, thinning and holding out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logn_research.datasets.labelled_images import array_images
from logn_research.datasets.long_tail import exponential_profile, held_out, thinned

from logn.errors import InputError

imbalances = st.floats(1, 1000)


def numbered_images(counts, shuffle_seed=0):
    """Tiny images whose first pixel tells which one it is."""
    labels = np.random.default_rng(shuffle_seed).permutation(np.repeat(np.arange(len(counts)), counts))
    pixels = np.zeros((len(labels), 1, 1, 3), np.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = np.arange(len(labels)) % 256, np.arange(len(labels)) // 256
    return array_images(pixels, labels, [str(number) for number in range(len(counts))])


def identities(images):
    return {tuple(images.image(place).ravel().tolist()) for place in range(len(images))}


@pytest.mark.parametrize(
    ("most", "classes", "imbalance", "total"),
    [
        (500, 100, 100, 10847),
        (500, 100, 50, 12608),
        (500, 100, 10, 19573),
        (5000, 10, 100, 12406),
        (5000, 10, 10, 20431),
    ],
)
def test_the_totals_of_long_tailed_cifar_as_published(most, classes, imbalance, total):
    assert exponential_profile(most, classes, imbalance).sum() == total


@given(st.integers(1, 5000), st.integers(1, 300), imbalances)
def test_the_profile_falls_from_the_most_to_its_imbalanced_part(most, classes, imbalance):
    profile = exponential_profile(most, classes, imbalance)
    assert profile[0] == most
    assert (np.diff(profile) <= 0).all()
    assert profile.min() >= 1
    if classes > 1:
        assert profile[-1] == max(1, int(most / imbalance * (1 + 1e-12)))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any), imbalances, st.integers(0, 5))
def test_thinning_keeps_what_the_profile_asks_for_or_all(counts, imbalance, seed):
    images = numbered_images(counts)
    thin = thinned(images, imbalance, seed=seed)
    wanted = exponential_profile(max(counts), len(counts), imbalance)
    assert thin.image_counts.tolist() == np.minimum(counts, wanted).tolist()
    assert identities(thin) <= identities(images)
    assert len(identities(thin)) == len(thin)
    assert thin.labels.tolist() == thinned(images, imbalance, seed=seed).labels.tolist()
    assert thinned(images, 1.0, seed=seed).image_counts.tolist() == counts


@given(imbalances, imbalances, st.integers(0, 5))
def test_a_stronger_imbalance_keeps_some_of_what_a_weaker_one_keeps(first, second, seed):
    images = numbered_images([20, 20, 20, 20])
    weaker, stronger = (thinned(images, imbalance, seed=seed) for imbalance in sorted((first, second)))
    assert identities(stronger) <= identities(weaker)


def test_the_seed_says_which_images_stay():
    images = numbered_images([30, 30, 30])
    kept = [identities(thinned(images, 10, seed=seed)) for seed in (0, 0, 1)]
    assert kept[0] == kept[1] != kept[2]


@given(st.lists(st.integers(4, 9), min_size=1, max_size=5), st.integers(1, 3), st.integers(0, 5))
def test_holding_out_splits_the_images_evenly(counts, each, seed):
    images = numbered_images(counts)
    rest, out = held_out(images, each, seed=seed)
    assert out.image_counts.tolist() == [each] * len(counts)
    assert identities(rest) | identities(out) == identities(images)
    assert not identities(rest) & identities(out)


def test_bad_input_is_refused_in_one_sentence():
    images = numbered_images([5, 2])
    with pytest.raises(InputError, match=r"1 or more, but got 0\.01; 0\.01 is perhaps 100\."):
        thinned(images, 0.01)
    with pytest.raises(InputError, match="but got nan"):
        exponential_profile(10, 2, float("nan"))
    with pytest.raises(InputError, match="at least 1, but got 0 and 2"):
        exponential_profile(0, 2, 10)
    with pytest.raises(InputError, match="class `1` has 2"):
        held_out(images, 2)
    with pytest.raises(InputError, match="but 0"):
        held_out(images, 0)
    with pytest.raises(InputError, match="it has none"):
        thinned(images.subset([]), 10)
