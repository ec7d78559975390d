"""Thinning a set of labelled images until its classes are long-tailed, and the curves that this follows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn_research.datasets.labelled_images import IntArray, LabelledImages


def exponential_profile(most: int, num_classes: int, imbalance: float) -> IntArray:
    """How many images each class keeps in the usual long-tailed twins of CIFAR: `most / imbalance^(c / (C - 1))`.

    The first class keeps `most`, the last one `most / imbalance`, both rounded down as everybody does, but no class
    is left without an image.

    Args:
        most: Images of the first class.
        num_classes: How many classes there are.
        imbalance: Ratio of the first class to the last one, 1 or more.

    Example:
        >>> exponential_profile(5000, 10, 100).tolist()
        [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
        >>> int(exponential_profile(500, 100, 100).sum())
        10847
    """
    if not (math.isfinite(imbalance) and imbalance >= 1):
        hint = f"; {imbalance} is perhaps {1 / imbalance:g}" if 0 < imbalance < 1 else ""
        raise InputError(
            f"Expected `imbalance` to be the ratio of the largest class to the smallest, 1 or more, "
            f"but got {imbalance}{hint}."
        )
    if most < 1 or num_classes < 1:
        raise InputError(f"Expected `most` and `num_classes` to be at least 1, but got {most} and {num_classes}.")
    places = np.arange(num_classes) / max(1, num_classes - 1)
    wanted = most * (1.0 / imbalance) ** places
    # A product such as 500 * 0.01 ends a hair below the whole number that is meant.
    return np.maximum(1, np.floor(wanted * (1 + 1e-12))).astype(np.int64)


def thinned(images: LabelledImages, imbalance: float, *, seed: int = 0) -> LabelledImages:
    """Thin out the images until the set is long-tailed: class 0 keeps the most, the last class the fewest.

    Which images stay depends on the seed alone, class by class; a stronger imbalance keeps some of those that a
    weaker one keeps. A class that has fewer images than the curve asks for keeps them all.

    Args:
        images: Training images; thin neither dev nor test.
        imbalance: Ratio of the first class to the last one, 1 or more.
        seed: Which images stay.

    Example:
        >>> from logn_research.datasets.labelled_images import array_images
        >>> images = array_images(np.zeros((30, 4, 4, 3), np.uint8), np.repeat(np.arange(3), 10))
        >>> thinned(images, 10).image_counts.tolist()
        [10, 3, 1]
    """
    counts = images.image_counts
    if not len(images):
        raise InputError(f"Expected `{images.source}` to have images to thin, but it has none.")
    wanted = exponential_profile(int(counts.max()), images.num_classes, imbalance)
    kept = [_some(images, label, wanted[label], seed) for label in range(images.num_classes)]
    return images.subset(np.sort(np.concatenate(kept)))


def held_out(images: LabelledImages, each: int, *, seed: int = 0) -> tuple[LabelledImages, LabelledImages]:
    """Split off a balanced set, for sources that have none to choose settings on: the rest, and `each` of a class.

    Example:
        >>> from logn_research.datasets.labelled_images import array_images
        >>> images = array_images(np.zeros((5, 4, 4, 3), np.uint8), [0, 0, 0, 1, 1])
        >>> [part.image_counts.tolist() for part in held_out(images, 1)]
        [[2, 1], [1, 1]]
    """
    short = np.flatnonzero(images.image_counts <= each)
    if each < 1 or len(short):
        named = f"class `{images.class_names[short[0]]}` has {images.image_counts[short[0]]}" if len(short) else each
        raise InputError(
            f"Expected `each` to be at least 1 and to leave every class of `{images.source}` an image, but {named}."
        )
    out = np.sort(np.concatenate([_some(images, label, each, seed) for label in range(images.num_classes)]))
    return images.subset(np.setdiff1d(np.arange(len(images)), out)), images.subset(out)


def _some(images: LabelledImages, label: int, number: int | np.int64, seed: int) -> npt.NDArray[np.int64]:
    """The first of the images of a class, in a random order of its own."""
    places = np.flatnonzero(images.labels == label)
    return np.random.default_rng((seed, label)).permutation(places)[: int(number)]
