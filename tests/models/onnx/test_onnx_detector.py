"""ONNX detectors in the layouts of public ones: logits found, folded and recorded, and boxes as a decoder by hand."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper
from PIL import Image
from tests.made.onnx_graphs import write_graph

import logn
from logn.data.images import read_rgb
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.methods.sampled_scores import class_scores
from logn.models.onnx.boxes import find_objectness
from logn.models.onnx.file import read_onnx
from logn.models.onnx.fold import fold_onnx
from logn.models.onnx.locate import OnnxLogits, Wanted, locate
from logn.models.onnx.model import record_onnx
from logn.models.open import detector as open_detector
from logn.models.preprocessing import PRESETS, Preprocessing

SIZE, CLASSES, STRIDES = 64, 6, (8, 16, 32)
CELLS = [SIZE // stride for stride in STRIDES]
ANCHORS = [[(10, 13), (16, 30), (33, 23)], [(30, 61), (62, 45), (59, 119)], [(116, 90), (156, 198), (373, 326)]]


class Writer:
    """Collects the text and the weights of a graph over pooled images, one level per stride."""

    def __init__(self, seed=0):
        self.generator = np.random.default_rng(seed)
        self.lines, self.weights = [], {}
        for level, stride in enumerate(STRIDES):
            self.lines.append(
                f"f{level} = AveragePool <kernel_shape = [{stride}, {stride}], strides = [{stride}, {stride}]> (x)"
            )

    def constant(self, name, values, kind=np.int64):
        self.weights[name] = np.array(values, kind)

    def conv(self, name, level, channels, spread=2.0):
        self.weights[f"{name}_w"] = self.generator.normal(0, spread, (channels, 3, 1, 1)).astype(np.float32)
        self.weights[f"{name}_b"] = self.generator.normal(0, 1, channels).astype(np.float32)
        self.lines.append(f"{name} = Conv(f{level}, {name}_w, {name}_b)")

    def add(self, line):
        self.lines.append(line)

    def each(self, *lines):
        """Add lines for each level, whose number stands for `#`."""
        self.lines += [line.replace("#", str(level)) for level in range(3) for line in lines]

    def save(self, path, outputs, metadata=None):
        image = f"float[1, 3, {SIZE}, {SIZE}] x"
        return write_graph(path, " ".join(self.lines), outputs, inputs=image, metadata=metadata, **self.weights)


def yolox(path, classes=CLASSES):
    """Box, objectness and class scores of three levels in one output; boxes are offsets to a grid."""
    graph = Writer()
    graph.constant("flat", [1, 5 + classes, -1])
    for level in range(3):
        graph.conv(f"cls{level}", level, classes, spread=0.02)
        graph.conv(f"reg{level}", level, 4, spread=0.005)
        graph.conv(f"obj{level}", level, 1, spread=0.02)
    graph.each("so# = Sigmoid(obj#) sc# = Sigmoid(cls#) j# = Concat <axis = 1> (reg#, so#, sc#) r# = Reshape(j#, flat)")
    graph.add("all = Concat <axis = 2> (r0, r1, r2) y = Transpose <perm = [0, 2, 1]> (all)")
    return graph.save(path, f"float[1, N, {5 + classes}] y")


def nanodet(path, classes=CLASSES, bins=8):
    """Scores and box distributions of three levels as outputs of their own, from one layer a level."""
    graph = Writer(1)
    graph.constant("parts", [classes, 4 * bins])
    graph.constant("score_shape", [1, classes, -1])
    graph.constant("bins_shape", [1, 4 * bins, -1])
    for level in range(3):
        graph.conv(f"all{level}", level, classes + 4 * bins)
    graph.each(
        "c#, d# = Split <axis = 1> (all#, parts) s# = Sigmoid(c#)",
        "rs# = Reshape(s#, score_shape) scores# = Transpose <perm = [0, 2, 1]> (rs#)",
        "rd# = Reshape(d#, bins_shape) bins# = Transpose <perm = [0, 2, 1]> (rd#)",
    )
    scores = [f"float[1, N{level}, {classes}] scores{level}" for level in range(3)]
    return graph.save(path, ", ".join(scores + [f"float[1, N{level}, {4 * bins}] bins{level}" for level in range(3)]))


def yolov5(path, classes=CLASSES):
    """Box, objectness and classes of three anchors through one sigmoid; the box is then computed with."""
    graph, width = Writer(2), 5 + classes
    graph.constant("parts", [2, 2, 1 + classes])
    graph.constant("rows", [1, -1, width])
    graph.constant("two", 2.0, np.float32)
    graph.constant("half", 0.5, np.float32)
    for level, (stride, cells) in enumerate(zip(STRIDES, CELLS, strict=True)):
        graph.constant(f"split{level}", [1, 3, width, cells, cells])
        places = np.stack(np.meshgrid(np.arange(cells), np.arange(cells)), -1)
        graph.constant(f"grid{level}", np.broadcast_to(places, (1, 3, cells, cells, 2)), np.float32)
        graph.constant(f"stride{level}", float(stride), np.float32)
        graph.constant(f"anchor{level}", np.array(ANCHORS[level]).reshape(1, 3, 1, 1, 2), np.float32)
        graph.conv(f"m{level}", level, 3 * width)
    graph.each(
        "v# = Reshape(m#, split#) t# = Transpose <perm = [0, 1, 3, 4, 2]> (v#) s# = Sigmoid(t#)",
        "a#, b#, c# = Split <axis = 4> (s#, parts) a2# = Mul(a#, two) a3# = Add(a2#, grid#) a4# = Sub(a3#, half)",
        "xy# = Mul(a4#, stride#) b2# = Mul(b#, two) b3# = Mul(b2#, b2#) wh# = Mul(b3#, anchor#)",
        "o# = Concat <axis = 4> (xy#, wh#, c#) r# = Reshape(o#, rows)",
    )
    graph.add("y = Concat <axis = 1> (r0, r1, r2)")
    return graph.save(path, f"float[1, N, {width}] y")


def yolov8(path, classes=CLASSES, bins=16, metadata=None):
    """Classes beside boxes that are the mean of a softmax over 16 bins."""
    graph, count = Writer(3), sum(cells**2 for cells in CELLS)
    for level in range(3):
        graph.conv(f"box{level}", level, 4 * bins)
        graph.conv(f"cls{level}", level, classes)
    shapes = {"b_shape": [1, 4 * bins, -1], "c_shape": [1, classes, -1], "fold": [1, 4, bins, count]}
    for name, shape in {**shapes, "four": [1, 4, count], "halves": [2, 2]}.items():
        graph.constant(name, shape)
    graph.constant("numbers", np.arange(bins).reshape(1, bins, 1, 1), np.float32)
    graph.constant("two", 2.0, np.float32)
    places = [(x + 0.5, y + 0.5) for cells in CELLS for y in range(cells) for x in range(cells)]
    graph.constant("places", np.array(places).T[None], np.float32)
    graph.constant("strides", np.repeat(STRIDES, np.square(CELLS))[None, None], np.float32)
    graph.each("rb# = Reshape(box#, b_shape) rc# = Reshape(cls#, c_shape)")
    graph.add("bx = Concat <axis = 2> (rb0, rb1, rb2) cl = Concat <axis = 2> (rc0, rc1, rc2)")
    graph.add("q = Reshape(bx, fold) qt = Transpose <perm = [0, 2, 1, 3]> (q) p = Softmax <axis = 1> (qt)")
    graph.add("e = Conv(p, numbers) d = Reshape(e, four) lt, rb = Split <axis = 1> (d, halves)")
    graph.add("low = Sub(places, lt) high = Add(places, rb) sum = Add(low, high) mid = Div(sum, two)")
    graph.add("wh = Sub(high, low) b4 = Concat <axis = 1> (mid, wh) bp = Mul(b4, strides)")
    graph.add("sg = Sigmoid(cl) y = Concat <axis = 1> (bp, sg)")
    return graph.save(path, f"float[1, {4 + classes}, N] y", metadata)


def detr(path, classes=CLASSES):
    """Raw logits with a last column for no object, and boxes from 0 to 1 behind a sigmoid."""
    graph = Writer(4)
    graph.constant("tokens", [1, 3, -1])
    for name, width in (("class_embed", classes + 1), ("bbox_embed", 4)):
        graph.constant(f"{name}_weight", graph.generator.normal(0, 2, (3, width)), np.float32)
        graph.constant(f"{name}_bias", graph.generator.normal(0, 1, width), np.float32)
    graph.add("t = Reshape(f0, tokens) q = Transpose <perm = [0, 2, 1]> (t) m = MatMul(q, class_embed_weight)")
    graph.add("logits = Add(m, class_embed_bias) n = MatMul(q, bbox_embed_weight) o = Add(n, bbox_embed_bias)")
    graph.add("pred_boxes = Sigmoid(o)")
    return graph.save(path, f"float[1, N, {classes + 1}] logits, float[1, N, 4] pred_boxes")


def sigmoid(values):
    return 1 / (1 + np.exp(-values.astype(np.float64)))


def by_hand(name, outputs):
    """Boxes, class scores and objectness of one image, each loop as the authors describe it."""
    if name == "yolox":
        boxes, row = [], 0
        for stride, cells in zip(STRIDES, CELLS, strict=True):
            for y in range(cells):
                for x in range(cells):
                    dx, dy, w, h = outputs[0][0, row, :4]
                    cx, cy, w, h = (dx + x) * stride, (dy + y) * stride, np.exp(w) * stride, np.exp(h) * stride
                    boxes.append((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2))
                    row += 1
        return np.array(boxes), outputs[0][0, :, 5:], outputs[0][0, :, 4]
    if name == "nanodet":
        boxes = []
        for stride, cells, level in zip(STRIDES, CELLS, outputs[3:], strict=True):
            for place, row in enumerate(level[0]):
                powers = np.exp(row.reshape(4, -1))
                left, top, right, bottom = (powers / powers.sum(1, keepdims=True) @ np.arange(8)) * stride
                cx, cy = (place % cells + 0.5) * stride, (place // cells + 0.5) * stride
                boxes.append((cx - left, cy - top, cx + right, cy + bottom))
        return np.array(boxes), np.concatenate([level[0] for level in outputs[:3]]), None
    if name == "detr":
        logits, boxes = outputs[0][0], outputs[1][0] * SIZE
        scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        return corners(boxes), scores[:, :-1], None
    rows = outputs[0][0] if name == "yolov5" else outputs[0][0].T
    return corners(rows[:, :4]), rows[:, -CLASSES:], rows[:, 4] if name == "yolov5" else None


def corners(boxes):
    return np.stack([*(boxes[:, :2] - boxes[:, 2:] / 2).T, *(boxes[:, :2] + boxes[:, 2:] / 2).T], axis=1)


LAYOUTS = {"yolox": yolox, "nanodet": nanodet, "yolov5": yolov5, "yolov8": yolov8, "detr": detr}
LIKE = {"yolov8": "ultralytics"}


def picture(height=SIZE, width=SIZE, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def session_of(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_boxes_scores_and_objectness_are_those_of_a_decoder_by_hand(tmp_path, name):
    path = LAYOUTS[name](tmp_path / "m.onnx")
    detector = open_detector(path, like=LIKE.get(name, name))
    image = picture()
    found = detector.propose([image])[0]
    pixels = detector.prepare(image).pixels[None]
    boxes, scores, objectness = by_hand(name, session_of(path).run(None, {"x": pixels}))
    np.testing.assert_allclose(found.boxes, boxes, rtol=1e-4, atol=1e-3)
    logits = found.logits.astype(np.float64)
    powers = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    ours = powers[:, :-1] if name == "detr" else sigmoid(logits)
    np.testing.assert_allclose(ours, scores, rtol=1e-4, atol=1e-6)
    if objectness is None:
        assert found.objectness is None
    else:
        np.testing.assert_allclose(sigmoid(found.objectness), objectness, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["yolox", "nanodet", "yolov5", "yolov8"])
def test_boxes_come_back_from_a_letterbox(tmp_path, name):
    """A wide image lies in a band of the input: its boxes are those of the band, scaled back."""
    detector = open_detector(LAYOUTS[name](tmp_path / "m.onnx"), like=LIKE.get(name, name))
    image = picture(40, 160)
    whole, prepared = detector.propose([image])[0], detector.prepare(image)
    top = 0 if name == "yolox" else 24
    assert prepared.pixels.shape == (3, SIZE, SIZE)
    np.testing.assert_array_equal(prepared.pixels, detector.preprocessing.apply(image))
    boxes, _, _ = by_hand(name, session_of(tmp_path / "m.onnx").run(None, {"x": prepared.pixels[None]}))
    np.testing.assert_allclose(whole.boxes, (boxes - [0, top, 0, top]) / 0.4, rtol=1e-4, atol=1e-2)
    assert (whole.height, whole.width) == (40, 160)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("classes", [CLASSES, 16, 4], ids=str)
def test_the_classes_alone_are_found_and_folded(tmp_path, name, classes):
    """16 is also the number of bins of a distribution, and 4 that of the numbers of a box."""
    source = LAYOUTS[name](tmp_path / "m.onnx", classes)
    columns = classes + (name == "detr")
    found = locate(read_onnx(source), Wanted()).logits
    assert (found.num_columns, found.start) == (columns, 5 if name == "yolov5" else 0)
    generator = np.random.default_rng(5)
    affine = ClassAffine(generator.uniform(0.5, 2, columns), generator.normal(size=columns))
    assert fold_onnx(source, affine, tmp_path / "out.onnx").tensors == found.tensors
    like = LIKE.get(name, name)
    old, new = (open_detector(tmp_path / file, like=like).propose([picture()])[0] for file in ("m.onnx", "out.onnx"))
    np.testing.assert_array_equal(new.boxes, old.boxes)
    np.testing.assert_allclose(new.logits, affine(old.logits.astype(np.float64)), rtol=1e-4, atol=1e-4)
    if old.objectness is not None:
        np.testing.assert_array_equal(new.objectness, old.objectness)


@pytest.mark.parametrize("name", LAYOUTS)
def test_statistics_are_those_of_all_levels_together(tmp_path, name):
    source, folder, like = LAYOUTS[name](tmp_path / "m.onnx"), pictures(tmp_path / "images", 3), LIKE.get(name, name)
    moments, detector = record_onnx(source, folder, like=like), open_detector(source, like=like)
    rows = np.concatenate([detector.propose([read_rgb(image)])[0].logits for image in sorted(folder.iterdir())])
    assert moments.count.tolist() == [len(rows)] * rows.shape[1]
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moments.variance, rows.var(0, ddof=1), rtol=1e-4)
    assert (moments.sample_objectness is None) == (name not in ("yolox", "yolov5"))


def raw_levels(path, classes=CLASSES):
    """Box, objectness and classes of three anchors as the layers give them, one output per level."""
    graph, width = Writer(7), 5 + classes
    for level, cells in enumerate(CELLS):
        graph.constant(f"split{level}", [1, 3, width, cells, cells])
        graph.conv(f"m{level}", level, 3 * width)
    graph.each("v# = Reshape(m#, split#) y# = Transpose <perm = [0, 1, 3, 4, 2]> (v#)")
    return graph.save(path, ", ".join(f"float[1, 3, A{i}, B{i}, {width}] y{i}" for i in range(3)))


def with_tail(path):
    """The same model, each class half a logit below the one before."""
    model = onnx.load(str(path))
    for tensor in model.graph.initializer:
        if tensor.name.startswith(("cls", "m")) and tensor.name.endswith("_b"):
            biases = numpy_helper.to_array(tensor).copy()
            width = len(biases) // 3 if tensor.name.startswith("m") else CLASSES
            biases.reshape(-1, width)[:, -CLASSES:] -= 0.5 * np.arange(CLASSES, dtype=np.float32)
            tensor.CopyFrom(numpy_helper.from_array(biases, tensor.name))
    onnx.save_model(model, str(path))
    return path


def pictures(folder, count):
    """Of every brightness, so that scores spread."""
    folder.mkdir()
    for number in range(count):
        Image.fromarray((picture(seed=number) * (number + 1) / count).astype(np.uint8)).save(
            folder / f"{number:02}.png"
        )
    return folder


def score_parts(name, path, folder):
    """Objectness and class scores of all boxes of all images, as the outputs of the file have them."""
    session = session_of(path)
    prepare = PRESETS["yolov5" if name == "raw" else name].preprocessing
    rows = []
    for image in sorted(folder.iterdir()):
        ready = replace(prepare, size=(SIZE, SIZE), layout="NCHW", dtype="float32")
        outputs = session.run(None, {"x": ready.apply(read_rgb(image))[None]})
        rows.extend(output.reshape(-1, 5 + CLASSES)[:, 4:].astype(np.float64) for output in outputs)
    values = np.concatenate(rows)
    values = sigmoid(values) if name == "raw" else values
    return values[:, :1], values[:, 1:]


@pytest.mark.parametrize("name", ["yolox", "yolov5", "raw"])
def test_an_objectness_is_recorded(tmp_path, name):
    source = {**LAYOUTS, "raw": raw_levels}[name](tmp_path / "m.onnx")
    folder = pictures(tmp_path / "images", 5)
    moments = record_onnx(source, folder, like="yolov5" if name == "raw" else name)
    objectness, classes = score_parts(name, source, folder)
    assert moments.count.tolist() == [len(classes)] * CLASSES
    np.testing.assert_allclose(moments.mean_probability, (objectness * classes).mean(axis=0), rtol=1e-4)
    sampled = sigmoid(moments.sample_objectness)[:, None] * sigmoid(moments.sample)
    np.testing.assert_allclose(np.sort(sampled, axis=0), np.sort(objectness * classes, axis=0), rtol=2e-2, atol=1e-5)


@pytest.mark.parametrize("name", ["yolox", "yolov5"])
@pytest.mark.parametrize("threshold", [0.25, 0.5])
def test_a_corrected_file_keeps_its_number_of_scores(tmp_path, name, threshold):
    source, folder = with_tail(LAYOUTS[name](tmp_path / "m.onnx")), pictures(tmp_path / "images", 12)
    done = logn.correct(source, folder, tmp_path / "new.onnx", like=name, at=threshold)
    (moments,), (affine,) = done.moments, done.maps
    assert len(moments.sample) == moments.count.max()  # all rows are in it
    before, after = (int((class_scores(moments, part, "sigmoid") > threshold).sum()) for part in (None, affine))
    assert before >= 100
    assert abs(after - before) <= 1
    numbers = []
    for path in (source, tmp_path / "new.onnx"):
        objectness, classes = score_parts(name, path, folder)
        numbers.append(int((objectness * classes > threshold).sum()))
    assert numbers[1] == pytest.approx(numbers[0], rel=0.01)  # the sample is rounded to float16
    alone = int((score_parts(name, source, folder)[1] > threshold).sum())
    assert alone > 1.2 * numbers[0]  # without the objectness another number would be kept


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_levels_of_low_scores_are_not_mistaken_for_each_other(dtype):
    """The order of the levels in the output is found though all scores are below 1e-4."""
    rng = np.random.default_rng(0)
    first, second = (rng.normal(-10, 0.4, (1, 50, 3)).astype(dtype) for _ in range(2))
    logits = OnnxLogits(("a", "b"), -1, 3, np.dtype(dtype), "sigmoid", (), 0, 3)
    scores = sigmoid(np.concatenate([second, first], axis=1)).astype(dtype)
    boxes, objectness = np.ones((1, 100, 4), dtype), rng.uniform(0.1, 0.9, (1, 100, 1)).astype(dtype)
    values = {"a": first, "b": second, "y": np.concatenate([boxes, objectness, scores], axis=2)}
    found = find_objectness(SimpleNamespace(outputs=["y"]), logits, values)
    assert (found.order, found.outputs) == ((1, 0), ("y",))
    np.testing.assert_allclose(sigmoid(found.objectness_logits(values["y"])), objectness[..., 0], rtol=1e-5)
    assert find_objectness(SimpleNamespace(outputs=["y"]), logits, values | {"y": values["y"][..., 1:]}) is None


def test_metadata_say_classes_and_preprocessing(tmp_path):
    names = {place: f"thing {place}" for place in range(CLASSES)}
    metadata = {"names": str(names), "stride": "32", "task": "detect", "imgsz": f"[{SIZE}, {SIZE}]", "head": "Detect"}
    detector = open_detector(yolov8(tmp_path / "m.onnx", metadata=metadata))
    assert detector.class_names == tuple(names.values())
    assert (detector.preprocessing.resize, detector.preprocessing.size) == ("letterbox", (SIZE, SIZE))
    assert detector.postprocessing.nms_iou == 0.7
    # A processor beside the file says it, too.
    settings = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.1, 0.2, 0.3]}
    settings |= {"image_std": [0.5, 0.5, 0.25], "size": {"height": SIZE, "width": SIZE}}
    settings |= {"image_processor_type": "DetrImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    Image.fromarray(picture()).save(tmp_path / "image.png")
    ready = open_detector(detr(tmp_path / "m.onnx")).prepare(picture()).pixels
    expected = Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.25), dtype="float32")
    np.testing.assert_array_equal(ready, expected.apply(read_rgb(tmp_path / "image.png")))


def test_like_is_a_preset_a_json_file_or_a_preprocessing(tmp_path):
    path = yolox(tmp_path / "m.onnx")
    (tmp_path / "own.json").write_text('{"size": [64, 64], "resize": "letterbox", "mean": [1, 2, 3]}')
    expected = Preprocessing((64, 64), "letterbox", mean=(1, 2, 3))
    for like in (tmp_path / "own.json", str(tmp_path / "own.json"), expected):
        found = open_detector(path, like=like, activation="sigmoid").preprocessing
        assert (found.size, found.resize, found.mean) == ((64, 64), "letterbox", (1, 2, 3))
    with pytest.raises(InputError, match=r"how its images are prepared. Pass `like`: one of yolov5"):
        open_detector(path)
    with pytest.raises(InputError, match=r"Expected `size` to be \(64, 64\)"):
        open_detector(path, like=Preprocessing((32, 32)))


def test_a_model_that_chooses_its_boxes_inside_is_corrected_but_not_stored(tmp_path):
    graph = Writer(6)
    graph.conv("cls", 0, CLASSES)
    graph.conv("reg", 0, 4)
    graph.constant("k", [5])
    graph.constant("cs", [1, CLASSES, -1])
    graph.constant("bs", [1, 4, -1])
    graph.add("c = Reshape(cls, cs) s = Sigmoid(c) t = Transpose <perm = [0, 2, 1]> (s) b = Reshape(reg, bs)")
    graph.add("bt = Transpose <perm = [0, 2, 1]> (b) best = ReduceMax <axes = [2], keepdims = 0> (t)")
    graph.add("v, i = TopK(best, k) scores = Gather <axis = 1> (t, i) boxes = Gather <axis = 1> (bt, i)")
    source = graph.save(tmp_path / "m.onnx", f"float[A, B, C, {CLASSES}] scores, float[D, E, F, 4] boxes")
    report = fold_onnx(source, ClassAffine(np.full(CLASSES, 2.0), np.zeros(CLASSES)), tmp_path / "out.onnx")
    assert report.tensors == ("c",)
    with pytest.raises(InputError, match=r"chooses among its boxes inside the graph \(TopK\).*can be corrected"):
        open_detector(source, like="ultralytics")


def test_several_images_at_once_are_those_one_by_one(tmp_path):
    detector = open_detector(yolox(tmp_path / "m.onnx"), like="yolox")
    images = [picture(seed=seed) for seed in range(3)]
    for image, found in zip(images, detector.propose(images), strict=True):
        np.testing.assert_array_equal(found.logits, detector.propose([image])[0].logits)


def test_raw_levels_with_box_objectness_and_classes_are_split_where_the_user_says_so(tmp_path):
    source = raw_levels(tmp_path / "m.onnx")
    found = locate(read_onnx(source), Wanted(start=5)).logits
    assert (found.num_columns, found.start, found.activation, len(found.tensors)) == (CLASSES, 5, None, 3)


def cut_heads(path, anchors, classes=CLASSES, *, cut="Split", order="anchor * columns"):
    """A head per level whose box is cut off before the sigmoid: box, objectness and classes, or box and classes."""
    graph, width = Writer(8), 5 + classes
    graph.constant("parts", [4, 1 + classes])
    graph.constant("four", [4])
    graph.constant("end", [2**31 - 1])
    graph.constant("axis", [4])
    graph.constant("rows", [1, -1, 1 + classes])
    grouped = order.startswith("anchor")
    for level, cells in enumerate(CELLS):
        shape = [anchors, width] if grouped else [width, anchors]
        graph.constant(f"split{level}", [1, *shape, cells, cells])
        graph.conv(f"m{level}", level, anchors * width)
    permutation = [0, 1, 3, 4, 2] if grouped else [0, 2, 3, 4, 1]
    graph.each(f"v# = Reshape(m#, split#) t# = Transpose <perm = {permutation}> (v#)")
    split = "b#, c# = Split <axis = 4> (t#, parts)"
    graph.each(split if cut == "Split" else "b# = Slice(t#, zero, four, axis) c# = Slice(t#, four, end, axis)")
    graph.constant("zero", [0])
    graph.each("r# = Reshape(c#, rows)")
    graph.add("z = Concat <axis = 1> (r0, r1, r2) y = Sigmoid(z)")
    boxes = ", ".join(f"float[A{level}, B{level}, C{level}, D{level}, 4] b{level}" for level in range(3))
    return graph.save(path, f"float[1, N, {1 + classes}] y, {boxes}")


@pytest.mark.parametrize("cut", ["Split", "Slice"])
@pytest.mark.parametrize("order", ["anchor * columns", "columns * anchors"])
def test_columns_right_behind_a_box_begin_with_an_objectness_where_there_are_anchors(tmp_path, cut, order):
    source = read_onnx(cut_heads(tmp_path / "m.onnx", 3, cut=cut, order=order))
    assert [(found.start, found.num_columns) for found in [locate(source, Wanted()).logits]] == [(1, CLASSES)]


def test_of_one_box_per_place_the_user_has_to_say_whether_an_objectness_follows(tmp_path):
    source = read_onnx(cut_heads(tmp_path / "m.onnx", 1))
    with pytest.raises(InputError, match="num_columns"):
        locate(source, Wanted())
    for columns, start in ((CLASSES, 1), (CLASSES + 1, 0)):
        found = locate(source, Wanted(columns)).logits
        assert (found.start, found.num_columns) == (start, columns)


def test_columns_beside_boxes_of_another_layer_are_all_classes(tmp_path):
    """A box that is joined with the scores, and then cut off again, is none of their layer."""
    graph = Writer(9)
    graph.constant("parts", [4, CLASSES])
    for level in range(3):
        graph.conv(f"cls{level}", level, CLASSES)
        graph.conv(f"reg{level}", level, 4)
        graph.constant(f"rows{level}", [1, 4 + CLASSES, -1])
    graph.each("j# = Concat <axis = 1> (reg#, cls#) r# = Reshape(j#, rows#)")
    graph.add("all = Concat <axis = 2> (r0, r1, r2) boxes, z = Split <axis = 1> (all, parts) y = Sigmoid(z)")
    found = locate(
        read_onnx(graph.save(tmp_path / "m.onnx", f"float[1, {CLASSES}, N] y, float[1, 4, N] boxes")), Wanted()
    )
    assert (found.logits.start, found.logits.num_columns) == (0, CLASSES)
    assert {layer.weight for layer in found.logits.layers} == {"cls0_w", "cls1_w", "cls2_w"}
