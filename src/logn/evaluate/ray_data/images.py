"""The images of one block of Ray Data: paths, bytes of Parquet or WebDataset, or pixels."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.images import read_rgb

# Where the images of a row are, by what Ray's readers and Hugging Face call it; pixels and bytes before paths.
COLUMNS = ("image", "bytes", "jpg", "jpeg", "png", "webp", "path")
# What an image is called when it cannot be read.
NAMES = ("path", "__key__", "image_id")


class BlockImages:
    """The images of one block, read when they are asked for.

    Args:
        block: The columns of the block, as Ray Data gives them with `batch_format="numpy"`.
        column: Where the images are; None for the first of `COLUMNS` that there is.

    Example:
        >>> images = BlockImages({"image": np.zeros((2, 4, 5, 3), np.uint8), "path": np.array(["a.png", "b.png"])})
        >>> len(images), images.read(1).shape, images.name(1)
        (2, (4, 5, 3), 'b.png')
    """

    def __init__(self, block: Mapping[str, Any], column: str | None = None) -> None:
        self.block = block
        self.column = _find_column(block, column)

    def __len__(self) -> int:
        return len(self.block[self.column])

    def name(self, index: int) -> str:
        """What the image is called, for messages."""
        for column in NAMES:
            if column in self.block:
                return str(self.block[column][index])
        return f"image {index} of a block"

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """The image as RGB of shape `(height, width, 3)`."""
        value, name = self.block[self.column][index], self.name(index)
        if isinstance(value, Mapping):  # as data sets of Hugging Face have it in Parquet
            value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
        if isinstance(value, bytes):
            image = read_rgb(io.BytesIO(value), name)
        elif isinstance(value, str):
            image = read_rgb(value)
        else:
            image = _as_rgb(value, name)
        self._check_size(image, index)
        return image

    def _check_size(self, image: npt.NDArray[np.uint8], index: int) -> None:
        """Refuse an image of another size than its row says, where the row comes from annotations."""
        if "height" in self.block and "width" in self.block:
            expected = int(self.block["height"][index]), int(self.block["width"][index])
            if image.shape[:2] != expected:
                raise InputError(
                    f"Expected `{self.name(index)}` to have height and width {expected} as its row says, but it has "
                    f"{image.shape[:2]}."
                )


def digest_of_names(block: Mapping[str, Any]) -> str:
    """A digest of what the images of a block are called; empty where they have no names.

    Example:
        >>> digest_of_names({"image": [b""]}), len(digest_of_names({"path": ["a.png"]}))
        ('', 32)
    """
    for column in NAMES:
        if column in block:
            names = "\n".join(str(name) for name in block[column])
            return hashlib.blake2b(names.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    return ""


def _find_column(block: Mapping[str, Any], column: str | None) -> str:
    candidates = COLUMNS if column is None else (column,)
    for name in candidates:
        if name in block:
            return name
    expected = f"`{column}`" if column else f"images in one of the columns {', '.join(COLUMNS)}"
    raise InputError(
        f"Expected `dataset` to have {expected}, but it has {', '.join(block)}; name the column by `image_column`."
    )


def _as_rgb(value: Any, name: str) -> npt.NDArray[np.uint8]:
    pixels = np.asarray(value)
    if pixels.dtype == np.uint8 and pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=2)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (3, 4):
        raise InputError(
            f"Expected `{name}` to be bytes of an image, its path, or its pixels as uint8 (height, width, 3), but got "
            f"{pixels.dtype} {pixels.shape}."
        )
    return np.array(pixels[..., :3])  # blocks of Ray are read-only
