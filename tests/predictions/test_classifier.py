"""Classifiers on labelled images: one file with logits, labels, names and paths; classes by name, never by place."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file

import logn
from logn.cli.main import execute
from logn.data.class_counts import ClassCounts
from logn.data.dataset import ClassificationDataset
from logn.data.labels import Labels
from logn.errors import InputError, LogNWarning
from logn.predictions.classifier import ClassifierPredictions

torch = pytest.importorskip("torch")

COLOURS = {"Red": (255, 0, 0), "green": (0, 255, 0), "light_blue": (0, 0, 255)}
# The columns of the models are neither in the order of the folders nor of their spelling.
NAMES = ("light blue", "red", "green")
MODEL = """
import torch

class Colours(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)
        self.fc.weight.data = 10 * torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        self.fc.bias.data = torch.tensor([0.0, 3.0, 1.0])

    def forward(self, images):
        return self.fc(images.mean((2, 3)))

def build():
    return Colours()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model in a file, and its images: `data/train` and `data/val` with a folder per class."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "models.py").write_text(MODEL)
    (folder / "names.txt").write_text("\n".join(NAMES))
    (folder / "like.json").write_text('{"size": [8, 8]}')
    for split, count in (("train", 3), ("val", 2)):
        for place, (name, colour) in enumerate(COLOURS.items()):
            (folder / "data" / split / name).mkdir(parents=True)
            for number in range(count + place):
                Image.new("RGB", (8, 8), colour).save(folder / "data" / split / name / f"{number}.png")
    return folder


def build():
    namespace = {}
    exec(MODEL, namespace)  # noqa: S102 - the model of the file, as an object
    return namespace["build"]()


