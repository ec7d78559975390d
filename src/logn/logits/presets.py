"""What authors of detectors do with an image before their model, by the name of the model: `--like yolox`."""

from __future__ import annotations

from dataclasses import dataclass

from logn.errors import InputError
from logn.logits.image_folder import Preprocessing
from logn.logits.proposals import Postprocessing

# Of ImageNet's photographs, red, green and blue.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preset:
    """How a family of models is fed and read.

    Attributes:
        preprocessing: From the image to the input. Its size is what to take where the model leaves it open.
        postprocessing: From proposals to detections.
        start: Columns before the classes, where raw outputs hold box, objectness and classes; None for separate ones.
        activation: What follows the class logits where the graph ends with them; None where that is not known.
        background: Place of the background column: None, 0 or -1.
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


def preset_named(name: str) -> Preset:
    """The preset of a name.

    Example:
        >>> preset_named("yolox").preprocessing.channels
        'BGR'
        >>> preset_named("yolo")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `like` to be one of yolov5, yolox, ultralytics, nanodet, detr, rtdetr,
        imagenet, ssd, but got 'yolo'.
    """
    if name not in PRESETS:
        raise InputError(f"Expected `like` to be one of {', '.join(PRESETS)}, but got {name!r}.")
    return PRESETS[name]
