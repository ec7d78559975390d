"""An SSD as TensorFlow's exports have it: pixels in, boxes chosen inside, in the main graph or in a Loop or an If."""

import numpy as np
import pytest
from PIL import Image
from tests.made.onnx_graphs import write_graph

from logn.errors import InputError
from logn.models.onnx.file import read_onnx
from logn.models.onnx.fold import fold_onnx
from logn.models.onnx.model import record_onnx
from logn.models.open import detector as open_detector

CLASSES = 6  # and the unused background before them
ANCHORS = 2
SIZE = 64

# The scores of one image, without the background, and the best of them.
CHOICE = """{p}s = Slice({p}scores, one, end, two) {p}st = Transpose <perm = [0, 2, 1]> ({p}s)
{p}kept = NonMaxSuppression(boxes, {p}st, most, overlap, lowest) {p}flat = Reshape({p}st, minus)
{p}best, {p}at = TopK({p}flat, most)"""


def ssd(path, where):
    """Write the file; at one level the bias is added behind the Transpose, channels last."""
    width = CLASSES + 1
    lines = [
        "f = Cast <to = 1> (image) h = Mul(f, half) g = Sub(h, unit)",
        't = Transpose <perm = [0, 3, 1, 2]> (g) r = Resize <mode = "linear"> (t, , , sizes)',
        "a0 = Conv <strides = [8, 8]> (r, w0) b0 = Add(a0, v0) x0 = Clip(b0, zero, six)",
        "a1 = Conv <strides = [2, 2]> (x0, w1) b1 = Add(a1, v1) x1 = Clip(b1, zero, six)",
        "c0 = Conv(x0, cw0) d0 = Transpose <perm = [0, 2, 3, 1]> (c0) e0 = Add(d0, cb0) l0 = Reshape(e0, rows)",
        "c1 = Conv(x1, cw1) d1 = Add(c1, cb1) e1 = Transpose <perm = [0, 2, 3, 1]> (d1) l1 = Reshape(e1, rows)",
        "logits = Concat <axis = 1> (l0, l1)",
        *(
            f"p{level} = Conv(x{level}, bw{level}) q{level} = Transpose <perm = [0, 2, 3, 1]> (p{level}) "
            f"o{level} = Reshape(q{level}, fours)"
            for level in (0, 1)
        ),
        "offsets = Concat <axis = 1> (o0, o1) moved = Mul(offsets, tenth) boxes = Add(moved, anchors)",
        {"main": MAIN, "loop": LOOP, "if": IF}[where],
    ]
    outputs = "float[100] detection_scores" if where != "loop" else "float[1, 100] detection_scores"
    draw = np.random.default_rng(0).normal
    channels = ANCHORS * width
    weights = {
        "w0": draw(0, 0.3, (8, 3, 8, 8)), "v0": draw(3, 1, (1, 8, 1, 1)), "w1": draw(0, 0.3, (8, 8, 2, 2)),
        "v1": draw(3, 1, (1, 8, 1, 1)), "cw0": draw(0, 0.2, (channels, 8, 1, 1)), "cb0": draw(0, 1, channels),
        "cw1": draw(0, 0.2, (channels, 8, 1, 1)), "cb1": draw(0, 1, (1, channels, 1, 1)),
        "bw0": draw(0, 1, (4 * ANCHORS, 8, 1, 1)), "bw1": draw(0, 1, (4 * ANCHORS, 8, 1, 1)),
        "anchors": draw(0, 1, (1, ANCHORS * (64 + 16), 4)), "half": 2 / 255, "unit": 1.0, "zero": 0.0, "six": 6.0,
        "tenth": 0.1, "overlap": [0.6], "lowest": [0.0],
    }  # fmt: skip
    whole = {
        "sizes": [1, 3, SIZE, SIZE], "rows": [1, -1, width], "fours": [1, -1, 4], "one": [1], "two": [2],
        "end": [2**31 - 1], "most": [100], "minus": [-1], "turns": 1, "front": [0],
    }  # fmt: skip
    arrays = {name: np.array(value, np.float32) for name, value in weights.items()}
    arrays |= {name: np.array(value, np.int64) for name, value in whole.items()} | {"go": np.array(True)}
    return write_graph(path, " ".join(lines), outputs, inputs="uint8[1, height, width, 3] image", **arrays)


