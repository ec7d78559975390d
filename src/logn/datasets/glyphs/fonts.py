"""The shapes of glyphs: twelve styles of the DejaVu fonts, which come with matplotlib."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.datasets.image_file import import_pillow
from logn.errors import InputError, MissingExtraError

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
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("matplotlib", extra="report") from error
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
