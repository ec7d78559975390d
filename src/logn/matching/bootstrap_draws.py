"""Bootstrap draws: how often each image, or each row of a classifier, is drawn in each replicate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Draws:
    """Draws of images with repetition, each of as many as there are; the same seed gives the same draws.

    Args:
        num_images: How many images, or rows, there are.
        number: How many draws.
        seed: Of the random generator.
        multinomial: Draw how often each image comes instead of one image after the other. The draws are distributed
            alike, but differ for the same seed: published intervals rest on them.

    Example:
        >>> draws = Draws(num_images=5, number=3)
        >>> draws.counts().sum(axis=1).tolist(), [len(block) for block in draws.blocks(2)]
        ([5, 5, 5], [2, 1])
    """

    num_images: int
    number: int
    seed: int = 0
    multinomial: bool = False

    def counts(self) -> Counts:
        """`(number, I)` how often each draw has each image."""
        return next(self.blocks(max(self.number, 1)), np.empty((0, self.num_images), np.int32))

    def blocks(self, at_once: int) -> Iterator[Counts]:
        """The same, at most `at_once` draws at a time."""
        generator, images = np.random.default_rng(self.seed), self.num_images
        shares = np.full(images, 1 / max(images, 1))
        for start in range(0, self.number, at_once):
            counts = np.empty((min(at_once, self.number - start), images), np.int32)
            for row in counts:
                if self.multinomial:
                    row[:] = generator.multinomial(images, shares)
                else:
                    row[:] = np.bincount(generator.integers(0, images, images), minlength=images)
            yield counts