def write_onnx(path, names=None):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 8, 8] x) => (float[N, 3] y)
    <float[3, 3] w = {0.0, 10.0, 0.0, 0.0, 0.0, 10.0, 10.0, 0.0, 0.0}, float[3] b = {0.0, 3.0, 1.0}>
    { p = GlobalAveragePool(x) f = Flatten(p) y = Gemm(f, w, b) }"""
    model = onnx.parser.parse_model(text)
    if names:
        onnx.helper.set_model_props(model, {"names": str(list(names))})
    onnx.save_model(model, str(path))
    return path


def run(model, data, path, **options):
    return logn.predict(model, data, path, like=logn.Preprocessing(size=(8, 8)), **options)


EXPECTED = [1, 1, 2, 2, 2, 0, 0, 0, 0]


@pytest.mark.parametrize("kind", ["onnx", "torch", "function"])
def test_one_file_holds_logits_labels_names_and_paths(made, tmp_path, kind):
    model = {
        "onnx": lambda: write_onnx(tmp_path / "model.onnx"),
        "torch": build,
        "function": lambda: f"{made / 'models.py'}:build",
    }[kind]()
    path = tmp_path / "test.safetensors"
    assert run(model, made / "data", path, class_names=NAMES) == 9
    written = ClassifierPredictions.load(path)
    assert written.labels.tolist() == EXPECTED
    assert written.head.names == NAMES
    assert [*written.paths[:3]] == ["Red/0.png", "Red/1.png", "green/0.png"]
    np.testing.assert_allclose(written.logits[0], [0, 13, 1], atol=1e-5)
    assert written.logits.argmax(axis=1).tolist() == EXPECTED
    comparison = logn.compare(path, methods=[])
    assert comparison.baseline["top-1"] == 1.0
    assert [entry.name for entry in comparison.classes] == [*NAMES]
    with pytest.raises(InputError, match="labels"):
        logn.compare(path, EXPECTED)
    with pytest.raises(InputError, match=path.name):
        run(model, made / "data", path, class_names=NAMES)


def test_a_hugging_face_classifier_of_two_heads_and_a_convolution_give_what_they_return(made, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.DeiTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        id2label=dict(enumerate(NAMES)),
    )  # fmt: skip
    model = transformers.DeiTForImageClassificationWithTeacher(config).eval()
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8}, image_mean=[0] * 3, image_std=[1] * 3)
    model.save_pretrained(tmp_path / "deit")
    processor.save_pretrained(tmp_path / "deit")
    logn.predict(tmp_path / "deit", made / "data", tmp_path / "a.safetensors")
    red = torch.zeros(1, 3, 8, 8)
    red[:, 0] = 1.0
    with torch.inference_mode():
        expected = model(red).logits[0].numpy()
    written = ClassifierPredictions.load(tmp_path / "a.safetensors")
    assert (written.labels.tolist(), written.head.names) == (EXPECTED, NAMES)
    np.testing.assert_allclose(written.logits[0], expected, atol=1e-4)
    pooled = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).eval()
    run(pooled, made / "data", tmp_path / "b.safetensors", class_names=NAMES)
    with torch.inference_mode():
        expected = pooled(red)[0].numpy()
    np.testing.assert_allclose(ClassifierPredictions.load(tmp_path / "b.safetensors").logits[0], expected, atol=1e-5)


def test_lists_are_read_with_names_and_with_columns(made, tmp_path):
    lines = [("val/Red/0.png", "red", 1), ("val/green/1.png", "green", 2), ("val/light_blue/0.png", "light blue", 0)]
    (tmp_path / "list.txt").write_text("".join(f"{path} {column}\n" for path, _, column in lines))
    table = "\n".join(f'{path},"{name}"' for path, name, _ in lines)
    (tmp_path / "list.csv").write_text(f"path,label\n{table}\n")
    for name, names in (("list.txt", NAMES), ("list.txt", None), ("list.csv", NAMES)):
        path = tmp_path / "out.safetensors"
        assert run(build(), tmp_path / name, path, images=made / "data", class_names=names, overwrite=True) == 3
        assert ClassifierPredictions.load(path).labels.tolist() == [1, 2, 0]
    assert ClassCounts.load(tmp_path / "list.txt").image_counts.tolist() == [1, 1, 1]
    assert ClassCounts.load(made / "data").names == ("Red", "green", "light_blue")
    assert ClassCounts.load(made / "data").image_counts.tolist() == [3, 4, 5]
    assert ClassCounts.load(made / "data").aligned_to(NAMES).image_counts.tolist() == [5, 3, 4]


def folders(tmp_path, *names, count=1):
    for name in names:
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "data" / name / f"{number}.png")
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("classes", "names", "columns"),
    [
        (("cow", "cat"), ("cat", "dog", "cow"), [0, 2]),  # sorted: cat, cow
        (("CAT", "hot-dog"), ("hot dog", "cat"), [1, 0]),
        (("2", "0"), None, [0, 2]),
        (("2", "0"), ("LABEL_0", "LABEL_1", "LABEL_2"), [0, 2]),
        (("2", "1"), ("2", "0", "1"), [2, 0]),  # digits are names here
        (tuple(f"{number:02}" for number in range(11)), None, list(range(11))),
    ],
)
def test_folders_are_classes_by_name(tmp_path, classes, names, columns):
    data = ClassificationDataset(folders(tmp_path, *classes))
    width = len(names) if names else max(columns) + 1
    assert data.columns(names, width).tolist() == columns


@pytest.mark.parametrize(
    ("classes", "names", "width", "named"),
    [
        (("a", "b"), None, 2, "class_names"),
        (("a", "b"), ("c", "d"), 2, "a, b"),
        (("1", "2"), None, 2, "2 columns"),
        (("1", "10", "2"), None, 11, "class_names"),  # sorted as text
        (("1", "01"), None, 3, "class_names"),
        (("1", "2"), ("cat", "dog", "cow"), 3, "cat"),
    ],
)
def test_what_could_be_meant_otherwise_is_refused(tmp_path, classes, names, width, named):
    with pytest.raises(InputError, match=named):
        ClassificationDataset(folders(tmp_path, *classes)).columns(names, width)


def test_folders_that_are_no_classes_are_refused(tmp_path):
    (tmp_path / "none").mkdir()
    mixed = folders(tmp_path / "mixed", "a", "b")
    Image.new("RGB", (8, 8)).save(mixed / "stray.png")
    splits = folders(tmp_path / "splits", "train/a", "train/b")
    for folder in (folders(tmp_path / "one", "a"), tmp_path / "none", mixed, splits):
        with pytest.raises(InputError, match=str(folder)):
            ClassificationDataset(folder)
    assert ClassificationDataset(f"{splits}:train").classes == ("a", "b")
    # A class may be called as a split is.
    assert ClassificationDataset(folders(tmp_path / "vehicles", "train", "car")).classes == ("car", "train")


def test_other_classes_and_damaged_images_are_left_out_and_announced(made, tmp_path):
    data = folders(tmp_path, "red", "green", "helmet", count=2)
    (data / "red" / "0.png").write_bytes(b"no image")
    with pytest.warns(LogNWarning) as caught:
        assert run(build(), data, tmp_path / "test.safetensors", class_names=NAMES) == 3
    said = " ".join(str(warning.message) for warning in caught)
    assert "helmet" in said
    assert "red/0.png" in said
    with pytest.warns(LogNWarning), pytest.raises(InputError, match="one class"):
        run(build(), folders(tmp_path / "one", "red", "helmet"), tmp_path / "one.safetensors", class_names=NAMES)
    assert ClassifierPredictions.load(tmp_path / "test.safetensors").paths == (
        "green/0.png",
        "green/1.png",
        "red/1.png",
    )


def test_models_and_labels_of_different_kinds_are_told_apart(made, tmp_path, capsys):
    like = ["--like", str(made / "like.json")]
    function = f"{made / 'models.py'}:build"

    def refused(*words, names):
        assert execute([*map(str, words)]) == 2
        assert str(names) in capsys.readouterr().err

    (tmp_path / "boxes.json").write_text('{"images": [{"id": 1, "file_name": "a.png", "width": 8, "height": 8}], '
                                         '"categories": [{"id": 1, "name": "red"}], "annotations": []}')  # fmt: skip
    model, path = write_onnx(tmp_path / "model.onnx", NAMES), tmp_path / "test.safetensors"
    for name in (function, model):
        refused("predict", name, *like, "--data", tmp_path / "boxes.json", "-o", tmp_path / "p", names="folder")
    refused("predict", model, *like, "-d", made / "data", "-o", tmp_path / "p", names=".safetensors")
    assert execute(["predict", str(model), *like, "-d", str(made / "data"), "-o", str(path)]) == 0
    assert "9 images" in capsys.readouterr().out
    refused("thresholds", path, "-d", made / "data", names="detectors")
    with pytest.raises(InputError, match="boxes"):
        Labels.load(made / "data")
    assert execute(["compare", str(path)]) == 0
    dense = "(float[N, 3, 8, 8] x) => (float[N, 5, 3] y) <float[3, 3] w = {2, -1, 0, 0, 3, 1, -4, 0, 1}>"
    nodes = "s = Slice(x, z, f, a) t = Transpose <perm = [0, 2, 3, 1]> (s) r = Reshape(t, h) y = MatMul(r, w)"
    dense_model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {dense} {{ {nodes} }}')
    for name, value in (("z", [0, 0]), ("f", [1, 5]), ("a", [2, 3]), ("h", [0, 5, 3])):
        dense_model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    onnx.save_model(dense_model, str(tmp_path / "dense.onnx"))
    words = ("-d", made / "data", "-o", tmp_path / "d.safetensors", "--class-names", made / "names.txt")
    refused("predict", tmp_path / "dense.onnx", *like, *words, names="5 rows")


def test_a_damaged_file_is_refused(made, tmp_path):
    path = tmp_path / "test.safetensors"
    run(build(), made / "data", path, class_names=NAMES)
    with safe_open(path, "np") as file:
        arrays, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    save_file(arrays | {"labels": arrays["labels"][:-1]}, path, metadata)
    with pytest.raises(InputError, match=r"test\.safetensors"):
        logn.compare(path)
