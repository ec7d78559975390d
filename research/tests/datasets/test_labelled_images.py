"""Images with one class each: where the pixels come from, subsets, and what is refused."""

import re

import numpy as np
import pytest
from logn_research.datasets.labelled_images import (
    FilePixels,
    LabelledImages,
    array_images,
    read_class_names,
    require_every_class,
)
from logn_research.datasets.samplers import ClassBalancedSampler, make_sampler
from PIL import Image

from logn.errors import InputError

PIXELS = np.arange(5 * 4 * 6 * 3, dtype=np.uint8).reshape(5, 4, 6, 3)


@pytest.fixture
def in_array():
    return array_images(PIXELS, [0, 1, 0, 2, 0], ["cat", "dog", "hen"])


@pytest.fixture
def in_files(tmp_path):
    for number, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    names = tuple(f"{number}.png" for number in range(5))
    return LabelledImages(FilePixels(tmp_path, names), np.array([0, 1, 0, 2, 0]), ("cat", "dog", "hen"))


@pytest.mark.parametrize("source", ["in_array", "in_files"])
def test_images_labels_and_subsets_are_the_same_wherever_the_pixels_lie(source, request):
    images = request.getfixturevalue(source)
    assert (len(images), images.num_classes, images.image_counts.tolist()) == (5, 3, [3, 1, 1])
    np.testing.assert_array_equal(images.image(-1), PIXELS[4])
    part = images.subset([3, -1, 1]).subset([2, 0])
    assert part.labels.tolist() == [1, 2]
    assert part.class_names == images.class_names
    np.testing.assert_array_equal(part.image(0), PIXELS[1])
    np.testing.assert_array_equal(part.stack([1, 0]), PIXELS[[3, 1]])
    assert len(images.subset([])) == 0


def test_an_image_is_a_copy_and_labels_are_read_only(in_array):
    in_array.image(0)[:] = 0
    np.testing.assert_array_equal(in_array.image(0), PIXELS[0])
    with pytest.raises(ValueError, match="read-only"):
        in_array.labels[0] = 2


def test_a_memory_map_is_not_read_into_memory(tmp_path):
    np.save(tmp_path / "pixels.npy", PIXELS)
    images = array_images(np.load(tmp_path / "pixels.npy", mmap_mode="r"), [0] * 5)
    assert isinstance(images.pixels.array, np.memmap)
    assert isinstance(images.subset([1, 2]).pixels.array, np.memmap)
    assert not isinstance(images.image(0), np.memmap)


def test_samplers_take_images_with_one_class(in_array):
    sampler = make_sampler("class-balanced", in_array)
    assert isinstance(sampler, ClassBalancedSampler)
    np.testing.assert_allclose(sampler.label_distribution(), 1 / 3)
    np.testing.assert_allclose(make_sampler("random", in_array).label_distribution(), [0.6, 0.2, 0.2])
    drawn = in_array.labels[np.concatenate([sampler.indices(epoch) for epoch in range(600)])]
    np.testing.assert_allclose(np.bincount(drawn) / len(drawn), 1 / 3, atol=0.04)


def test_a_class_absent_from_training_is_named(in_array):
    require_every_class(in_array)
    with pytest.raises(InputError, match=re.escape("no image of class 1 (`dog`).")):
        require_every_class(in_array.subset([0, 3]))
    many = array_images(PIXELS[:1], [0], [f"c{number}" for number in range(9)])
    with pytest.raises(
        InputError, match=re.escape("classes 1 (`c1`), 2 (`c2`), 3 (`c3`), 4 (`c4`), 5 (`c5`) and 3 more")
    ):
        require_every_class(many)


def test_a_missing_and_a_broken_file_are_named_on_read(in_files, tmp_path):
    (tmp_path / "1.png").unlink()
    (tmp_path / "2.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"1\.png` to exist"):
        in_files.image(1)
    with pytest.raises(InputError, match=r"2\.png` to be a whole image"):
        in_files.image(2)


def test_images_of_several_sizes_do_not_stack(tmp_path):
    for number, pixels in enumerate([PIXELS[0], PIXELS[0][:2]]):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    images = LabelledImages(FilePixels(tmp_path, ("0.png", "1.png")), np.array([0, 0]), ("cat",))
    with pytest.raises(InputError, match="to be of one size"):
        images.stack([0, 1])


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 1, 0, 3, 0], "from 0 to 2, but got 3 for image 3"),
        ([0, 1, -1, 2, 0], "but got -1 for image 2"),
        ([0, 1, 0], "to be 5 whole numbers, one an image"),
        ([0.0, 1.0, 0.0, 2.0, 0.5], "to be 5 whole numbers"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, words):
    with pytest.raises(InputError, match=re.escape(words)):
        array_images(PIXELS, labels, ["cat", "dog", "hen"])


def test_other_bad_input_is_refused_in_one_sentence(in_array, tmp_path):
    with pytest.raises(InputError, match="uint8 of shape"):
        array_images(PIXELS.astype(np.float32), [0] * 5)
    with pytest.raises(InputError, match="`families` to be one number for each of the 1 classes, but got 2"):
        array_images(PIXELS, [0] * 5, families=[0, 1])
    with pytest.raises(InputError, match="within 5 images, but got 5 to 5"):
        in_array.subset([5])
    with pytest.raises(InputError, match="got truth values"):
        in_array.subset(in_array.labels == 0)
    with pytest.raises(IndexError, match="within 5 images"):
        in_array.image(5)
    names = tmp_path / "names.txt"
    with pytest.raises(InputError, match="there is none"):
        read_class_names(names)
    names.write_text("cat\n\ndog\n")
    with pytest.raises(InputError, match="on line 2 of"):
        read_class_names(names)
    names.write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        read_class_names(names)
    names.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="UTF-8"):
        read_class_names(names)