MAIN = "scores = Sigmoid(logits) " + CHOICE.format(p="") + " detection_scores = Identity(best)"
LOOP = (
    "detection_scores = Loop <body = turn (int64 i, bool c) => (bool more, float[100] one_image) { more = Identity(c) "
    "k = Gather <axis = 0> (logits, i) u = Unsqueeze(k, front) m_scores = Sigmoid(u) "
    + CHOICE.format(p="m_")
    + " one_image = Identity(m_best) }> (turns, go)"
)
IF = (
    "detection_scores = If <then_branch = yes () => (float[100] y_best) { y_scores = Sigmoid(logits) "
    + CHOICE.format(p="y_")
    + " }, else_branch = no () => (float[100] n_best) { n_scores = Sigmoid(logits) "
    + CHOICE.format(p="n_")
    + " }> (go)"
)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 56, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.fixture(params=["main", "loop", "if"])
def where(request):
    return request.param


def test_statistics_are_of_every_anchor_before_the_choice(tmp_path, images, where):
    path = ssd(tmp_path / "ssd.onnx", where)
    # In the main graph the background is seen to be cut off; what happens inside a Loop or an If is not followed.
    first, named = (1, {}) if where == "main" else (0, {"tensor": "logits", "activation": "sigmoid"})
    moments = record_onnx(path, images, like="ssd", **named)
    assert moments.head.layer == "logits"
    assert (moments.head.activation, moments.head.background) == ("sigmoid", None)
    assert moments.num_columns == CLASSES + 1 - first
    session = read_onnx(path).session(["logits"])
    rows = []
    for file in sorted(images.iterdir()):
        scaled = Image.open(file).resize((300, 300), Image.Resampling.BILINEAR)
        rows.append(session.run({"image": np.asarray(scaled)[None]}, ["logits"])["logits"][0])
    expected = np.concatenate(rows)[:, first:].astype(np.float64)
    np.testing.assert_array_equal(moments.count, len(expected))
    np.testing.assert_allclose(moments.mean, expected.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(moments.variance, expected.var(axis=0, ddof=1), rtol=1e-4)


def test_the_map_is_applied_and_nothing_else_changes(tmp_path, map_of, interface, where):
    path = ssd(tmp_path / "ssd.onnx", where)
    for columns in (CLASSES, CLASSES + 1) if where == "main" else (CLASSES + 1,):
        affine = map_of(columns)
        target = tmp_path / f"{columns}.onnx"
        report = fold_onnx(path, affine, target, tensor=None if where == "main" else "logits")
        assert report.tensors == ("logits",)
        assert interface(path) == interface(target)
        pixels = {"image": np.random.default_rng(5).integers(0, 256, (1, 50, 70, 3), dtype=np.uint8)}
        before, after = (read_onnx(file).session(["logits", "boxes"]).run(pixels) for file in (path, target))
        np.testing.assert_array_equal(after["boxes"], before["boxes"])
        classes = slice(CLASSES + 1 - columns, None)
        np.testing.assert_allclose(after["logits"][..., classes], affine(before["logits"][..., classes]), atol=1e-4)
        np.testing.assert_array_equal(after["logits"][..., : classes.start], before["logits"][..., : classes.start])
        best = np.sort(1 / (1 + np.exp(-after["logits"][..., 1:].astype(np.float64))), axis=None)[::-1][:100]
        np.testing.assert_allclose(after["detection_scores"].reshape(-1), best, atol=1e-5)


def test_its_predictions_cannot_be_stored_and_the_reason_is_said(tmp_path, where):
    with pytest.raises(InputError, match=r"chooses among its boxes inside the graph \(NonMaxSuppression\)"):
        open_detector(ssd(tmp_path / "ssd.onnx", where), like="ssd")


def test_a_background_that_the_user_counts_stays_a_column(tmp_path, images):
    moments = record_onnx(ssd(tmp_path / "ssd.onnx", "main"), images, like="ssd", background=0)
    assert (moments.num_columns, moments.head.background) == (CLASSES + 1, 0)
