"""The settings of the glyph classes, and what follows from them before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logn.datasets.glyphs.alphabet import MOST_CLASSES, Alphabet, choose_alphabet
from logn.datasets.glyphs.plan import IntArray, mix_families
from logn.datasets.glyphs.settings import SPLITS, check_ranges, sorted_by_name
from logn.errors import InputError

#: Goes up whenever the same settings would draw other pictures.
VERSION = 2


@dataclass(frozen=True)
class GlyphClassSettings:
    """What `logn data glyph-classes` can be told.

    Args:
        classes: How many classes, up to 1,203.
        most: Training images of the most frequent class.
        fewest: Training images of the rarest class; those between follow a geometric curve.
        dev: Images of each class to choose settings on.
        test: Images of each class to report on.
        size: Side of an image in pixels.
        seed: Everything follows from it.
        similarity: Least correlation of the templates within a family of look-alikes; None for distinct glyphs.

    Example:
        >>> GlyphClassSettings(fewest=10, most=5)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `most` to be at least `fewest` = 10, but got 5.
    """

    classes: int = 100
    most: int = 500
    fewest: int = 3
    dev: int = 20
    test: int = 40
    size: int = 32
    seed: int = 0
    similarity: float | None = 0.75

    def __post_init__(self) -> None:
        check_ranges(
            self,
            classes=(2, MOST_CLASSES),
            most=(1, 1_000_000),
            fewest=(1, 1_000_000),
            dev=(1, 1_000_000),
            test=(1, 1_000_000),
            size=(16, 512),
            seed=(0, 2**63 - 1),
        )
        if self.most < self.fewest:
            raise InputError(f"Expected `most` to be at least `fewest` = {self.fewest}, but got {self.most}.")

    @property
    def images(self) -> int:
        """Number of images of all splits.

        Example:
            >>> GlyphClassSettings(classes=5, most=8, fewest=2, dev=2, test=1).images
            38
        """
        training = int(geometric_counts(self.classes, self.most, self.fewest).sum())
        return training + self.classes * (self.dev + self.test)


@dataclass(frozen=True, eq=False)
class GlyphClassPlan:
    """The characters of the classes (sorted by name) and the class of every image of each split."""

    alphabet: Alphabet
    labels: dict[str, IntArray]


def geometric_counts(num_classes: int, most: int, fewest: int) -> IntArray:
    """Training images of each class, the most frequent first, each a constant share of the one before.

    Example:
        >>> geometric_counts(5, 500, 3).tolist()
        [500, 139, 39, 11, 3]
    """
    return np.rint(np.geomspace(most, fewest, num_classes)).astype(np.int64)


def plan_classes(settings: GlyphClassSettings) -> GlyphClassPlan:
    """Decide everything that concerns more than one image: each family gets frequent and rare members.

    Example:
        >>> plan = plan_classes(GlyphClassSettings(classes=5, most=8, fewest=2, dev=2, test=1))
        >>> sorted(np.bincount(plan.labels["train"]).tolist()), np.bincount(plan.labels["dev"]).tolist()
        ([2, 3, 4, 6, 8], [2, 2, 2, 2, 2])
    """
    generator = np.random.default_rng((settings.seed, 0))
    alphabet = sorted_by_name(choose_alphabet(settings.classes, generator, similarity=settings.similarity))
    ranks = mix_families(alphabet.families, generator)
    images = {
        "train": geometric_counts(settings.classes, settings.most, settings.fewest)[ranks],
        "dev": np.full(settings.classes, settings.dev),
        "test": np.full(settings.classes, settings.test),
    }
    classes = np.arange(settings.classes)
    return GlyphClassPlan(
        alphabet, {split: generator.permutation(np.repeat(classes, images[split])) for split in SPLITS}
    )
