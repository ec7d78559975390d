"""Which training images an epoch shows, and the label distribution that follows.

Three answers to a long tail: show every image once (`RandomSampler`), show images of rare classes more often
(`RepeatFactorSampler`), or draw a class first and then one of its images (`ClassBalancedSampler`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn_research.datasets.sample_dataset import SampleDataset

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
SamplerName = Literal["random", "repeat-factor-ceil", "repeat-factor-stochastic", "class-balanced"]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)


#: The paper's share of the images below which a class is repeated, for the 100,000 images of LVIS.
PAPER_THRESHOLD = 0.001


def repeat_factors(image_counts: npt.ArrayLike, num_images: int, threshold: float = PAPER_THRESHOLD) -> FloatArray:
    """How often to show images of a class: `max(1, sqrt(threshold / f))`, `f` its share of the images.

    Example:
        >>> repeat_factors([1, 10, 100], num_images=99_388).round(6)
        array([9.969353, 3.152586, 1.      ])
    """
    counts = np.asarray(image_counts, np.float64)
    share = np.maximum(counts, 1.0) / num_images  # a class without images repeats nothing, so its factor is moot
    return np.where(counts > 0, np.maximum(1.0, np.sqrt(threshold / share)), 1.0)


class ImageSampler(ABC):
    """The order of images in an epoch: the same for the same seed and epoch, on whatever machine.

    Args:
        labels_per_image: The foreground classes of the objects of each image (`SampleDataset.labels_per_image()`).
        num_classes: How many foreground classes there are.
        skip_empty: Leave out images without any object, as the usual training recipes do.
    """

    def __init__(self, labels_per_image: Sequence[npt.ArrayLike], num_classes: int, *, skip_empty: bool = True) -> None:
        labels = [np.asarray(entry, np.int64).ravel() for entry in labels_per_image]
        kept = [index for index, entry in enumerate(labels) if len(entry) or not skip_empty]
        if not kept:
            raise InputError("Expected `labels_per_image` to hold at least one image with an object, but got none.")
        self.images = np.array(kept, np.int64)  # positions in the dataset of the images that are shown
        self.num_classes = num_classes
        self._object_image = np.repeat(np.arange(len(kept)), [len(labels[index]) for index in kept])
        self._object_label = np.concatenate([labels[index] for index in kept])
        if len(self._object_label) and not 0 <= self._object_label.min() <= self._object_label.max() < num_classes:
            raise InputError(
                f"Expected `labels_per_image` to be within 0 to {num_classes - 1}, "
                f"but got {self._object_label.min()} to {self._object_label.max()}."
            )
        pairs = np.unique(self._object_image * num_classes + self._object_label)
        self._pair_image, self._pair_label = np.divmod(pairs, num_classes)

    @property
    def image_counts(self) -> IntArray:
        """In how many of the images each class occurs."""
        return np.bincount(self._pair_label, minlength=self.num_classes).astype(np.int64)

    @abstractmethod
    def expected_repeats(self) -> FloatArray:
        """How often an epoch shows each of `images`, on average."""

    @abstractmethod
    def _epoch(self, generator: np.random.Generator) -> IntArray:
        """Positions in `images` that one epoch shows, in any order."""

    def indices(
        self, epoch: int = 0, seed: int = 0, *, rank: int = 0, world_size: int = 1, pad: bool = True
    ) -> IntArray:
        """The dataset positions that one process reads in an epoch, shuffled.

        Args:
            epoch: Number of the epoch; each has its own order.
            seed: Seed of the run.
            rank: Number of this process.
            world_size: How many processes share the epoch.
            pad: Start over from the front until every process has as many images, as distributed training
                needs. Without it nothing comes twice, and some processes get an image less.
        """
        if not 0 <= rank < world_size:
            raise InputError(f"Expected `rank` to be from 0 to `world_size` - 1 = {world_size - 1}, but got {rank}.")
        generator = np.random.default_rng((seed, epoch))
        order = generator.permutation(self._epoch(generator))
        if pad:
            order = np.resize(order, -(-len(order) // world_size) * world_size)
        mine: IntArray = self.images[order[rank::world_size]]
        return mine

    def label_distribution(self) -> FloatArray:
        """The share of each foreground class among the objects that training sees, on average over epochs."""
        seen = np.bincount(
            self._object_label,
            weights=self.expected_repeats()[self._object_image],
            minlength=self.num_classes,
        )
        return np.asarray(seen / seen.sum(), np.float64)


class RandomSampler(ImageSampler):
    """Every image once an epoch, in random order.

    Example:
        >>> sampler = RandomSampler([[0], [0, 1], [], [2]], num_classes=3)
        >>> sampler.indices(epoch=0, seed=0)
        array([3, 0, 1])
        >>> sampler.label_distribution()
        array([0.5 , 0.25, 0.25])
    """

    def expected_repeats(self) -> FloatArray:
        """One each."""
        return np.ones(len(self.images))

    def _epoch(self, generator: np.random.Generator) -> IntArray:
        return np.arange(len(self.images))


class RepeatFactorSampler(ImageSampler):
    """Repeat factor sampling (RFS): an image is shown as often as its rarest class asks.

    Args:
        labels_per_image: The foreground classes of the objects of each image.
        num_classes: How many foreground classes there are.
        threshold: Classes in a smaller share of the images than this are repeated.
        rounding: `"ceil"` rounds the factor up, once and for all (MMDetection); `"stochastic"` shows the
            whole part always and the rest with that probability, drawn again each epoch (Detectron2).
        skip_empty: Leave out images without any object.

    Example:
        >>> labels = [[0], [0, 1], [0], [0, 2]] + [[0]] * 6
        >>> sampler = RepeatFactorSampler(labels, 3, threshold=0.5)
        >>> sampler.repeats.round(6)[:4]
        array([1.      , 2.236068, 1.      , 2.236068])
        >>> len(sampler.indices())
        14
    """

    def __init__(
        self,
        labels_per_image: Sequence[npt.ArrayLike],
        num_classes: int,
        *,
        threshold: float = PAPER_THRESHOLD,
        rounding: Literal["ceil", "stochastic"] = "ceil",
        skip_empty: bool = True,
    ) -> None:
        super().__init__(labels_per_image, num_classes, skip_empty=skip_empty)
        if rounding not in ("ceil", "stochastic"):
            raise InputError(f"Expected `rounding` to be one of ('ceil', 'stochastic'), but got {rounding!r}.")
        if not threshold >= 0:
            raise InputError(f"Expected `threshold` to be zero or more, but got {threshold}.")
        self.rounding = rounding
        factors = repeat_factors(self.image_counts, len(self.images), threshold)
        self.repeats: FloatArray = np.ones(len(self.images))
        np.maximum.at(self.repeats, self._pair_image, factors[self._pair_label])

    def expected_repeats(self) -> FloatArray:
        """The repeat factor of each image, rounded up for `"ceil"`."""
        return np.ceil(self.repeats) if self.rounding == "ceil" else self.repeats.copy()

    def _epoch(self, generator: np.random.Generator) -> IntArray:
        whole = np.floor(self.repeats)
        extra = generator.random(len(whole)) < self.repeats - whole
        times = np.ceil(self.repeats) if self.rounding == "ceil" else whole + extra
        return np.repeat(np.arange(len(times)), times.astype(np.int64))


class ClassBalancedSampler(ImageSampler):
    """Draw a class with equal chances, then one of its images; an epoch is as long as there are images.

    Example:
        >>> sampler = ClassBalancedSampler([[0]] * 9 + [[1]], num_classes=2)
        >>> sampler.label_distribution()
        array([0.5, 0.5])
    """

    def expected_repeats(self) -> FloatArray:
        """Number of images times the chance of each."""
        counts = self.image_counts
        chance = 1.0 / counts[self._pair_label] / np.count_nonzero(counts)
        shares = np.bincount(self._pair_image, weights=chance, minlength=len(self.images))
        return np.asarray(shares * len(self.images), np.float64)

    def _epoch(self, generator: np.random.Generator) -> IntArray:
        chance = self.expected_repeats() / len(self.images)
        return generator.choice(len(self.images), size=len(self.images), p=chance / chance.sum())


def make_sampler(
    name: str, dataset: SampleDataset, *, threshold: float = PAPER_THRESHOLD, skip_empty: bool = True
) -> ImageSampler:
    """The sampler of that name (one of `SAMPLERS`) over the images of a dataset."""
    labels, classes = dataset.labels_per_image(), dataset.num_classes
    if name == "random":
        return RandomSampler(labels, classes, skip_empty=skip_empty)
    if name == "repeat-factor-ceil":
        return RepeatFactorSampler(labels, classes, threshold=threshold, skip_empty=skip_empty)
    if name == "repeat-factor-stochastic":
        return RepeatFactorSampler(labels, classes, threshold=threshold, rounding="stochastic", skip_empty=skip_empty)
    if name == "class-balanced":
        return ClassBalancedSampler(labels, classes, skip_empty=skip_empty)
    raise InputError(f"Expected `name` to be one of {SAMPLERS}, but got {name!r}.")
