"""`logn predict model.onnx`: from a detector and labels to a store that can be measured; bad input leaves nothing."""

import json

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from PIL import Image

from logn.evaluate.store.store import PredictionStore

NAMES = ("cat", "dog", "cow")


@pytest.fixture
def detector(tmp_path):
    """One level of boxes, objectness and three classes, as YOLOX has them over an input of 32 (strides 8, 16, 32)."""
    lines, weights = [], {"flat": np.array([1, 8, -1])}
    generator = np.random.default_rng(0)
    for level, stride in enumerate((8, 16, 32)):
        lines.append(
            f"f{level} = AveragePool <kernel_shape = [{stride}, {stride}], strides = [{stride}, {stride}]> (x)"
        )
        for name, width in (("reg", 4), ("obj", 1), ("cls", 3)):
            weights[f"{name}{level}_w"] = generator.normal(0, 0.01, (width, 3, 1, 1)).astype(np.float32)
            lines.append(f"{name}{level} = Conv(f{level}, {name}{level}_w)")
        lines.append(f"o{level} = Sigmoid(obj{level}) c{level} = Sigmoid(cls{level})")
        lines.append(
            f"j{level} = Concat <axis = 1> (reg{level}, o{level}, c{level}) r{level} = Reshape(j{level}, flat)"
        )
    lines.append("a = Concat <axis = 2> (r0, r1, r2) y = Transpose <perm = [0, 2, 1]> (a)")
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 3, 32, 32] x) => (float[1, N, 8] y) { '
    model = onnx.parser.parse_model(head + " ".join(lines) + " }")
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    return tmp_path / "m.onnx"


@pytest.fixture
def labels(tmp_path):
    generator = np.random.default_rng(1)
    for number in (1, 2):
        Image.fromarray(generator.integers(0, 256, (20, 40, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    categories = [{"id": place + 1, "name": name} for place, name in enumerate(("dog", "cat"))]
    images = [{"id": number, "file_name": f"{number}.png", "width": 40, "height": 20} for number in (1, 2)]
    boxes = [
        {"id": number, "image_id": number, "category_id": 1, "bbox": [2, 3, 20, 10], "area": 200, "iscrowd": 0}
        for number in (1, 2)
    ]
    content = {"images": images, "categories": categories, "annotations": boxes}
    (tmp_path / "val.json").write_text(json.dumps(content))
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    return tmp_path / "val.json"


def test_a_detector_in_an_onnx_file_is_stored_and_measured(run, tmp_path, detector, labels):
    store = tmp_path / "store"
    done = run("predict", detector, "--like", "yolox", "--classes", tmp_path / "names.txt", "-d", labels, "-o", store)
    assert (done.code, "2 of 2 images" in done.out) == (0, True)
    found = PredictionStore(store)
    assert found.header.class_names == NAMES
    assert found.header.objectness
    assert found.num_proposals == 2 * (16 + 4 + 1)
    assert found.header.postprocessing.nms_iou == 0.65
    measured = run("evaluate", store, "-a", labels, "--coco", "--json").json
    assert 0 <= measured["methods"][0]["metrics"]["AP"] <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "Expected `--like` for"),
        (("--like", "yolo"), "Expected `--like` to be one of yolov5"),
        (("--like", "yolox", "--size", "64"), r"Expected `--size` to be (32, 32)"),
        (("--like", "yolox", "--classes", "{folder}/other.txt"), "horse"),
    ],
    ids=["nothing said", "unknown preset", "another size", "no class in common"],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(refused, tmp_path, detector, labels, options, message):
    (tmp_path / "other.txt").write_text("horse\nsheep\nbird")
    words = [word.format(folder=tmp_path) for word in options]
    error = refused("predict", detector, *words, "-d", labels, "-o", tmp_path / "store")
    assert message in error
    assert not (tmp_path / "store").exists()


def test_a_model_that_onnxruntime_does_not_run_is_refused(refused, tmp_path, detector, labels):
    model = onnx.load(str(detector))
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save_model(model, str(detector))
    error = refused("predict", detector, "--like", "yolox", "-d", labels, "-o", tmp_path / "store")
    assert "to load in onnxruntime, but it does not" in error
    assert not (tmp_path / "store").exists()


def test_a_missing_image_is_named_and_nothing_is_written(refused, tmp_path, detector, labels):
    (tmp_path / "1.png").unlink()
    options = ("--like", "yolox", "--classes", tmp_path / "names.txt")
    error = refused("predict", detector, *options, "-d", labels, "-o", tmp_path / "store")
    assert "1.png" in error
    assert not (tmp_path / "store").exists()
