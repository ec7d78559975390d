"""Which characters are classes: families of look-alikes.

Two characters look alike when their templates correlate: the upright styles, scaled to one size and blurred.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.data.images import import_pillow
from logn.errors import InputError

STYLES = tuple(
    f"DejaVu{family}{style}.ttf"
    for family, slanted in (("Sans", "Oblique"), ("Serif", "Italic"), ("SansMono", "Oblique"))
    for style in ("", "-Bold", f"-{slanted}", f"-Bold{slanted}")
)
UPRIGHT_STYLES = tuple(STYLES.index(f"DejaVu{family}.ttf") for family in ("Sans", "Serif", "SansMono"))
RENDERED_PIXELS = 64

# Marks, blanks and controls have no body; accents and raised letters are too like one another when enlarged.
_LEFT_OUT = ("M", "Z", "C", "Sk", "Lm")


@lru_cache(maxsize=1)
def font_folder() -> Path:
    """The folder of the fonts inside matplotlib."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    missing = [style for style in STYLES if not (folder / style).is_file()]
    if missing:
        raise InputError(f"Expected matplotlib to bring the font `{missing[0]}`, but `{folder}` has none.")
    return folder


@lru_cache(maxsize=1)
def drawable_characters() -> tuple[str, ...]:
    """The characters that all twelve styles have, in the order of Unicode."""
    from matplotlib.ft2font import FT2Font

    codes = [set(FT2Font(str(font_folder() / style)).get_charmap()) for style in STYLES]
    characters = (chr(code) for code in sorted(set.intersection(*codes)))
    return tuple(character for character in characters if not unicodedata.category(character).startswith(_LEFT_OUT))


@lru_cache(maxsize=16)
def _font(style: int) -> Any:
    import_pillow()
    from PIL import ImageFont

    return ImageFont.truetype(str(font_folder() / STYLES[style]), RENDERED_PIXELS)


@lru_cache(maxsize=8192)
def glyph_alpha(character: str, style: int) -> npt.NDArray[np.uint8]:
    """The opacity of a character, cropped to its ink; shape `(0, 0)` where there is none.

    Example:
        >>> alpha = glyph_alpha("o", 0)
        >>> int(alpha.max()), int(alpha[alpha.shape[0] // 2, alpha.shape[1] // 2])
        (255, 0)
    """
    pillow = import_pillow()
    from PIL import ImageDraw

    left, top, right, bottom = _font(style).getbbox(character)
    picture = pillow.new("L", (max(1, int(right - left)) + 2, max(1, int(bottom - top)) + 2), 0)
    ImageDraw.Draw(picture).text((1 - left, 1 - top), character, font=_font(style), fill=255)
    ink = picture.getbbox()
    if ink is None:
        return np.zeros((0, 0), np.uint8)
    alpha = np.array(picture.crop(ink), np.uint8)
    alpha.flags.writeable = False
    return alpha


@lru_cache(maxsize=2048)
def glyph_styles(character: str) -> tuple[npt.NDArray[np.uint8], ...]:
    """The opacity of a character in every style.

    Example:
        >>> len(glyph_styles("o"))
        12
    """
    return tuple(glyph_alpha(character, style) for style in range(len(STYLES)))


MOST_CLASSES = 1203
FAMILY_SIZE = 5

_TEMPLATE_PIXELS = 24
_GLYPH_PIXELS = 20
_LONGEST_SHAPE = 3.2  # a dash or a bar is too easily a line of the background
_LEAST_INK = 0.06
_DISTRACTORS = 60
_LEAST_SIMILARITY = 0.75  # of the members of a family
# Two characters of a scene correlate at most this much; more only where there would be too few of
# them otherwise.
_LARGEST_SIMILARITIES = (0.9, 0.93, 0.95, 0.97)

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Alphabet:
    """The characters of a problem; class `k` is of the look-alike family `families[k]`, distractors of none."""

    characters: tuple[str, ...]
    families: tuple[int, ...]
    distractors: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The Unicode name of each class, in the spelling of LVIS's names."""
        return tuple(class_name(character) for character in self.characters)


def class_name(character: str) -> str:
    """The Unicode name of a character with underscores.

    Example:
        >>> class_name("ß")
        'latin_small_letter_sharp_s'
    """
    name = unicodedata.name(character, f"character {ord(character):04x}")
    return name.lower().replace(" ", "_").replace("-", "_")


