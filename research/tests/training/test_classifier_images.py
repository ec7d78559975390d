"""What a classifier sees of its images, in training and at test time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logn_research.datasets.labelled_images import array_images
from logn_research.datasets.samplers import RandomSampler
from logn_research.training.batches import (
    CROP_TRIES,
    ClassifierBatches,
    ImageAugmentation,
    ImageStream,
    as_batch,
    change_colours,
    middle,
    prepared_batch,
    random_crop,
    shift_and_flip,
)

from logn.errors import InputError

STRONG = ImageAugmentation(shift=3, flip=0.5, colour=0.4)


def batches_of(images, how=STRONG, **options):
    sampler = RandomSampler(list(images.labels[:, None]), images.num_classes)
    return ClassifierBatches(ImageStream(sampler, 8, 0), images, how, **{"size": 32, "resize": 32, **options})


@given(st.integers(8, 60), st.integers(8, 60), st.integers(4, 8), st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_the_middle_is_a_square_of_the_wanted_side(height, width, size, more):
    image = np.zeros((height, width, 3), np.uint8)
    assert middle(image, size, size + more).shape == (size, size, 3)


def test_the_middle_of_an_image_of_the_right_size_is_itself(striped):
    image = striped.image(0)
    np.testing.assert_array_equal(middle(image, 32, 32), image)
    np.testing.assert_array_equal(middle(image, 28, 32), image[2:30, 2:30])


@given(st.integers(16, 50), st.integers(0, 4), st.floats(0.05, 1.0), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_random_crop_lies_in_the_image(height, more, least_area, seed):
    # Rows and columns are numbered, so the result tells where it was cut out.
    width = height + more
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(height)[:, None], np.arange(width)
    draws = np.random.default_rng(seed).random(2 * CROP_TRIES + 2)
    crop = random_crop(image, 16, least_area, draws)
    assert crop.shape == (16, 16, 3)
    rows, columns = crop[:, 0, 0].astype(int), crop[0, :, 1].astype(int)
    assert (np.diff(rows) >= 0).all()
    assert (np.diff(columns) >= 0).all()
    assert rows[-1] < height
    assert columns[-1] < width
    share = (rows[-1] - rows[0] + 2) * (columns[-1] - columns[0] + 2) / (height * width)
    assert share > 0.5 * least_area


def test_an_image_out_of_which_no_crop_fits_gives_its_middle():
    image = np.random.default_rng(0).integers(0, 256, (6, 60, 3)).astype(np.uint8)
    draws = np.random.default_rng(1).random(2 * CROP_TRIES + 2)
    np.testing.assert_array_equal(random_crop(image, 16, 1.0, draws), middle(image, 16, 16))


def test_shifts_repeat_the_edge_and_flips_mirror():
    image = np.arange(12, dtype=np.uint8).reshape(1, 3, 4, 1).repeat(3, axis=3)
    (moved,) = shift_and_flip(image, np.array([[1, -1]]), np.array([False]))
    np.testing.assert_array_equal(moved[..., 0], [[1, 2, 3, 3], [1, 2, 3, 3], [5, 6, 7, 7]])
    (mirrored,) = shift_and_flip(image, np.array([[0, 0]]), np.array([True]))
    np.testing.assert_array_equal(mirrored, image[0, :, ::-1])


def test_colours_change_as_they_should():
    images = torch.rand(3, 3, 4, 4) * 0.6 + 0.2
    torch.testing.assert_close(change_colours(images, 0.4, np.full((3, 3), 0.5)), images)
    brighter, less_contrast, grey = change_colours(
        images, 0.9999, np.array([[0.75, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]])
    )
    torch.testing.assert_close(brighter, (images[0] * 1.49995).clamp(max=1), atol=1e-4, rtol=0)
    assert less_contrast.std() < 1e-3
    torch.testing.assert_close(grey[0], grey[2], atol=1e-3, rtol=0)
    assert grey[0].std() > 0.01


def test_test_images_are_the_pixels(striped):
    batch = prepared_batch(striped, range(3), size=32, resize=32)
    torch.testing.assert_close(batch, as_batch(np.stack([striped.image(place) for place in range(3)])))
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert prepared_batch(striped, range(3), size=24, resize=28).shape == (3, 3, 24, 24)


@pytest.mark.parametrize("how", [STRONG, ImageAugmentation(least_area=0.3, flip=0.5)])
def test_a_batch_is_the_same_on_any_number_of_processes(striped, how):
    whole = batches_of(striped, how)[5]
    parts = [batches_of(striped, how, rank=rank, world_size=2)[5] for rank in range(2)]
    for rank, part in enumerate(parts):
        torch.testing.assert_close(part.images, whole.images[rank::2], rtol=0, atol=0)
        assert part.image_ids == whole.image_ids[rank::2]
        assert part.targets.tolist() == striped.labels[part.image_ids].tolist()


def test_workers_make_the_same_batches(striped):
    batches = batches_of(striped)
    for mine, theirs in zip(batches.iterate(2, 4), batches.iterate(2, 4, workers=1), strict=True):
        torch.testing.assert_close(mine.images, theirs.images, rtol=0, atol=0)
    assert not torch.equal(batches[2].images, batches[3].images)


def test_images_of_several_sizes_are_brought_to_one(striped):
    large = array_images(np.repeat(striped.pixels, 2, axis=1), striped.labels, striped.class_names)
    assert batches_of(large)[0].images.shape == (8, 3, 32, 32)


@pytest.mark.parametrize("wrong", [{"flip": 1.5}, {"colour": 1.0}, {"least_area": 0.0}])
def test_impossible_augmentations_are_refused(wrong):
    with pytest.raises(InputError, match=f"Expected `{next(iter(wrong))}`"):
        ImageAugmentation(**wrong)
