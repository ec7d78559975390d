"""Drawing one glyph scene: a textured background, lines and arcs, distractors, objects, blur and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.data.images import ImageArray, import_pillow

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
#: A glyph in its styles: the opacity of each, cropped to its ink.
Glyph = Sequence[npt.NDArray[np.uint8]]
IntArray = npt.NDArray[np.int64]

# Sides of glyphs as shares of the image's side: 18 to 46 pixels of 128.
SMALLEST_GLYPH, LARGEST_GLYPH = 18 / 128, 46 / 128
_SMALLEST_DISTRACTOR, _LARGEST_DISTRACTOR = 12 / 128, 32 / 128
_LARGEST_ROTATION = 20.0
_LARGEST_OVERLAP = 0.12  # of the smaller of two boxes
_FULLEST = 0.5  # objects cover at most this share of the image; beyond it they are drawn smaller
_LEAST_CONTRAST = 70.0  # distance in RGB between a glyph and the background under it
_FEWEST_DISTRACTORS, _MOST_DISTRACTORS = 4, 10
_FEWEST_LINES, _MOST_LINES = 2, 7


@dataclass(frozen=True, eq=False)
class Scene:
    """A drawn image with the visible mask of each object, in the order of the given glyphs."""

    image: ImageArray
    masks: BoolArray


def draw_scene(
    objects: Sequence[Glyph],
    distractors: Sequence[Glyph],
    size: int,
    generator: np.random.Generator,
) -> Scene:
    """Draw glyphs as objects and some distractors that are no objects.

    Args:
        objects: The glyph of each object, in its styles.
        distractors: Glyphs to draw 4 to 10 distractors from.
        size: Side of the square image in pixels.
        generator: The random state; the same state draws the same scene.

    Example:
        >>> square, bar = np.full((20, 20), 255, np.uint8), np.full((20, 6), 255, np.uint8)
        >>> scene = draw_scene([[square], [square, bar]], [[bar]], 64, np.random.default_rng(0))
        >>> scene.image.shape, scene.masks.shape, bool(scene.masks.any(axis=(1, 2)).all())
        ((64, 64, 3), (2, 64, 64), True)
    """
    canvas = draw_background(size, generator)
    sides = _object_sides(len(objects), generator)
    glyphs = [turned_glyph(styles, side * size, generator) for styles, side in zip(objects, sides, strict=True)]
    places = _layout([glyph.shape for glyph in glyphs], size, generator)
    if len(distractors):
        number = int(generator.integers(_FEWEST_DISTRACTORS, _MOST_DISTRACTORS + 1))
        _draw_distractors(canvas, distractors, number, glyphs, places, generator)
    masks = np.zeros((len(glyphs), size, size), np.bool_)
    for index, (glyph, (top, left)) in enumerate(zip(glyphs, places.tolist(), strict=True)):
        paint_glyph(canvas, glyph, top, left, generator)
        height, width = glyph.shape
        covered = glyph > 0.5 * glyph.max()
        masks[:index, top : top + height, left : left + width] &= ~covered  # a later object hides earlier ones
        masks[index, top : top + height, left : left + width] = covered
    return Scene(blur_and_add_noise(canvas, generator), masks)


def _object_sides(count: int, generator: np.random.Generator) -> FloatArray:
    sides = generator.uniform(SMALLEST_GLYPH, LARGEST_GLYPH, count)
    fullness = float((sides**2).sum())
    shrink = min(1.0, np.sqrt(_FULLEST / max(fullness, 1e-9)))
    return np.asarray(np.maximum(sides * shrink, SMALLEST_GLYPH), np.float32)


def turned_glyph(styles: Glyph, side: float, generator: np.random.Generator) -> FloatArray:
    """The opacity of a glyph in a random style, its longer side `side` pixels, turned a little."""
    pillow = import_pillow()
    alpha = styles[int(generator.integers(len(styles)))]
    turned = pillow.fromarray(alpha).rotate(
        float(generator.uniform(-_LARGEST_ROTATION, _LARGEST_ROTATION)), pillow.Resampling.BICUBIC, expand=True
    )
    scale = side / max(alpha.shape)
    width, height = (max(2, round(length * scale)) for length in turned.size)
    small: FloatArray = np.asarray(turned.resize((width, height), pillow.Resampling.BOX), np.float32) / np.float32(255)
    rows, columns = np.flatnonzero((small > 0.05).any(axis=1)), np.flatnonzero((small > 0.05).any(axis=0))
    return small[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _layout(shapes: Sequence[tuple[int, ...]], size: int, generator: np.random.Generator) -> IntArray:
    """Top left corners at which the boxes hardly overlap: each takes the best of some random places."""
    corners = np.zeros((len(shapes), 2), np.int64)
    placed: list[int] = []
    for index in sorted(range(len(shapes)), key=lambda i: -shapes[i][0] * shapes[i][1]):
        height, width = shapes[index]
        tries = np.stack(
            [
                generator.integers(0, max(1, size - height + 1), 60),
                generator.integers(0, max(1, size - width + 1), 60),
            ],
            axis=1,
        )
        overlap = _overlap(tries, (height, width), corners[placed], [shapes[i] for i in placed])
        free = np.flatnonzero(overlap <= _LARGEST_OVERLAP)
        corners[index] = tries[free[0] if len(free) else overlap.argmin()]
        placed.append(index)
    return corners


def _overlap(
    tries: IntArray, shape: tuple[int, ...], corners: IntArray, shapes: Sequence[tuple[int, ...]]
) -> npt.NDArray[np.float64]:
    """The largest share of a box (the smaller one) that each try would have in common with a box placed before."""
    if not len(corners):
        return np.zeros(len(tries))
    others = np.asarray(shapes, np.int64)
    low = np.maximum(tries[:, None], corners[None])
    high = np.minimum(tries[:, None] + np.asarray(shape), (corners + others)[None])
    common = np.maximum(high - low, 0).prod(axis=2)
    smaller = np.minimum(int(np.prod(shape)), others.prod(axis=1))
    return np.asarray((common / smaller[None]).max(axis=1), np.float64)


def _draw_distractors(
    canvas: FloatArray,
    distractors: Sequence[Glyph],
    number: int,
    glyphs: Sequence[FloatArray],
    places: IntArray,
    generator: np.random.Generator,
) -> None:
    """Draw glyphs that are no class, where there is room; objects come on top of them."""
    size = len(canvas)
    corners, shapes = places, [glyph.shape for glyph in glyphs]
    for _ in range(number):
        styles = distractors[int(generator.integers(len(distractors)))]
        side = float(generator.uniform(_SMALLEST_DISTRACTOR, _LARGEST_DISTRACTOR)) * size
        glyph = turned_glyph(styles, side, generator)
        highest = np.maximum(1, size - np.array(glyph.shape) + 1)
        tries = generator.integers(0, highest, (40, 2))
        overlap = _overlap(tries, glyph.shape, corners, shapes)
        corner = tries[overlap.argmin()]
        if overlap.min() > 0.35:  # a fuller image has fewer distractors
            continue
        paint_glyph(canvas, glyph, int(corner[0]), int(corner[1]), generator)
        corners, shapes = np.concatenate([corners, corner[None]]), [*shapes, glyph.shape]


def paint_glyph(canvas: FloatArray, glyph: FloatArray, top: int, left: int, generator: np.random.Generator) -> None:
    """Paint a glyph into the canvas in a random colour that stands out from what is there."""
    height, width = glyph.shape
    below = canvas[top : top + height, left : left + width]
    opacity = glyph[..., None] * np.float32(generator.uniform(0.7, 1.0))
    below += opacity * (_colour_against(below.mean(axis=(0, 1)), _LEAST_CONTRAST, generator) - below)


def _colour_against(background: FloatArray, least: float, generator: np.random.Generator) -> FloatArray:
    """A random colour that differs from the background: the first of some that is far enough, or the farthest."""
    colours = generator.uniform(0, 255, (8, 3)).astype(np.float32)
    distance = np.linalg.norm(colours - background, axis=1)
    far = np.flatnonzero(distance >= least)
    return np.asarray(colours[far[0] if len(far) else distance.argmax()], np.float32)


def draw_background(size: int, generator: np.random.Generator) -> FloatArray:
    """A cloudy texture between two or three colours, with lines and arcs."""
    pillow = import_pillow()
    texture = np.zeros((size, size, 3), np.float32)
    for cells in (2, 5, 12, 32):
        coarse = generator.uniform(-1, 1, (cells, cells, 3)).astype(np.float32)
        coarse[..., 1:] = 0.6 * coarse[..., :1] + 0.4 * coarse[..., 1:]  # mostly light and dark, some colour
        amplitude = float(generator.uniform(10, 90)) / np.sqrt(cells)
        for channel in range(3):
            layer = pillow.fromarray(np.ascontiguousarray(coarse[..., channel]))
            texture[..., channel] += amplitude * np.asarray(
                layer.resize((size, size), pillow.Resampling.BICUBIC), np.float32
            )
    texture += generator.uniform(40, 215, 3).astype(np.float32)
    picture = pillow.fromarray(np.clip(texture, 0, 255).astype(np.uint8))
    _draw_lines(picture, size, int(generator.integers(_FEWEST_LINES, _MOST_LINES + 1)), generator)
    return np.array(picture, np.float32)


def _draw_lines(picture: Any, size: int, number: int, generator: np.random.Generator) -> None:
    from PIL import ImageDraw

    pencil = ImageDraw.Draw(picture)
    for _ in range(number):
        ends = generator.uniform(-0.2 * size, 1.2 * size, 4)
        colour = tuple(int(value) for value in generator.integers(0, 256, 3))
        width = int(generator.integers(1, 4))
        if generator.random() < 0.5:
            pencil.line(ends.tolist(), fill=colour, width=width)
        else:
            box = [*np.minimum(ends[:2], ends[2:]), *(np.maximum(ends[:2], ends[2:]) + 1)]
            start, sweep = generator.uniform(0, 360), generator.uniform(40, 300)
            pencil.arc([float(value) for value in box], start, start + sweep, fill=colour, width=width)


def blur_and_add_noise(canvas: FloatArray, generator: np.random.Generator) -> ImageArray:
    """The finished picture, as a poor camera would take it."""
    pillow = import_pillow()
    from PIL import ImageFilter

    picture = pillow.fromarray(np.clip(canvas, 0, 255).astype(np.uint8))
    blurred = picture.filter(ImageFilter.GaussianBlur(float(generator.uniform(0, 0.8))))
    noise = generator.standard_normal(canvas.shape, np.float32) * np.float32(generator.uniform(0, 10))
    return np.asarray(np.clip(np.asarray(blurred, np.float32) + noise + 0.5, 0, 255), np.uint8)
