"""Images as a model wants them: size, mean, standard deviation, layout, type; and presets per model family."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from logn.base.checks import OneOf, checked
from logn.base.files import require_file
from logn.base.strict_json import parse_typed
from logn.data.images import import_pillow
from logn.errors import InputError, did_you_mean
from logn.models.proposals import Postprocessing

# Of ImageNet's photographs, red, green and blue.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
@checked
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
        corner: Whether a letterbox puts the image into its upper left corner, and pads at the right and below only.

    Example:
        >>> ready = Preprocessing(size=(2, 4), resize="letterbox", pad_value=0).apply(np.full((2, 2, 3), 255, np.uint8))
        >>> ready.shape
        (3, 2, 4)
        >>> ready[0, 0].tolist()
        [0.0, 1.0, 1.0, 0.0]
    """

    size: tuple[int, int] | None = None
    resize: Annotated[str, OneOf("stretch", "letterbox", "crop")] = "stretch"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    max_value: Annotated[float, OneOf(1, 255, 1.0, 255.0)] = 1.0
    layout: Annotated[str, OneOf("NCHW", "NHWC", "CHW", "HWC")] | None = None
    dtype: Annotated[str, OneOf("float32", "float16", "float64", "uint8")] | None = None
    channels: Annotated[str, OneOf("RGB", "BGR")] = "RGB"
    pad_value: int = 114
    corner: bool = False

    def __post_init__(self) -> None:
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
            image if self.size is None else _resized(image, self.placement(image.shape[0], image.shape[1]), self)
        )
        if self.channels == "BGR":
            pixels = pixels[..., ::-1]
        channels_first = not (self.layout or "CHW").endswith("HWC")
        if self.dtype != "uint8":
            prepared = np.empty((3, *pixels.shape[:2]), self._levels.dtype)
            for channel in range(3):
                # No level can be out of range; numpy need not look, nor keep a second copy in case one is.
                self._levels[channel].take(pixels[..., channel], out=prepared[channel], mode="clip")
            pixels = prepared if channels_first else prepared.transpose(1, 2, 0)
        elif channels_first:
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels, dtype=self.dtype or "float32")

    @cached_property
    def _levels(self) -> npt.NDArray[Any]:
        """What each of the 256 levels of each channel becomes: to look it up is faster than to compute it."""
        values = np.arange(256.0)[None] * (self.max_value / 255.0)
        levels = (values - _column(self.mean)) / _column(self.std)
        return np.broadcast_to(levels, (3, 256)).astype(self.dtype or "float32")

    def in_words(self) -> str:
        """What it does, in a few words.

        Example:
            >>> Preprocessing((416, 416), "letterbox", max_value=255.0, channels="BGR").in_words()
            'letterbox to 416x416, BGR, 0 to 255'
        """
        words = ["in its own size" if self.size is None else f"{self.resize} to {self.size[0]}x{self.size[1]}"]
        words += ["BGR"] if self.channels == "BGR" else []
        words.append(f"0 to {self.max_value:g}")
        if any(self.mean) or set(self.std) != {1.0}:
            words.append("normalised")
        return ", ".join(words)

    def placement(self, height: int, width: int) -> Placement:
        """Where an image of this size comes to lie in the input.

        Example:
            >>> Preprocessing(size=(416, 416), resize="letterbox").placement(100, 200)
            Placement(height=208, width=416, top=104, left=0, scale_y=2.08, scale_x=2.08)
        """
        if self.size is None:
            return Placement(height, width, 0, 0, 1.0, 1.0)
        ratios = self.size[0] / height, self.size[1] / width
        if self.resize == "stretch":
            return Placement(*self.size, 0, 0, *ratios)
        ratio = min(ratios) if self.resize == "letterbox" else max(ratios)
        scaled = max(1, round(height * ratio)), max(1, round(width * ratio))
        if self.corner and self.resize == "letterbox":
            return Placement(*scaled, 0, 0, ratio, ratio)
        if self.resize == "crop":
            top, left = -((scaled[0] - self.size[0]) // 2), -((scaled[1] - self.size[1]) // 2)
        else:
            top, left = (self.size[0] - scaled[0]) // 2, (self.size[1] - scaled[1]) // 2
        return Placement(*scaled, top, left, ratio, ratio)


class Placement(NamedTuple):
    """Where an image lies in the input of a model: its new size, its upper left corner, and what it was scaled by.

    A corner left of 0 or above it means that the image is cut there.
    """

    height: int
    width: int
    top: int
    left: int
    scale_y: float
    scale_x: float

    def boxes_in_image(self, boxes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Corners `x1, y1, x2, y2` in the input as corners in the image.

        Example:
            >>> Placement(50, 100, 25, 0, 0.5, 0.5).boxes_in_image(np.array([[0.0, 25.0, 100.0, 75.0]])).tolist()
            [[0.0, 0.0, 200.0, 100.0]]
        """
        offset = np.array([self.left, self.top] * 2, boxes.dtype)
        scale = np.array([self.scale_x, self.scale_y] * 2, boxes.dtype)
        return np.asarray((boxes - offset) / scale)


def _resized(image: npt.NDArray[np.uint8], spot: Placement, settings: Preprocessing) -> npt.NDArray[np.uint8]:
    scaled = _scaled(image, spot.height, spot.width)
    height, width = settings.size or scaled.shape[:2]
    if settings.resize == "crop":
        return scaled[-spot.top : height - spot.top, -spot.left : width - spot.left]
    if scaled.shape[:2] == (height, width):
        return scaled
    canvas = np.full((height, width, 3), settings.pad_value, np.uint8)
    canvas[spot.top : spot.top + spot.height, spot.left : spot.left + spot.width] = scaled
    return canvas


def _column(values: tuple[float, ...]) -> npt.NDArray[np.float64]:
    return np.array(values, np.float64)[:, None]


def _scaled(image: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    if image.shape[:2] == (height, width):
        return image
    pillow = import_pillow()
    return np.asarray(pillow.fromarray(image).resize((width, height), pillow.Resampling.BILINEAR))


@dataclass(frozen=True)
class Preset:
    """How a family of models is fed and read.

    Attributes:
        preprocessing: From the image to the input. Its size is what to take where the model leaves it open.
        postprocessing: From proposals to detections.
        start: Columns before the classes, where raw outputs hold box, objectness and classes; None for separate ones.
        activation: What follows the class logits where the graph ends with them; None where that is not known.
        background: Index of the background column: None, 0 or -1.
    """

    preprocessing: Preprocessing
    postprocessing: Postprocessing
    start: int | None = None
    activation: str | None = "sigmoid"
    background: int | None = None


PRESETS = {
    "yolov5": Preset(Preprocessing((640, 640), "letterbox"), Postprocessing(nms_iou=0.6), start=5),
    "yolox": Preset(
        Preprocessing((640, 640), "letterbox", max_value=255.0, channels="BGR", corner=True),
        Postprocessing(nms_iou=0.65, multi_label=False),
        start=5,
    ),
    "ultralytics": Preset(Preprocessing((640, 640), "letterbox"), Postprocessing(nms_iou=0.7)),
    "nanodet": Preset(
        Preprocessing(
            (416, 416),
            "letterbox",
            mean=(103.53, 116.28, 123.675),
            std=(57.375, 57.12, 58.395),
            max_value=255.0,
            channels="BGR",
            pad_value=0,
        ),
        Postprocessing(nms_iou=0.6),
    ),
    "detr": Preset(
        Preprocessing((800, 800), "stretch", mean=_MEAN, std=_STD),
        Postprocessing(nms="none", multi_label=False),
        activation="softmax",
        background=-1,
    ),
    "rtdetr": Preset(Preprocessing((640, 640), "stretch"), Postprocessing(nms="none")),
    "imagenet": Preset(Preprocessing((224, 224), "crop", mean=_MEAN, std=_STD), Postprocessing(), activation="softmax"),
    "ssd": Preset(
        Preprocessing((300, 300), "stretch", mean=(127.0,), std=(128.0,), max_value=255.0),
        Postprocessing(nms_iou=0.45),
        activation="softmax",
        background=0,
    ),
}


def preset_named(like: str | os.PathLike[str]) -> Preset:
    """The preset of a name, or the preprocessing of a `.json` file, which says nothing of what follows the model.

    Example:
        >>> preset_named("yolox").preprocessing.channels
        'BGR'
        >>> preset_named("yolo")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `like` to be one of yolov5, yolox, ultralytics, nanodet, detr, rtdetr,
        imagenet, ssd or a .json file, but got 'yolo'; did you mean `yolox`?
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.json"
        >>> _ = path.write_text('{"size": [320, 480], "resize": "letterbox", "mean": [0.5]}')
        >>> preset_named(path).preprocessing.size
        (320, 480)
    """
    if like in PRESETS:
        return PRESETS[str(like)]
    path = Path(like)
    if path.suffix.lower() != ".json":
        hint = did_you_mean(str(like), PRESETS)
        raise InputError(
            f"Expected `like` to be one of {', '.join(PRESETS)} or a .json file, but got {str(like)!r}{hint}"
        )
    require_file(path)
    return Preset(parse_preprocessing(path.read_bytes(), str(path)), Postprocessing(), activation=None)


def parse_preprocessing(content: bytes, name: str) -> Preprocessing:
    """The preprocessing that a JSON object describes; `name` is what messages call it.

    Example:
        >>> parse_preprocessing(b'{"size": 640, "padding": 3}', "mine.json")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `mine.json` must be a JSON object of the fields size, resize, mean, std, max_value,
        layout, dtype, channels, pad_value, corner; `padding` is none of them.
    """
    values = parse_typed(content, dict[str, Any], name)
    allowed = [item.name for item in fields(Preprocessing)]
    if unknown := [key for key in values if key not in allowed]:
        raise InputError(
            f"`{name}` must be a JSON object of the fields {', '.join(allowed)}; `{unknown[0]}` is none of them."
        )
    for key, count in (("size", 2), ("mean", 1), ("std", 1)):
        if isinstance(values.get(key), int | float):
            values[key] = (values[key],) * count
    try:
        return msgspec.convert(values, Preprocessing)
    except msgspec.ValidationError as error:
        raise InputError(f"`{name}` is not as it must be: {str(error).rstrip('.')}.") from error
