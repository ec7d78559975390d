"""Running `logn` inside the test process, with small files of logits."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from logn.cli.main import execute

# A message of the command line names an option, one of the library the argument of the same name.
ARGUMENT = re.compile("`--([a-z-]+)`")


@pytest.fixture
def run(capsys):
    """Run `logn` with these arguments; gives code, out, err, and the parsed JSON when it was asked for."""

    def call(*arguments):
        capsys.readouterr()
        code = execute([str(argument) for argument in arguments])
        streams = capsys.readouterr()
        parsed = json.loads(streams.out) if "--json" in arguments else None
        return SimpleNamespace(code=code, out=streams.out, err=streams.err, json=parsed)

    return call


@pytest.fixture
def refused(run):
    """Run `logn`, expect code 2 and one sentence, with --json and without; gives it with arguments for options."""

    def call(*arguments):
        plain = run(*arguments)
        assert plain.code == 2
        assert plain.out == ""
        assert plain.err.count("\n") == 1
        assert plain.err.startswith("Error: ")
        as_json = run(*arguments, "--json")
        assert as_json.code == 2
        assert f"Error: {as_json.json['error']}\n" == plain.err
        return ARGUMENT.sub(lambda match: f"`{match[1].replace('-', '_')}`", as_json.json["error"])

    return call


@pytest.fixture(scope="session")
def save_onnx():
    """Write the ONNX file of a graph in ONNX's own text form, with its weights; `stored` is how weights are stored."""
    onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    pytest.importorskip("onnx.parser")

    def save(path, text, stored=(), **weights):
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
        arrays = {name: np.asarray(array) for name, array in weights.items()}
        singles = {name: array.astype(np.float32) if array.dtype == float else array for name, array in arrays.items()}
        model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in singles.items())
        onnx.save_model(model, str(path), **dict(stored))
        return path

    return save


@pytest.fixture(scope="session")
def save_yolox(save_onnx):
    """Write boxes, objectness and three classes, as YOLOX has them over an input of 32 (strides 8, 16, 32)."""

    def save(path):
        lines, weights, draw = [], {"flat": np.array([1, 8, -1])}, np.random.default_rng(0).normal
        for level, stride in enumerate((8, 16, 32)):
            size = f"[{stride}, {stride}]"
            lines.append(f"f{level} = AveragePool <kernel_shape = {size}, strides = {size}> (x)")
            for name, width in ((f"reg{level}", 4), (f"obj{level}", 1), (f"cls{level}", 3)):
                weights |= {f"{name}_w": draw(0, 0.01, (width, 3, 1, 1)), f"{name}_b": np.linspace(0, -3, width)}
                lines.append(f"{name} = Conv(f{level}, {name}_w, {name}_b)")
            lines.append(f"o{level} = Sigmoid(obj{level}) c{level} = Sigmoid(cls{level})")
            lines.append(f"j{level} = Concat <axis = 1> (reg{level}, o{level}, c{level})")
            lines.append(f"r{level} = Reshape(j{level}, flat)")
        lines.append("a = Concat <axis = 2> (r0, r1, r2) y = Transpose <perm = [0, 2, 1]> (a)")
        return save_onnx(path, f"(float[1, 3, 32, 32] x) => (float[1, N, 8] y) {{ {' '.join(lines)} }}", **weights)

    return save


@pytest.fixture(scope="session")
def draw_images():
    """Write images of noise, numbered from 0, of (height, width) into a folder, which is made."""
    image = pytest.importorskip("PIL.Image")

    def draw(folder, number, size):
        folder.mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng(1)
        for index in range(number):
            pixels = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
            image.fromarray(pixels).save(folder / f"{index}.png")
        return folder

    return draw


@pytest.fixture(scope="session")
def make_files():
    """Write a store of twelve images with two boxes each, labels, statistics, counts, and logits of a classifier."""
    from logn.models.proposals import Proposals
    from logn.predictions.store import PredictionWriter, StoreHeader
    from logn.statistics.head import Head
    from logn.statistics.moments import ClassMoments

    def make(folder, names=None):
        rng, counts = np.random.default_rng(0), [500, 40, 3]
        images, annotations = [], []
        all_names = None if names is None else (*names, "background")
        metadata = Head(names=all_names, background=-1, activation="softmax")
        moments = ClassMoments(replace(metadata, num_columns=4), sample_rows=64, mean_probability=True)
        header = StoreHeader(Head.of_classes(names, 4, background=-1, activation="softmax"))
        with PredictionWriter(folder / "store", header) as writer:
            for image in range(1, 13):
                labels = rng.integers(0, 3, 2)
                boxes = np.array([[0, 0, 20, 20], [40, 40, 80, 70]])[rng.integers(0, 2, 8)] + rng.normal(0, 1, (8, 4))
                logits = rng.normal(0, 1, (8, 4)) + np.log([*counts, 100])
                moments.update(logits)
                writer.append(image, Proposals(boxes.astype(np.float32), logits.astype(np.float32), 100, 100))
                images.append({"id": image, "neg_category_ids": [1, 2, 3], "not_exhaustive_category_ids": []})
                for label, box in zip(labels.tolist(), [[0, 0, 20, 20], [40, 40, 40, 30]], strict=True):
                    annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1}
                    annotations.append(annotation | {"bbox": box, "area": box[2] * box[3]})
        categories = [
            {"id": n + 1, "name": name, "frequency": "fcr"[n]} for n, name in enumerate(names or ("c0", "c1", "c2"))
        ]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "gt.json").write_text(json.dumps(content))
        (folder / "counts.json").write_text(json.dumps(counts))
        moments.save(folder / "stats.safetensors")
        labels = rng.integers(0, 3, 90)
        np.save(folder / "test.npy", 2 * np.eye(3)[labels] + rng.normal(size=(90, 3)) + 0.7 * np.log(counts))
        np.save(folder / "labels.npy", labels)
        return folder

    return make


@pytest.fixture
def logits(tmp_path):
    """Logits of three classes and a background, in three shards; gives the rows."""
    random = np.random.default_rng(5)
    rows = (random.standard_normal((300, 4)) * [1.5, 1.0, 0.5, 2.0] + [0.0, -2.0, -4.0, 6.0]).astype(np.float32)
    (tmp_path / "shards").mkdir()
    for index, part in enumerate(np.split(rows, [120, 200])):
        np.save(tmp_path / "shards" / f"{index}.npy", part)
    return rows


@pytest.fixture
def stats(run, logits, tmp_path):
    """Statistics of the shards, background last."""
    path = tmp_path / "stats.safetensors"
    assert run("collect", tmp_path / "shards", "-o", path, "--background", "last", "--activation", "softmax").code == 0
    return path
