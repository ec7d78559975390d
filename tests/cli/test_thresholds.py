"""`logn thresholds`: a threshold per class from the command line, and one sentence for what is wrong."""

import json
import re
import shlex

import numpy as np
import pytest
from tests.made.split import make_split

import logn


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return make_split(tmp_path_factory.mktemp("thresholds"), activation="sigmoid", seed=1)


def thresholds(split, *words):
    return ("thresholds", split.folder / "store", "-d", split.annotations, "--bootstrap", 20, *words)


def test_points_and_their_map_are_written(run, split, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # titles on one line
    points, affine = tmp_path / "points.json", tmp_path / "affine.safetensors"
    words = ["--thresholds", "fppi=1", "--method", "recommended", "-s", split.folder / "statistics.safetensors"]
    printed = run(*thresholds(split, *words, "-o", points, "--affine", affine, "--at", "0.5")).out
    assert "with 0.5 for all classes -> with these thresholds." in printed
    assert "One threshold, 0.5, acts exactly as the thresholds per class." in printed
    saved = logn.OperatingPoints.load(points)
    assert saved.affine(0.5) == logn.ClassAffine.load(affine)
    assert run(*thresholds(split, "-o", tmp_path / "points.csv", "--json")).json["goal"] == "f1"
    assert (tmp_path / "points.csv").read_text().startswith("class,threshold\nthing 0,")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--thresholds precision", "to be f1, precision=0.9, recall=0.8 or fppi=1"),
        ("--method x.safetensors", "x.safetensors"),
        ("--bootstrap -1", "'--bootstrap': expected at least 0"),
        ("-o nowhere/points.json", "The folder of `nowhere/points.json` does not exist"),
    ],
)
def test_what_is_wrong_is_one_sentence(refused, split, words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(*thresholds(split, *words.split()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_the_printed_command_writes_a_new_file(run, activation, tmp_path, monkeypatch):
    (tmp_path / "made").mkdir()
    split = make_split(tmp_path / "made", activation=activation)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thresholds.json").write_text("mine")
    (printed,) = re.findall(r"^To save them: logn (.*)$", run(*thresholds(split)).err, flags=re.M)
    done = run(*shlex.split(printed))
    assert logn.OperatingPoints.load("thresholds-2.json").activation == activation
    assert (tmp_path / "thresholds.json").read_text() == "mine"
    assert (done.code, "logn thresholds" in done.err) == (0, False)


def test_a_softmax_that_keeps_too_little_writes_nothing(refused, tmp_path):
    split = make_split(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    words = ["-o", tmp_path / "points.json", "--affine", tmp_path / "affine.safetensors", "--at", "0.05"]
    assert "nearer to the common one" in refused(*thresholds(split, *words))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(("federated", "style"), [(True, "lvis"), (False, "coco")])
def test_the_protocol_is_seen_from_the_labels(run, split, tmp_path, federated, style):
    content = json.loads(split.annotations.read_text())
    for image in content["images"] if not federated else ():
        del image["neg_category_ids"], image["not_exhaustive_category_ids"]
    (tmp_path / "labels.json").write_text(json.dumps(content))
    done = run("thresholds", split.folder / "store", "-a", tmp_path / "labels.json", "--bootstrap", 0, "--json")
    assert done.json["settings"]["labels"] == style


def test_a_results_file_of_any_tool(run, refused, tmp_path):
    numbers = range(1, 41)
    images = [{"id": number, "width": 50, "height": 50} for number in numbers]
    boxes = [{"image_id": number, "category_id": 1, "bbox": [0, 0, 9, 9]} for number in numbers]
    truth = [{**box, "id": box["image_id"], "area": 81} for box in boxes]
    labels = {"images": images, "annotations": truth, "categories": [{"id": 1, "name": "car"}]}
    results = [{**box, "score": 0.2 + box["image_id"] / 100} for box in boxes]
    results += [{**box, "bbox": [20, 0, 9, 9], "score": 0.05} for box in boxes]
    (tmp_path / "val.json").write_text(json.dumps(labels))
    (tmp_path / "results.json").write_text(json.dumps(results))
    words = ("thresholds", tmp_path / "results.json", "-d", tmp_path / "val.json")
    printed = run(*words)
    assert "36 -> 40" in printed.out
    assert "logn thresholds" in printed.err
    assert refused(*words, "--method", "recommended")
    assert "nothere.json` does not exist." in refused("thresholds", tmp_path / "nothere.json", *words[2:])
    assert "holds scores but no logits" in refused("compare", tmp_path / "results.json", *words[2:])
    written = run(*words, "-o", tmp_path / "t.json", "--at", "0.3")
    assert f"Wrote the thresholds to {tmp_path / 't.json'}." in written.out
    assert f"logn fold model.onnx --thresholds {tmp_path / 't.json'} --at 0.3 -o shipped.onnx" in written.err


@pytest.fixture
def sigmoid_file(save_onnx, tmp_path):
    """An ONNX file of a linear layer with a sigmoid behind it, and its class names."""
    rng = np.random.default_rng(0)
    (tmp_path / "names.txt").write_text("car\nperson\nbus\n")
    text = "(float[N, 8] x) => (float[N, 3] y) { z = Gemm(x, w, b) y = Sigmoid(z) }"
    return save_onnx(tmp_path / "best.onnx", text, w=rng.normal(size=(8, 3)), b=rng.normal(size=3))


def fold(model, thresholds, *words):
    names = ("--class-names", model.parent / "names.txt", "-o", model.parent / "out.onnx")
    return ("fold", model, "--thresholds", thresholds, *names, *words)


@pytest.mark.parametrize("kind", ["text", "json", "csv", "points"])
def test_thresholds_that_exist_go_into_a_model(run, sigmoid_file, kind, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    given = {"bus": 0.6, "car": 0.1}
    source = json.dumps(given)
    if kind == "json":
        (tmp_path / "given.json").write_text(source)
    elif kind == "csv":
        (tmp_path / "given.csv").write_text("class,threshold\nbus,0.6\ncar,0.1\n")
    elif kind == "points":
        logn.OperatingPoints.from_thresholds(given, 0.3, ("car", "person", "bus")).save(tmp_path / "given.points.json")
    source = source if kind == "text" else next(tmp_path.glob(f"given*.{'csv' if kind == 'csv' else 'json'}"))
    done = run(*fold(sigmoid_file, source, "--at", "0.3"))
    assert "Keep using 0.3: it now acts as your per-class thresholds." in done.out
    inputs = {"x": np.random.default_rng(1).normal(size=(500, 8)).astype(np.float32)}
    plain, folded = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)[0]
        for path in (sigmoid_file, tmp_path / "out.onnx")
    )
    np.testing.assert_array_equal(folded >= 0.3, plain >= [0.1, 0.3, 0.6])


@pytest.mark.parametrize(
    ("thresholds", "words", "sentence"),
    [
        ('{"car": 1}', (), "threshold of `car` to lie between 0 and 1, both excluded, but got 1."),
        ('{"car": 0}', (), "No class has a threshold of its own: name at least one."),
        ('{"cat": 0.5}', (), "share no class name: the model has car, person, bus, the thresholds have cat."),
        ('{"car": 0.5', (), "is not JSON such as"),
        ('{"car": 0.5}', ("affine.safetensors",), "`thresholds`"),
        ('{"car": 0.5}', ("--at", "1"), "`at`"),
        ("nowhere.json", (), "nowhere.json"),
    ],
)
def test_thresholds_that_are_wrong_are_one_sentence(refused, sigmoid_file, thresholds, words, sentence, tmp_path):
    before = sorted(tmp_path.iterdir())
    assert sentence in refused(*fold(sigmoid_file, thresholds, *words))
    assert sorted(tmp_path.iterdir()) == before


def test_a_model_that_holds_thresholds_already_is_refused(run, refused, sigmoid_file, tmp_path):
    assert run(*fold(sigmoid_file, '{"car": 0.5}')).code == 0
    once = (tmp_path / "out.onnx").rename(tmp_path / "once.onnx")
    assert "has a map folded into it already (thresholds)" in refused(*fold(once, '{"car": 0.5}'))
