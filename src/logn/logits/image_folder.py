"""Reading a folder of images the way a model wants them: size, mean, standard deviation, layout, type."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, MissingExtraError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
RESIZES = ("stretch", "letterbox", "crop")
LAYOUTS = ("NCHW", "NHWC", "CHW", "HWC", None)
DTYPES = ("float32", "float16", "float64", "uint8", None)
# Formats that hold at most 16 bits, which Pillow (of PNG only before version 11) gives in numbers of 32.
_WIDE_IN_16_BITS = ("PNG", "PPM")


@dataclass(frozen=True)
class Preprocessing:
    """How an image file becomes the input of a model.

    Args:
        size: Height and width; None keeps those of the image.
        resize: "stretch" changes the proportions, "letterbox" keeps them and pads evenly on both sides, "crop"
            keeps them and cuts the middle out.
        mean: Subtracted per channel, in the unit of `max_value`.
        std: Divided by per channel.
        max_value: What white is before the mean is subtracted: 1 or 255.
        layout: "NCHW" or "NHWC"; "CHW" or "HWC" for a model without a batch axis; None for what the model says.
        dtype: Type of the input; None for what the model says. Whole numbers are the pixels as they are.
        channels: "RGB" or "BGR".
        pad_value: Grey level, 0 to 255, of a letterbox.

    Example:
        >>> ready = Preprocessing(size=(2, 4), resize="letterbox", pad_value=0).apply(np.full((2, 2, 3), 255, np.uint8))
        >>> ready.shape
        (3, 2, 4)
        >>> ready[0, 0].tolist()
        [0.0, 1.0, 1.0, 0.0]
    """

    size: tuple[int, int] | None = None
    resize: str = "stretch"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    max_value: float = 1.0
    layout: str | None = None
    dtype: str | None = None
    channels: str = "RGB"
    pad_value: int = 114

    def __post_init__(self) -> None:
        _check_choice("resize", self.resize, RESIZES)
        _check_choice("layout", self.layout, LAYOUTS)
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("channels", self.channels, ("RGB", "BGR"))
        _check_choice("max_value", self.max_value, (1.0, 255.0))
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise InputError(f"Expected `size` to be a height and a width of at least 1, but got {self.size}.")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, 3) or not np.isfinite(values).all():
                raise InputError(f"Expected `{name}` to be one or three finite numbers, but got {values}.")
        if min(self.std) <= 0:
            raise InputError(f"Expected `std` to be above 0, but got {self.std}.")

    def apply(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Turn an RGB image of shape (height, width, 3) into the input for it, without the batch axis."""
        pixels: npt.NDArray[Any] = (
            image if self.size is None else _resized(image, self.size, self.resize, self.pad_value)
        )
        if self.channels == "BGR":
            pixels = pixels[..., ::-1]
        if self.dtype != "uint8":
            values = pixels.astype(np.float64) * (self.max_value / 255.0)
            pixels = (values - np.array(self.mean)) / np.array(self.std)
        if not (self.layout or "CHW").endswith("HWC"):
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels, dtype=self.dtype or "float32")


def find_images(folder: str | os.PathLike[str]) -> list[Path]:
    """All images in `folder` and the folders in it, in the order of their names."""
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"Expected `{root}` to be a folder of images, but there is none.")
    found = sorted(path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not found:
        raise InputError(f"Expected `{root}` to hold images ({', '.join(SUFFIXES)}), but it holds none.")
    return found


def select_images(folder: str | os.PathLike[str], count: int | None) -> list[Path]:
    """`count` images of a folder, spread evenly over their names; all for None."""
    found = find_images(folder)
    if count is None or count >= len(found):
        return found
    if count < 1:
        raise InputError(f"Expected `max_images` to be at least 1, but got {count}.")
    return [found[index * len(found) // count] for index in range(count)]


def read_prepared(path: Path, preprocessing: Preprocessing) -> npt.NDArray[Any]:
    """Read one image and prepare it."""
    return preprocessing.apply(read_rgb(path))


def read_rgb(path: str | os.PathLike[str]) -> npt.NDArray[np.uint8]:
    """Read a picture as RGB of shape `(height, width, 3)`, 0 to 255.

    Grey and palette pictures become RGB, CMYK is converted, transparency is dropped, and a turn that only the EXIF data
    ask for is not made. 16 bits are brought to 8, where Pillow's own conversion would make them white; numbers whose
    white is not known (32 bits, floating point) are refused.
    """
    pillow = _import_pillow()
    try:
        with pillow.open(path) as picture:
            if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in _WIDE_IN_16_BITS):
                return _from_16_bits(np.asarray(picture))
            if picture.mode in ("I", "F"):
                raise ValueError(f"of mode {picture.mode}, numbers of 32 bits whose white is not known")
            return np.array(picture.convert("RGB"), dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:  # whatever is wrong with it
        raise InputError(f"Expected `{path}` to be a whole image, but it cannot be read ({error}).") from error


def _from_16_bits(grey: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Grey of 0 to 65535 as RGB of 0 to 255, rounded."""
    levels = ((grey.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    return np.repeat(levels[..., None], 3, axis=2)


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", extra="onnx") from error
    return Image


def _resized(image: npt.NDArray[np.uint8], size: tuple[int, int], resize: str, pad_value: int) -> npt.NDArray[np.uint8]:
    height, width = size
    ratios = height / image.shape[0], width / image.shape[1]
    if resize == "stretch":
        return _scaled(image, height, width)
    ratio = min(ratios) if resize == "letterbox" else max(ratios)
    scaled = _scaled(image, max(1, round(image.shape[0] * ratio)), max(1, round(image.shape[1] * ratio)))
    if resize == "crop":
        top, left = (scaled.shape[0] - height) // 2, (scaled.shape[1] - width) // 2
        return scaled[top : top + height, left : left + width]
    canvas = np.full((height, width, 3), pad_value, np.uint8)
    top, left = (height - scaled.shape[0]) // 2, (width - scaled.shape[1]) // 2
    canvas[top : top + scaled.shape[0], left : left + scaled.shape[1]] = scaled
    return canvas


def _scaled(image: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    if image.shape[:2] == (height, width):
        return image
    pillow = _import_pillow()
    return np.asarray(pillow.fromarray(image).resize((width, height), pillow.Resampling.BILINEAR))


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        listed = ", ".join(str(choice) for choice in choices if choice)
        raise InputError(f"Expected `{name}` to be one of {listed}, but got {value!r}.")
