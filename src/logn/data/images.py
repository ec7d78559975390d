"""Image files: which ones a folder holds, and their pixels as RGB."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from logn.base.checks import Whole, check
from logn.errors import InputError, MissingExtraError, warn

Item = TypeVar("Item")
ImageArray = npt.NDArray[np.uint8]
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
# Formats that hold at most 16 bits, which Pillow (of PNG only before version 11) gives in numbers of 32.
_WIDE_IN_16_BITS = ("PNG", "PPM")
_ORIENTATION = 0x0112
IGNORED_TURN = (
    "an EXIF rotation, which LogN ignores: their boxes are in the wrong place unless they were drawn on the image as "
    "it is stored."
)


def find_images(folder: str | os.PathLike[str]) -> list[Path]:
    """All images in `folder` and the folders in it, in the order of their names."""
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"There is no folder of images `{root}`.")
    images = images_in(root)
    if not images:
        raise InputError(f"`{root}` holds no images ({', '.join(SUFFIXES)}).")
    return images


def images_in(folder: Path) -> list[Path]:
    """All images in a folder and the folders in it, in the order of their names; none where it holds none."""
    return sorted(path for path in folder.rglob("*") if is_image(path))


def is_image(path: Path) -> bool:
    """Whether a path is a file with the suffix of an image."""
    return path.suffix.lower() in SUFFIXES and path.is_file()


def select_images(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], count: int | None) -> list[Path]:
    """`count` images of a folder or of a list of files, spread evenly over them; all for None."""
    images = find_images(source) if isinstance(source, str | os.PathLike) else [Path(path) for path in source]
    return spread_evenly(images, count)


def spread_evenly(images: list[Item], count: int | None) -> list[Item]:
    """`count` of a list, spread evenly over it; all for None.

    Example:
        >>> spread_evenly([1, 2, 3, 4, 5], 2)
        [1, 3]
    """
    if not images:
        raise InputError("The list of images is empty; pass at least one.")
    check("max_images", count, Whole(1), optional=True)
    if count is None or count >= len(images):
        return images
    return [images[index * len(images) // count] for index in range(count)]


def read_rgb(path: str | os.PathLike[str] | BinaryIO, name: str | None = None) -> npt.NDArray[np.uint8]:
    """Read a picture, a path or an open file that messages call `name`, as RGB of shape `(height, width, 3)`, 0 to 255.

    Grey and palette pictures become RGB, CMYK is converted, transparency is dropped, and a turn that only the EXIF data
    ask for is not made, with a warning. 16 bits are brought to 8, where Pillow's own conversion would make them white;
    numbers whose white is not known (32 bits, floating point) are refused.
    """
    pillow = import_pillow()
    try:
        with pillow.open(path) as picture:
            if is_turned(picture):
                warn(f"Some images have {IGNORED_TURN}")  # the same text each time: Python shows it once
            if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in _WIDE_IN_16_BITS):
                return _from_16_bits(np.asarray(picture))
            if picture.mode in ("I", "F"):
                raise ValueError(f"mode {picture.mode} has 32 bits and no known white; convert it to 8 or 16 bits")
            return np.array(picture.convert("RGB"), dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:  # whatever is wrong with it
        raise InputError(f"The image `{name or path}` cannot be read: {str(error).rstrip('.')}.") from error


def is_turned(picture: Any) -> bool:
    """Whether the EXIF data of an open picture ask for a turn; of JPEG only, others may hold theirs behind the pixels.

    Example:
        >>> is_turned(import_pillow().new("RGB", (4, 3)))
        False
    """
    if "exif" not in picture.info:
        return False
    try:
        return picture.getexif().get(_ORIENTATION, 1) not in (0, 1)
    except (OSError, SyntaxError, ValueError, KeyError, TypeError, struct.error):  # damaged, and so of no effect
        return False


def image_sizes(paths: Sequence[str]) -> list[tuple[int, int]]:
    """Width and height of each image, from the headers of the files, read by a few threads.

    A warning counts images that their EXIF data ask to be turned, which is not done.
    """
    with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
        headers = list(pool.map(partial(_header, import_pillow()), paths))
    turned = [path for path, (*_, is_turned) in zip(paths, headers, strict=True) if is_turned]
    if turned:
        warn(f"{len(turned)} images, such as `{turned[0]}`, have {IGNORED_TURN}")
    return [(width, height) for width, height, _ in headers]


def _header(pillow: Any, path: str) -> tuple[int, int, bool]:
    try:
        with pillow.open(path) as picture:
            return *picture.size, is_turned(picture)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise InputError(f"The image `{path}` cannot be read: {error}.") from error


def _from_16_bits(grey: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Grey of 0 to 65535 as RGB of 0 to 255, rounded."""
    levels = ((grey.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    return np.repeat(levels[..., None], 3, axis=2)


def import_pillow() -> Any:
    """`PIL.Image`, or an error that says what to install."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", extra="onnx") from error
    return Image
