"""`logn thresholds`: a threshold per class from the command line, and one sentence for what is wrong."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import logn
from logn.cli.main import execute


@pytest.fixture(scope="module")
def make_split():
    """The made, long-tailed detection problem of the tests of evaluation."""
    path = Path(__file__).parents[1] / "evaluate" / "conftest.py"
    spec = importlib.util.spec_from_file_location("made_split", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_split


@pytest.fixture(scope="module")
def split(make_split, tmp_path_factory):
    return make_split(tmp_path_factory.mktemp("thresholds"), activation="sigmoid", seed=1)


def run(split, *words):
    return execute(
        ["thresholds", str(split.folder / "store"), "-d", str(split.annotations), "--bootstrap", "20", *map(str, words)]
    )


def test_points_and_their_map_are_written(split, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # titles on one line
    points, affine = tmp_path / "points.json", tmp_path / "affine.safetensors"
    words = ["--thresholds", "fppi=1", "--method", "recommended", "-s", split.folder / "statistics.safetensors"]
    assert run(split, *words, "-o", points, "--affine", affine, "--at", "0.5") == 0
    printed = capsys.readouterr().out
    assert "with 0.5 for all classes -> with these, for fppi=1" in printed
    assert "One threshold, 0.5, acts exactly as the thresholds per class." in printed
    saved = logn.OperatingPoints.load(points)
    assert saved.affine(0.5) == logn.ClassAffine.load(affine)
    assert run(split, "-o", tmp_path / "points.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["goal"] == "f1"
    assert (tmp_path / "points.csv").read_text().startswith("class,threshold\nthing 0,")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--thresholds", "precision"], "to be f1, precision=0.9, recall=0.8 or fppi=1"),
        (["--method", "x.safetensors"], "x.safetensors"),
        (["--bootstrap", "-1"], "'--bootstrap': expected at least 0"),
        (["--at", "1.5"], "'--at': expected at least 0 and at most 1"),
        (["-o", "nowhere/points.json"], "Expected the folder of `nowhere/points.json` to exist"),
    ],
)
def test_what_is_wrong_is_one_sentence(split, words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(split, *words) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error
    assert error.count("\n") == 0
    assert not list(tmp_path.iterdir())


def test_a_softmax_that_keeps_too_little_writes_nothing(make_split, tmp_path, capsys):
    split = make_split(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    words = ["-o", tmp_path / "points.json", "--affine", tmp_path / "affine.safetensors", "--at", "0.05"]
    assert run(split, *words) == 2
    assert "nearer to the common one" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(("federated", "style"), [(True, "lvis"), (False, "coco")])
def test_the_protocol_is_seen_from_the_labels(split, tmp_path, capsys, federated, style):
    content = json.loads(split.annotations.read_text())
    for image in content["images"] if not federated else ():
        del image["neg_category_ids"], image["not_exhaustive_category_ids"]
    (tmp_path / "labels.json").write_text(json.dumps(content))
    words = ["thresholds", split.folder / "store", "-a", tmp_path / "labels.json", "--bootstrap", 0, "--json"]
    assert execute([*map(str, words)]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["labels"] == style


def test_a_results_file_of_any_tool(tmp_path, capsys):
    images = [{"id": number, "width": 50, "height": 50} for number in range(1, 41)]
    boxes = [
        {"id": number, "image_id": number, "category_id": 1, "bbox": [0, 0, 9, 9], "area": 81}
        for number in range(1, 41)
    ]
    labels = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "car"}]}
    results = [
        {"image_id": number, "category_id": 1, "bbox": [left, 0, 9, 9], "score": score}
        for number in range(1, 41)
        for left, score in ((0, 0.2 + number / 100), (20, 0.1))
    ]
    (tmp_path / "val.json").write_text(json.dumps(labels))
    (tmp_path / "results.json").write_text(json.dumps(results))
    words = ["thresholds", tmp_path / "results.json", "-d", tmp_path / "val.json"]
    assert execute([*map(str, words)]) == 0
    printed = capsys.readouterr()
    assert "36 -> 40" in printed.out
    assert "logn thresholds" in printed.err
    assert execute([*map(str, words), "--method", "recommended"]) == 2
