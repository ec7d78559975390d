"""Reading and writing pictures through Pillow, with one clear sentence for what is wrong with a file."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, MissingExtraError
from logn.files import atomic_path
from logn.logits.images import read_rgb

ImageArray = npt.NDArray[np.uint8]


def import_pillow() -> ModuleType:
    """`PIL.Image`, or an error that says what to install."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", extra="torchvision") from error
    return Image


def read_image(path: str | os.PathLike[str]) -> ImageArray:
    """Read a picture as RGB of shape `(height, width, 3)`, as `logn.logits.images.read_rgb` does."""
    import_pillow()
    if not Path(path).is_file():
        raise InputError(f"Expected the image `{path}` to exist, but there is no such file.")
    return read_rgb(path)


def write_image(path: str | os.PathLike[str], image: ImageArray, *, colours: int | None = None) -> None:
    """Write a picture in one atomic step; the suffix gives the format, and few `colours` make a small file."""
    pillow = import_pillow()
    picture = pillow.fromarray(image)
    if colours is not None:
        if not 2 <= colours <= 256:
            raise InputError(f"Expected `colours` to be from 2 to 256, but got {colours}.")
        picture = picture.quantize(colours)
    if Path(path).suffix.lower() not in pillow.registered_extensions():
        raise InputError(f"Expected `{path}` to end in .png or the suffix of another picture format, but it does not.")
    with atomic_path(path) as temporary:
        picture.save(temporary, optimize=True)
