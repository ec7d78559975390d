"""Sizes of many pictures from their headers: nothing is decoded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

from logn.errors import InputError, LogNWarning, MissingExtraError

_ORIENTATION = 0x0112
_AT_ONCE = 1024


def image_sizes(paths: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Width and height of each picture, in order, read by a few threads ahead.

    Boxes that are shares of an image are told of the picture as it is shown. Here pictures are not turned by their EXIF
    data, so a warning counts those that ask for it.
    """
    read = partial(_header, _pillow())
    turned, first = 0, None
    pending = iter(paths)
    with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
        while part := list(islice(pending, _AT_ONCE)):
            for path, (width, height, is_turned) in zip(part, pool.map(read, part), strict=True):
                if is_turned:
                    turned, first = turned + 1, first or path
                yield width, height
    if turned:
        warnings.warn(
            f"{turned} images, `{first}` for one, are to be turned by their EXIF data, which is not done here: their "
            "boxes will not lie on their objects unless they were drawn on the picture as it is stored.",
            LogNWarning,
            stacklevel=2,
        )


def numbered(stems: Sequence[str]) -> list[int]:
    """The ids of images by the names of their files: the numbers that they are, or else their places from 1 on.

    Example:
        >>> numbered(["000391", "000007"]), numbered(["a", "b"]), numbered(["1", "01"])
        ([391, 7], [1, 2], [1, 2])
    """
    if all(stem.isascii() and stem.isdecimal() and len(stem) < 19 for stem in stems):
        numbers = [int(stem) for stem in stems]
        if len(set(numbers)) == len(numbers):
            return numbers
    return list(range(1, len(stems) + 1))


def _header(pillow: Any, path: str) -> tuple[int, int, bool]:
    try:
        with pillow.open(path) as picture:
            # Only JPEG files hold their EXIF data in the header; to look for it elsewhere costs a decoding.
            turned = "exif" in picture.info and picture.getexif().get(_ORIENTATION, 1) not in (0, 1)
            return *picture.size, turned
    except FileNotFoundError:
        raise InputError(f"Expected the image `{path}` to exist, but there is no such file.") from None
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise InputError(f"Expected `{path}` to be an image, but it cannot be read ({error}).") from error


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", extra="torchvision") from error
    return Image
