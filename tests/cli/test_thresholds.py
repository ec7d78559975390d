"""`logn thresholds`: points and their map from the command line, and one sentence for what is wrong."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
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
        ["thresholds", str(split.folder / "store"), "-a", str(split.annotations), "--bootstrap", "20", *map(str, words)]
    )


def test_points_and_their_map_are_written(split, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # titles on one line
    points, affine = tmp_path / "points.json", tmp_path / "affine.safetensors"
    words = ["--target", "fppi=1", "--method", "recommended", "-s", split.folder / "statistics.safetensors"]
    assert run(split, *words, "--split", "-o", points, "--affine", affine, "--at", "0.5") == 0
    printed = capsys.readouterr().out
    assert "the other half of the images" in printed
    assert "One threshold, 0.5, keeps exactly" in printed
    saved = logn.OperatingPoints.load(points)
    assert saved.affine(0.5) == logn.ClassAffine.load(affine)
    assert saved.method == "recommended"
    assert run(split, "-o", points, "--json", "--overwrite") == 0
    assert json.loads(capsys.readouterr().out)["target"] == "f1"


def test_a_classifier_may_reject(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    np.save(tmp_path / "dev.npy", 2 * np.eye(3)[labels] + rng.normal(size=(300, 3)))
    np.save(tmp_path / "labels.npy", labels)
    words = [
        tmp_path / "dev.npy",
        "--labels",
        tmp_path / "labels.npy",
        "--target",
        "precision=0.9",
        "--bootstrap",
        "20",
    ]
    test = ["--test", tmp_path / "dev.npy", "--test-labels", tmp_path / "labels.npy"]
    assert execute(["thresholds", *map(str, words), *map(str, test)]) == 0
    assert "the 300 rows of the test set" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--target", "precision"], "Expected `--target` to be f1, "),
        (["--iou", "0"], "Expected `--iou` to be above 0"),
        (["--test", "other"], "Expected `--test-annotations` with `--test`"),
        (["--method", "logn", "--correction", "x.safetensors"], "Expected one of `--method` and `--correction`"),
        (["--labels", "x.npy"], "Expected `--labels` only with a classifier"),
        (["--bootstrap", "-1"], "Expected `--bootstrap` to be at least 0"),
        (["--at", "1.5", "--affine", "a.safetensors"], "Expected `--threshold` to lie between 0 and 1"),
        (["-o", "nowhere/points.json"], "Expected the folder of `nowhere/points.json` to exist"),
    ],
)
def test_what_is_wrong_is_one_sentence(split, words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(split, *words) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith(f"Error: {sentence}")
    assert error.count("\n") == 0
    assert not list(tmp_path.iterdir())


def test_a_softmax_that_keeps_too_little_writes_nothing(make_split, tmp_path, capsys):
    split = make_split(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    words = ["-o", tmp_path / "points.json", "--affine", tmp_path / "affine.safetensors", "--at", "0.05"]
    assert run(split, *words) == 2
    assert "a threshold (`--threshold`) nearer to the common one" in capsys.readouterr().err
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
