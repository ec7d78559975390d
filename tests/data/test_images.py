"""Preparing images: each setting does what it says, each preset as its authors do, and bad files are named."""

from contextlib import nullcontext

import numpy as np
import pytest
from PIL import Image

from logn.data.images import find_images, read_rgb
from logn.errors import InputError, LogNWarning
from logn.models.preprocessing import PRESETS, Preprocessing, preset_named

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 3), dtype=np.uint8)


def test_mean_and_standard_deviation_are_per_channel():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    ready = Preprocessing(mean=mean, std=std).apply(PIXELS)
    expected = (PIXELS / 255.0 - np.array(mean)) / np.array(std)
    assert ready.dtype == np.float32
    np.testing.assert_allclose(ready, expected.transpose(2, 0, 1), rtol=1e-6)


def test_the_unit_layout_and_colours_can_be_chosen():
    ready = Preprocessing(mean=(123.675, 116.28, 103.53), max_value=255.0, layout="NHWC", channels="BGR").apply(PIXELS)
    np.testing.assert_allclose(ready, PIXELS[..., ::-1] - np.array([123.675, 116.28, 103.53]), rtol=1e-5)
    np.testing.assert_array_equal(Preprocessing(dtype="uint8", layout="HWC").apply(PIXELS), PIXELS)
    assert Preprocessing(dtype="float16").apply(PIXELS).dtype == np.float16


def test_a_letterbox_keeps_the_proportions_and_pads_both_sides():
    white = np.full((4, 8, 3), 255, np.uint8)
    ready = Preprocessing(size=(8, 8), resize="letterbox", pad_value=51).apply(white)[0]
    np.testing.assert_allclose(ready[:2], 0.2)
    np.testing.assert_allclose(ready[2:6], 1.0)
    np.testing.assert_allclose(ready[6:], 0.2)


def test_a_crop_takes_the_middle():
    stripes = np.repeat(np.array([0, 0, 255, 255, 0, 0], np.uint8)[:, None, None], 3, axis=2).repeat(2, axis=1)
    ready = Preprocessing(size=(2, 2), resize="crop").apply(stripes)
    np.testing.assert_array_equal(ready, np.ones((3, 2, 2)))


@pytest.mark.parametrize("resize", ["stretch", "letterbox", "crop"])
@pytest.mark.parametrize("size", [(3, 9), (9, 3), (1, 1), (6, 4)])
def test_the_size_is_always_met(resize, size):
    assert Preprocessing(size=size, resize=resize).apply(PIXELS).shape == (3, *size)


def test_images_are_found_in_the_order_of_their_names(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("b/1.JPG", "a.png", "c.webp"):
        Image.fromarray(PIXELS).convert("RGB").save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    assert [path.name for path in find_images(tmp_path)] == ["a.png", "1.JPG", "c.webp"]


def test_grey_and_transparent_images_become_rgb(tmp_path):
    grey, palette, turned = PIXELS[..., 0], Image.fromarray(PIXELS).quantize(8), Image.Exif()
    turned[0x0112] = 6  # orientation: to be shown turned by 90 degrees, which is not done
    three = np.repeat(grey[..., None], 3, axis=2)
    for name, picture, expected, options in (
        ("grey.png", Image.fromarray(grey), three, {}),
        ("alpha.png", Image.fromarray(np.dstack([PIXELS, grey])), PIXELS, {}),  # transparency is dropped
        ("grey_alpha.png", Image.fromarray(np.dstack([grey, grey])), three, {}),
        ("palette.png", palette, np.asarray(palette.convert("RGB")), {}),
        ("cmyk.tif", Image.fromarray(PIXELS).convert("CMYK"), PIXELS, {}),
        ("turned.png", Image.fromarray(PIXELS), PIXELS, {"exif": turned}),
    ):
        picture.save(tmp_path / name, **options)
        with pytest.warns(LogNWarning, match="EXIF rotation") if options else nullcontext():
            np.testing.assert_array_equal(read_rgb(tmp_path / name), expected)
    assert Preprocessing().apply(read_rgb(tmp_path / "grey.png")).shape == (3, 6, 4)


@pytest.mark.parametrize("name", ["wide.png", "wide.tif", "wide.pgm", "big_endian.tif"])
def test_16_bits_are_brought_to_8_and_not_to_white(tmp_path, name):
    levels = np.array([[0, 128, 129, 257], [25700, 32768, 65407, 65535]], np.uint16)
    if name == "wide.pgm":
        (tmp_path / name).write_bytes(b"P5 4 2 65535\n" + levels.astype(">u2").tobytes())
    elif name == "big_endian.tif":
        Image.frombytes("I;16B", (4, 2), levels.astype(">u2").tobytes()).save(tmp_path / name)
    else:
        Image.fromarray(levels).save(tmp_path / name)
    expected = np.array([[0, 0, 1, 1], [100, 128, 255, 255]], np.uint8)  # a 257th, rounded
    np.testing.assert_array_equal(read_rgb(tmp_path / name), np.repeat(expected[..., None], 3, axis=2))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_numbers_whose_white_is_not_known_are_refused(tmp_path, dtype):
    Image.fromarray(np.arange(6, dtype=dtype).reshape(2, 3)).save(tmp_path / "depth.tif")
    with pytest.raises(InputError, match=r"depth\.tif.*32 bits and no known white"):
        read_rgb(tmp_path / "depth.tif")


@pytest.mark.parametrize(
    "settings",
    [
        {"resize": "zoom"},
        {"layout": "CHWN"},
        {"dtype": "int8"},
        {"max_value": 127.0},
        {"size": (0, 4)},
        {"mean": (1.0, 2.0)},
        {"std": (0.0,)},
    ],
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(InputError, match=f"`{next(iter(settings))}`"):
        Preprocessing(**settings)


def test_wrong_folders_and_files_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n")
    for call, name, message in (
        (find_images, "empty", "holds no images"),
        (find_images, "none", "There is no folder of images"),
        (read_rgb, "broken.png", r"broken\.png` cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            call(tmp_path / name)


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