def choose_alphabet(num_classes: int, generator: np.random.Generator) -> Alphabet:
    """Choose the characters of the classes, in families of five or six look-alikes, and of the distractors.

    Templates of a family correlate by at least 0.75, where that many can be found, and at most 0.9.

    Args:
        num_classes: How many classes, up to LVIS's 1,203.
        generator: The random state.
    """
    if not 1 <= num_classes <= MOST_CLASSES:
        raise InputError(f"Expected `num_classes` to be from 1 to {MOST_CLASSES}, but got {num_classes}.")
    characters, correlation = _pool(num_classes)
    chosen = _families(correlation, _family_sizes(num_classes), generator)
    classes = [index for family in chosen for index in family]
    others = np.setdiff1d(np.arange(len(characters)), classes)
    distractors = generator.permutation(others)[:_DISTRACTORS]
    return Alphabet(
        characters=tuple(characters[index] for index in classes),
        families=tuple(number for number, family in enumerate(chosen) for _ in family),
        distractors=tuple(characters[index] for index in distractors.tolist()),
    )


def template_correlation(characters: tuple[str, ...]) -> FloatArray:
    """How much the templates of characters correlate, each with each."""
    templates = np.stack([template for template in map(_template, characters) if template is not None])
    return np.asarray(templates @ templates.T, np.float32)


@lru_cache(maxsize=1)
def _usable() -> tuple[tuple[str, ...], FloatArray]:
    """All characters with a body, and how their templates correlate."""
    characters = tuple(character for character in drawable_characters() if _template(character) is not None)
    return characters, template_correlation(characters)


@lru_cache(maxsize=8192)  # which characters have one is asked first, and how they correlate then
def _template(character: str) -> FloatArray | None:
    pillow = import_pillow()
    from PIL import ImageFilter

    total = np.zeros((_TEMPLATE_PIXELS, _TEMPLATE_PIXELS), np.float32)
    for style in UPRIGHT_STYLES:
        alpha = glyph_alpha(character, style)
        longest = max(alpha.shape)
        if not alpha.size or longest > _LONGEST_SHAPE * min(alpha.shape):
            return None
        if alpha.sum() < 255 * _LEAST_INK * longest**2:
            return None
        scale = _GLYPH_PIXELS / longest
        height, width = (max(1, round(side * scale)) for side in alpha.shape)
        glyph = pillow.fromarray(alpha).resize((width, height), pillow.Resampling.BOX)
        canvas = pillow.new("L", total.shape, 0)
        canvas.paste(glyph, ((_TEMPLATE_PIXELS - width) // 2, (_TEMPLATE_PIXELS - height) // 2))
        total += np.asarray(canvas.filter(ImageFilter.GaussianBlur(1.2)), np.float32)
    centred = total.ravel() - total.mean()
    return np.asarray(centred / np.linalg.norm(centred), np.float32)


def _pool(num_classes: int) -> tuple[tuple[str, ...], FloatArray]:
    """Characters that can be distinguished, enough for the classes and the distractors."""
    characters, correlation = _usable()
    kept: list[int] = []
    for largest in _LARGEST_SIMILARITIES:
        kept = _told_apart(correlation, largest)
        # Twice as many as needed leave a choice of families.
        if len(kept) >= 2 * num_classes + _DISTRACTORS:
            break
    if len(kept) < num_classes + _DISTRACTORS:
        most = len(kept) - _DISTRACTORS
        raise InputError(f"Expected `num_classes` to be at most {most}, but got {num_classes}.")
    return tuple(characters[index] for index in kept), correlation[np.ix_(kept, kept)]


def _told_apart(correlation: FloatArray, largest: float) -> list[int]:
    kept: list[int] = []
    free = np.ones(len(correlation), np.bool_)
    for index in range(len(correlation)):
        if free[index]:  # in the order of Unicode, so plain letters come before accented ones
            kept.append(index)
            free &= correlation[index] < largest
    return kept


def _family_sizes(num_classes: int) -> list[int]:
    count = max(1, num_classes // FAMILY_SIZE)
    return [num_classes // count + (number < num_classes % count) for number in range(count)]


def _families(correlation: FloatArray, sizes: list[int], generator: np.random.Generator) -> list[list[int]]:
    free = np.ones(len(correlation), np.bool_)
    families: list[list[int]] = []
    for size in sizes:
        founders = generator.permutation(np.flatnonzero(free))[:32].tolist()
        drafts = (_grow(correlation, founder, size, free, generator) for founder in founders)
        # The first founder that finds enough look-alikes; failing that, the one whose family is closest.
        best: tuple[float, list[int]] = (-np.inf, [])
        for family in drafts:
            closeness = float(correlation[np.ix_(family, family)].min())
            best = max(best, (closeness, family))
            if closeness >= _LEAST_SIMILARITY:
                break
        families.append(best[1])
        free[best[1]] = False
    return families


def _grow(
    correlation: FloatArray,
    founder: int,
    size: int,
    free: npt.NDArray[np.bool_],
    generator: np.random.Generator,
) -> list[int]:
    family = [founder]
    while len(family) < size:
        nearness = np.where(free, correlation[family].min(axis=0), -np.inf)
        nearness[family] = -np.inf
        alike = np.flatnonzero(nearness >= _LEAST_SIMILARITY)
        family.append(int(generator.choice(alike)) if len(alike) else int(nearness.argmax()))
    return family
