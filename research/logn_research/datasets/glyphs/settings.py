"""The settings of a set of glyph scenes, and what follows from them before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from logn.errors import InputError
from logn_research.datasets.glyphs.alphabet import MOST_CLASSES, Alphabet, choose_alphabet
from logn_research.datasets.glyphs.plan import (
    IntArray,
    long_tailed_counts,
    mix_families,
    plan_training,
    plan_validation,
)

#: Goes up whenever the same settings would draw other pictures or write other annotations.
VERSION = 1

SPLITS = ("train", "dev", "test")
MaskForm = Literal["rle", "polygon"]


@dataclass(frozen=True)
class GlyphSettings:
    """The settings of `logn data glyphs`.

    Args:
        classes: How many classes, up to 1,203.
        train: Number of training images, with long-tailed classes.
        dev: Number of images to choose settings on, all classes about equally often.
        test: Number of images to report on, all classes about equally often.
        size: Side of an image in pixels.
        seed: Everything follows from it.
        masks: Masks as compressed run lengths or as polygons.

    Example:
        >>> GlyphSettings(classes=2000)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `classes` to be from 1 to 1203, but got 2000.
    """

    classes: int = 100
    train: int = 2400
    dev: int = 480
    test: int = 480
    size: int = 128
    seed: int = 0
    masks: MaskForm = "rle"

    def __post_init__(self) -> None:
        check_ranges(
            self,
            classes=(1, MOST_CLASSES),
            train=(1, 10_000_000),
            dev=(1, 10_000_000),
            test=(1, 10_000_000),
            size=(64, 4096),
            seed=(0, 2**63 - 1),
        )
        if self.masks not in ("rle", "polygon"):
            raise InputError(f"Expected `masks` to be one of ('rle', 'polygon'), but got {self.masks!r}.")

    def image_count(self, split: str) -> int:
        """Number of images of a split."""
        return {"train": self.train, "dev": self.dev, "test": self.test}[split]


def check_ranges(settings: object, **ranges: tuple[int, int]) -> None:
    """Refuse settings of which one is outside of its range, ends included."""
    for name, (least, most) in ranges.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            raise InputError(f"Expected `{name}` to be from {least} to {most}, but got {value}.")


@dataclass(frozen=True, eq=False)
class GlyphPlan:
    """The characters of the classes (sorted by name) and the classes of the objects of every image of each split."""

    alphabet: Alphabet
    labels: dict[str, list[IntArray]]


def plan_scenes(settings: GlyphSettings) -> GlyphPlan:
    """Decide everything that concerns more than one image.

    Example:
        >>> plan = plan_scenes(GlyphSettings(classes=5, train=20, dev=4, test=4))
        >>> len(plan.alphabet.characters), len(plan.labels["train"])
        (5, 20)
    """
    generator = np.random.default_rng((settings.seed, 0))
    alphabet = sorted_by_name(choose_alphabet(settings.classes, generator))
    counts = long_tailed_counts(settings.classes, settings.train)[mix_families(alphabet.families, generator)]
    return GlyphPlan(
        alphabet,
        {
            "train": plan_training(counts, settings.train, generator),
            "dev": plan_validation(settings.classes, settings.dev, generator),
            "test": plan_validation(settings.classes, settings.test, generator),
        },
    )


def sorted_by_name(alphabet: Alphabet) -> Alphabet:
    """Sort the classes by name, as LVIS does, so that the ids say nothing about families and frequencies."""
    order = np.argsort(alphabet.names, kind="stable").tolist()
    return Alphabet(
        characters=tuple(alphabet.characters[index] for index in order),
        families=tuple(alphabet.families[index] for index in order),
        distractors=alphabet.distractors,
    )
