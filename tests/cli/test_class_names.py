"""Class names that contradict each other are refused by every verb, in one sentence and before anything is written."""

import json

import numpy as np
import pytest

from logn.methods.affine import ClassAffine
from logn.statistics.head import Head

NAMES = ("cup", "fork", "van")
SIGMOID = (
    "(float[N, 3, 8, 8] x) => (float[N, 3] y) { p = GlobalAveragePool(x) f = Flatten(p) z = Gemm(f, w) y = Sigmoid(z) }"
)
IMAGES = "--like imagenet --size 8 --images {f}/images"
# What each verb is called with: {map} is a correction, {names} a file of class names, {wanted} thresholds.
FOLDED = {
    "fold": "fold {f}/model.onnx {map} -o {f}/out.onnx",
    "correct": f"correct {{f}}/model.onnx {IMAGES} --method {{map}} -o {{f}}/out.onnx",
}
NAMED = {
    "fold": "fold {f}/model.onnx {f}/plain.safetensors --class-names {names} -o {f}/out.onnx",
    "fold, thresholds": "fold {f}/model.onnx --thresholds {f}/wanted.json --class-names {names} -o {f}/out.onnx",
    "correct": f"correct {{f}}/model.onnx {IMAGES} --class-names {{names}} -m logn -o {{f}}/out.onnx",
    "collect": f"collect {{f}}/model.onnx {IMAGES} --class-names {{names}} -o {{f}}/out.safetensors",
    "predict": "predict {f}/yolox.onnx --like yolox --class-names {names} -d {f}/images.json -o {f}/out",
}
OTHERS = {"another order": ("van", "fork", "cup"), "other names": ("cup", "fork", "bus")}


@pytest.fixture
def files(save_onnx, save_yolox, draw_images, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    save_onnx(tmp_path / "model.onnx", SIGMOID, w=np.diag([3.0, 2.0, 1.0]))
    save_yolox(tmp_path / "yolox.onnx")
    for name in ("model.onnx", "yolox.onnx"):
        model = onnx.load(tmp_path / name)
        model.metadata_props.add(key="names", value=json.dumps(NAMES))
        onnx.save_model(model, tmp_path / name)
    draw_images(tmp_path / "images", 3, (8, 8))
    listed = [{"id": 1, "file_name": "images/0.png", "height": 8, "width": 8}]
    categories = [{"id": place + 1, "name": name} for place, name in enumerate(NAMES)]
    labels = {"images": listed, "categories": categories, "annotations": []}
    (tmp_path / "images.json").write_text(json.dumps(labels))
    (tmp_path / "wanted.json").write_text('{"cup": 0.5}')
    ClassAffine([1.0, 1.0, 1.0], [0.0, 1.0, 2.0]).save(tmp_path / "plain.safetensors")
    return tmp_path


def names_file(files, names):
    (files / "names.txt").write_text("\n".join(names) + "\n")
    return files / "names.txt"


def correction(files, names):
    source = Head(names=names, activation="sigmoid")
    ClassAffine([1.0, 1.0, 1.0], [0.0, 1.0, 2.0], head=source).save(files / "map.safetensors")
    return files / "map.safetensors"


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("verb", FOLDED)
def test_a_correction_for_other_classes_is_refused(run, refused, files, verb, other):
    """One for d, c, b, a went into a model of a, b, c, d, "proven"."""
    sentence = refused(*FOLDED[verb].format(f=files, map=correction(files, OTHERS[other])).split())
    assert sentence.startswith("The classes differ: class ")
    assert ("(the same names in another order)" in sentence) is (other == "another order")
    assert not list(files.glob("out*"))
    done = run(*FOLDED[verb].format(f=files, map=correction(files, ("Cup", "fork", "van"))).split())
    assert done.code == 0, done.err


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("verb", NAMED)
def test_names_that_contradict_the_model_are_refused(run, refused, files, verb, other):
    """They won, and the threshold for one class moved another."""
    sentence = refused(*NAMED[verb].format(f=files, names=names_file(files, OTHERS[other])).split())
    assert sentence.startswith("The classes differ: class ")
    assert "`class_names`" in sentence
    assert not list(files.glob("out*"))
    done = run(*NAMED[verb].format(f=files, names=names_file(files, NAMES)).split())
    assert done.code == 0, done.err


def test_a_fold_compares_the_names_that_the_user_gives(run, refused, files, save_onnx):
    save_onnx(files / "model.onnx", SIGMOID, w=np.eye(3))
    words = [*FOLDED["fold"].format(f=files, map=correction(files, NAMES)).split(), "--class-names"]
    assert refused(*words, names_file(files, OTHERS["another order"])).startswith(
        "The classes differ: class 0 is 'cup'"
    )
    assert run(*words, names_file(files, NAMES)).code == 0


def test_names_that_only_count_the_classes_give_way(run, files):
    onnx = pytest.importorskip("onnx")
    model = onnx.load(files / "model.onnx")
    model.metadata_props[0].value = '{0: "class0", 1: "class1", 2: "class2"}'
    onnx.save_model(model, files / "model.onnx")
    for verb in ("fold, thresholds", "collect"):
        done = run(*NAMED[verb].format(f=files, names=names_file(files, NAMES)).split())
        assert done.code == 0, done.err


@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")
def test_named_counts_of_a_classifier_are_matched_or_warned_of(run, refused, make_files, tmp_path):
    make_files(tmp_path)
    (tmp_path / "counts.csv").write_text("name,count\nvan,3\nfork,40\ncup,500\n")
    words = ("compare", tmp_path / "test.npy", "--labels", tmp_path / "labels.npy", "--methods", "loga", "--json")
    words = (*words, "--bootstrap", "0", "--counts")
    by_name = run(*words, tmp_path / "counts.csv", "--class-names", names_file(tmp_path, NAMES)).json
    plain = run(*words, tmp_path / "counts.json").json
    assert by_name["rows"][1]["transform"]["shift"] == plain["rows"][1]["transform"]["shift"]
    with pytest.warns(match="The counts have class names, but those of the model are unknown"):
        run(*words, tmp_path / "counts.csv")
    other = names_file(tmp_path, ("cup", "fork", "bus"))
    assert "do not have the class 'bus'" in run(*words, tmp_path / "counts.csv", "--class-names", other).json["error"]
