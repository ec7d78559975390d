"""Augmentation keeps image, boxes and masks together, and is drawn from the given random state only."""

from __future__ import annotations

import numpy as np
import pytest
from logn_research.datasets.sample import Sample
from logn_research.training.augmentation import (
    PAPER_TEST,
    PAPER_TRAIN,
    SMALL_TRAIN,
    Augmentation,
    change_colours,
    fitted_size,
    flip_horizontally,
    resize,
    to_tensors,
)

from logn.errors import InputError


def sample_with_a_square(height=60, width=90, top=10, left=20, side=24):
    mask = np.zeros((1, height, width), np.bool_)
    mask[0, top : top + side, left : left + side] = True
    image = np.full((height, width, 3), 30, np.uint8)
    image[mask[0]] = 200
    boxes = np.array([[left, top, left + side, top + side]], np.float32)
    return Sample(image, boxes, np.array([4]), np.array([False]), 7, lambda: mask)


def box_of(mask):
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


@pytest.mark.parametrize(("height", "width"), [(120, 180), (30, 45), (77, 101)])
def test_resize_moves_all_together(height, width):
    changed = resize(sample_with_a_square(), height, width)
    assert changed.size == (height, width)
    mask = changed.masks()[0]
    np.testing.assert_allclose(box_of(mask), changed.boxes[0], atol=1)
    # Bilinear edges aside, the bright pixels are those of the mask.
    assert np.mean((changed.image[..., 0] > 115) == mask) > 0.98


def test_flip_mirrors_and_twice_is_nothing():
    sample = sample_with_a_square()
    flipped = flip_horizontally(sample)
    np.testing.assert_array_equal(flipped.boxes[0], box_of(flipped.masks()[0]))
    np.testing.assert_array_equal(flipped.image[..., 0] == 200, flipped.masks()[0])
    twice = flip_horizontally(flipped)
    np.testing.assert_array_equal(twice.image, sample.image)
    np.testing.assert_array_equal(twice.boxes, sample.boxes)
    np.testing.assert_array_equal(twice.masks(), sample.masks())


@pytest.mark.parametrize(
    ("size", "wanted"), [((480, 640), (800, 1067)), ((640, 480), (1067, 800)), ((300, 900), (444, 1333))]
)
def test_test_size_is_1333_by_800(size, wanted):
    assert fitted_size(size, 800, 1333) == wanted
    changed = PAPER_TEST(sample_with_a_square(*size), np.random.default_rng(0))
    assert changed.size == wanted
    assert changed.boxes[0, 0] < changed.boxes[0, 2]


def test_paper_recipe_draws_all_sizes_and_flips_half():
    sample = sample_with_a_square(48, 64, left=2)
    generator = np.random.default_rng(0)
    drawn = [PAPER_TRAIN(sample, generator) for _ in range(80)]
    assert {min(changed.size) for changed in drawn} == {640, 672, 704, 736, 768, 800}
    flipped = np.mean([changed.boxes[0, 0] > changed.size[1] / 3 for changed in drawn])
    assert 0.3 < flipped < 0.7
    assert max(max(changed.size) for changed in drawn) <= 1333


def test_same_state_same_result_and_the_sample_stays():
    sample = sample_with_a_square()
    before = sample.image.copy(), sample.boxes.copy()
    augmentation = Augmentation(short_sides=(50, 70), flip=0.5, colour=0.3)
    first, second = (augmentation(sample, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(first.image, second.image)
    np.testing.assert_array_equal(first.boxes, second.boxes)
    np.testing.assert_array_equal(sample.image, before[0])
    np.testing.assert_array_equal(sample.boxes, before[1])


def test_small_preset_keeps_geometry_and_changes_colours():
    sample = sample_with_a_square()
    generator = np.random.default_rng(0)
    drawn = [SMALL_TRAIN(sample, generator) for _ in range(20)]
    assert all(np.array_equal(changed.boxes, sample.boxes) and changed.size == sample.size for changed in drawn)
    assert len({changed.image.tobytes() for changed in drawn}) == 20


def test_colours_stay_within_range():
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    for seed in range(20):
        changed = change_colours(image, 0.9, np.random.default_rng(seed))
        assert changed.dtype == np.uint8
    np.testing.assert_array_equal(change_colours(image, 0.0, np.random.default_rng(0)), image)


def test_tensors_are_what_torchvision_takes():
    torch = pytest.importorskip("torch")
    sample = sample_with_a_square()
    image, target = to_tensors(sample)
    assert (image.shape, image.dtype) == ((3, 60, 90), torch.float32)
    assert image.max().item() == pytest.approx(200 / 255)
    assert target["labels"].tolist() == [5]
    assert target["boxes"].tolist() == sample.boxes.tolist()
    assert target["masks"].shape == (1, 60, 90)
    crowd = Sample(sample.image, sample.boxes, sample.labels, np.array([True]), 7, sample.mask_source)
    assert len(to_tensors(crowd, masks=False)[1]["boxes"]) == 0


@pytest.mark.parametrize("settings", [{"flip": 1.5}, {"colour": -0.1}, {"colour": 1.0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=f"Expected `{next(iter(settings))}`"):
        Augmentation(**settings)
