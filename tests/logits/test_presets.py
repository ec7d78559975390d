"""Each preset feeds and reads a model as its authors do, in numbers written down from their code."""

import numpy as np
import pytest

from logn.logits.images import PRESETS, preset_named

# Twice as wide as high: red in the middle, green at both ends.
IMAGE = np.full((4, 8, 3), (0, 255, 0), np.uint8)
IMAGE[:, 1:7] = (255, 0, 0)
UNIT_RED, UNIT_GREEN, UNIT_GREY = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (114 / 255,) * 3
# (pixel - mean) / standard deviation, channel by channel.
IMAGENET_RED = ((1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225)
IMAGENET_GREEN = (-0.485 / 0.229, (1 - 0.456) / 0.224, -0.406 / 0.225)
NANODET_RED = (-103.53 / 57.375, -116.28 / 57.12, (255 - 123.675) / 58.395)
NANODET_GREEN = (-103.53 / 57.375, (255 - 116.28) / 57.12, -123.675 / 58.395)
NANODET_BLACK = (-103.53 / 57.375, -116.28 / 57.12, -123.675 / 58.395)
SSD_RED, SSD_GREEN = (1.0, -127 / 128, -127 / 128), (-127 / 128, 1.0, -127 / 128)


@pytest.mark.parametrize(
    ("name", "side", "middle", "left", "top", "bottom"),
    [
        ("yolov5", 640, UNIT_RED, UNIT_GREEN, UNIT_GREY, UNIT_GREY),
        ("yolox", 640, (0, 0, 255), (0, 255, 0), (0, 0, 255), (114, 114, 114)),  # BGR, in the upper left corner
        ("ultralytics", 640, UNIT_RED, UNIT_GREEN, UNIT_GREY, UNIT_GREY),
        ("nanodet", 416, NANODET_RED, NANODET_GREEN, NANODET_BLACK, NANODET_BLACK),
        ("detr", 800, IMAGENET_RED, IMAGENET_GREEN, IMAGENET_RED, IMAGENET_RED),
        ("rtdetr", 640, UNIT_RED, UNIT_GREEN, UNIT_RED, UNIT_RED),
        ("imagenet", 224, IMAGENET_RED, IMAGENET_RED, IMAGENET_RED, IMAGENET_RED),  # the green ends are cut off
        ("ssd", 300, SSD_RED, SSD_GREEN, SSD_RED, SSD_RED),
    ],
)
def test_an_image_is_fed_as_the_authors_feed_it(name, side, middle, left, top, bottom):
    ready = PRESETS[name].preprocessing.apply(IMAGE)
    assert ready.shape == (3, side, side)
    row, column = side // 2 - 1, side // 2
    for expected, place in ((middle, (row, column)), (left, (row, 0)), (top, (0, column)), (bottom, (-1, column))):
        np.testing.assert_allclose(ready[(slice(None), *place)], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "start", "activation", "background", "nms", "nms_iou", "multi_label"),
    [
        ("yolov5", 5, "sigmoid", None, "class-wise", 0.6, True),
        ("yolox", 5, "sigmoid", None, "class-wise", 0.65, False),
        ("ultralytics", None, "sigmoid", None, "class-wise", 0.7, True),
        ("nanodet", None, "sigmoid", None, "class-wise", 0.6, True),
        ("detr", None, "softmax", -1, "none", None, False),  # "no object" comes last, and nothing is suppressed
        ("rtdetr", None, "sigmoid", None, "none", None, True),
        ("ssd", None, "softmax", 0, "class-wise", 0.45, True),
    ],
)
def test_outputs_are_read_as_the_authors_read_them(name, start, activation, background, nms, nms_iou, multi_label):
    preset = preset_named(name)
    assert (preset.start, preset.activation, preset.background) == (start, activation, background)
    found = preset.postprocessing
    assert (found.nms, found.multi_label) == (nms, multi_label)
    assert nms_iou is None or found.nms_iou == nms_iou


def test_a_classifier_of_imagenet_has_a_softmax_and_no_background():
    preset = preset_named("imagenet")
    assert (preset.activation, preset.background) == ("softmax", None)
    assert {name for name in PRESETS if PRESETS[name].activation == "softmax"} == {"detr", "imagenet", "ssd"}
