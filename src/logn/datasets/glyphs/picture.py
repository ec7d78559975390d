"""Drawing one picture of one glyph: a textured background, perhaps another glyph, the glyph, noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from logn.datasets.glyphs.scene import (
    FloatArray,
    blur_and_add_noise,
    draw_background,
    paint_glyph,
    turned_glyph,
)
from logn.datasets.image_file import ImageArray

# Longer side of the glyph and of what stands around it, as shares of the picture's side.
_SMALLEST_GLYPH, _LARGEST_GLYPH = 0.65, 0.85
_SMALLEST_DISTRACTOR, _LARGEST_DISTRACTOR = 0.25, 0.6
_MARGIN = 0.5  # of the picture's side, on each side, where distractors may begin or end
_DISTRACTOR_CHANCE = 0.5
_CLUTTER = 0.25  # times the lines and arcs of a scene, since the picture is small
_LEAST_CONTRAST = 120.0  # distance in RGB between the glyph and what is under it


def draw_picture(character: str, distractors: Sequence[str], size: int, generator: np.random.Generator) -> ImageArray:
    """Draw a character in a picture, half of the time on top of a smaller one that the edges may cut off.

    Args:
        character: What the picture shows.
        distractors: Characters of no class.
        size: Side of the picture in pixels.
        generator: The random state; the same state draws the same picture.

    Example:
        >>> draw_picture("a", "xyz", 32, np.random.default_rng(0)).shape
        (32, 32, 3)
    """
    margin = round(_MARGIN * size)
    canvas = np.zeros((size + 2 * margin, size + 2 * margin, 3), np.float32)
    inside = canvas[margin : margin + size, margin : margin + size]
    inside += draw_background(size, generator, _CLUTTER)
    glyph = turned_glyph(character, float(generator.uniform(_SMALLEST_GLYPH, _LARGEST_GLYPH)) * size, generator)
    if len(distractors) and generator.random() < _DISTRACTOR_CHANCE:
        _draw_distractor(canvas, distractors, size, generator)
    height, width = glyph.shape
    top, left = (margin + int(generator.integers(0, max(1, size - side + 1))) for side in (height, width))
    paint_glyph(canvas, glyph, top, left, generator, least_contrast=_LEAST_CONTRAST)
    return blur_and_add_noise(inside, generator)


def _draw_distractor(canvas: FloatArray, distractors: Sequence[str], size: int, generator: np.random.Generator) -> None:
    character = distractors[int(generator.integers(len(distractors)))]
    side = float(generator.uniform(_SMALLEST_DISTRACTOR, _LARGEST_DISTRACTOR)) * size
    other = turned_glyph(character, side, generator)
    highest = np.maximum(1, len(canvas) - np.array(other.shape) + 1)
    top, left = generator.integers(0, highest).tolist()
    paint_glyph(canvas, other, top, left, generator)
