"""Which classes there are and on which image: alphabet, frequencies, plans."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logn_research.datasets.glyphs.alphabet import (
    STYLES,
    choose_alphabet,
    drawable_characters,
    glyph_alpha,
    template_correlation,
)
from logn_research.datasets.glyphs.plan import (
    MOST_OBJECTS,
    long_tailed_counts,
    mix_families,
    plan_training,
    plan_validation,
)
from logn_research.datasets.glyphs.settings import GlyphSettings

from logn.data.class_counts import frequency_groups
from logn.demo.problem import TEST_IMAGES, TRAINING_IMAGES, plan
from logn.errors import InputError


def shares(counts):
    groups = frequency_groups(counts).tolist()
    return [groups.count(group) / len(groups) for group in "rcf"]


@pytest.mark.parametrize(("classes", "images"), [(100, 2400), (100, 1200), (50, 800), (1203, 12_000), (300, 100_000)])
def test_shares_of_lvis(classes, images):
    counts = long_tailed_counts(classes, images)
    np.testing.assert_allclose(shares(counts), [0.39, 0.38, 0.23], atol=0.015)
    assert counts.min() == 2
    assert (np.diff(counts) <= 0).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 120), st.integers(0, 9))
def test_training_plan_holds_the_counts(classes, images, seed):
    counts = long_tailed_counts(classes, images)
    plan = plan_training(counts, images, np.random.default_rng(seed))
    present = np.bincount(np.concatenate([np.unique(labels) for labels in plan]), minlength=classes)
    assert len(plan) == images
    assert all(len(labels) >= 4 for labels in plan)
    if counts.sum() <= 7 * images:  # otherwise a minimum of one image a class is more than fits
        assert all(len(labels) <= MOST_OBJECTS for labels in plan)
    # Only classes of the upper quarter may stand on more images, where some would have been empty.
    assert (present >= counts).all()
    np.testing.assert_array_equal(
        present[counts < np.quantile(counts, 0.75)], counts[counts < np.quantile(counts, 0.75)]
    )


def test_the_plan_of_the_demonstration_follows_from_its_families():
    with (files("logn.demo") / "glyphs.npz").open("rb") as stream, np.load(stream) as stored:
        families = stored["families"]
    generator = np.random.default_rng((0, 0))
    counts = long_tailed_counts(100, TRAINING_IMAGES)[mix_families(families, generator)]
    planned = plan_training(counts, TRAINING_IMAGES, generator) + plan_validation(100, TEST_IMAGES, generator)
    for ours, shipped in zip(planned, plan()["train"] + plan()["test"], strict=True):
        np.testing.assert_array_equal(ours, shipped)


def test_validation_is_level():
    plan = plan_validation(100, 480, np.random.default_rng(0))
    objects = np.bincount(np.concatenate(plan), minlength=100)
    images = np.bincount(np.concatenate([np.unique(labels) for labels in plan]), minlength=100)
    assert images.max() - images.min() <= 1
    assert objects.max() <= 1.25 * objects.min()
    assert {len(labels) for labels in plan} == set(range(4, 13))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(0, 9))
def test_every_family_gets_frequent_and_rare_ranks(families, seed):
    ranks = mix_families(families, np.random.default_rng(seed))
    assert sorted(ranks.tolist()) == list(range(len(families)))
    biggest = max(families, key=families.count)
    mine = np.sort(ranks[np.array(families) == biggest])
    assert mine[0] < len(set(families))
    # Ranks are dealt in rounds, so no more than one of a family's ranks lies within a full round.
    full = sum(1 for rank in mine if rank < len(set(families)))
    assert full == 1


def test_frequent_twin_for_every_rare_class():
    alphabet = choose_alphabet(100, np.random.default_rng(0))
    counts = long_tailed_counts(100, 2400)[mix_families(alphabet.families, np.random.default_rng(0))]
    families = np.array(alphabet.families)
    for family in np.unique(families):
        assert set(frequency_groups(counts[families == family])) == {"r", "c", "f"}


def test_families_look_alike_and_can_be_told_apart():
    alphabet = choose_alphabet(100, np.random.default_rng(1))
    families = np.array(alphabet.families)
    correlation = template_correlation(alphabet.characters)
    same = (families[:, None] == families[None]) & ~np.eye(100, dtype=bool)
    assert np.bincount(families).tolist() == [5] * 20
    assert correlation[same].min() >= 0.75
    assert correlation[~np.eye(100, dtype=bool)].max() <= 0.9
    assert not set(alphabet.distractors) & set(alphabet.characters)


def test_as_many_classes_as_lvis():
    alphabet = choose_alphabet(1203, np.random.default_rng(0))
    assert len(set(alphabet.characters)) == 1203
    assert len(set(alphabet.names)) == 1203
    assert set(alphabet.characters) <= set(drawable_characters())


@pytest.mark.parametrize("classes", [1, 2, 4, 7, 11])
def test_few_classes(classes):
    alphabet = choose_alphabet(classes, np.random.default_rng(0))
    assert len(alphabet.characters) == len(alphabet.families) == classes


def test_every_style_draws_its_own_glyph():
    shapes = {glyph_alpha("g", style).tobytes() for style in range(len(STYLES))}
    assert len(shapes) == len(STYLES) == 12


@pytest.mark.parametrize(
    "change", [{"classes": 0}, {"classes": 1204}, {"train": 0}, {"dev": 0}, {"size": 8}, {"seed": -1}, {"masks": "png"}]
)
def test_bad_settings_are_named(change):
    name = next(iter(change))
    with pytest.raises(InputError, match=f"Expected `{name}` to be .* but got"):
        GlyphSettings(**change)


@pytest.mark.parametrize("classes", [0, 5000])
def test_bad_alphabets_are_named(classes):
    with pytest.raises(InputError, match="but got"):
        choose_alphabet(classes, np.random.default_rng(0))
