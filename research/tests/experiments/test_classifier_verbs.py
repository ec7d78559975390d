"""From images to a compared classifier on the command line."""

import json

import numpy as np
import pytest
from logn_research.datasets.glyphs.classes import GlyphClassSettings, generate_glyph_classes

from logn.cli.main import execute

TINY = ["--iterations", "4", "--batch", "8", "--device", "cpu"]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    settings = GlyphClassSettings(classes=4, most=12, fewest=3, dev=2, test=3)
    return generate_glyph_classes(tmp_path_factory.mktemp("data") / "classes", settings)


@pytest.fixture(scope="module")
def trained(classes, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "softmax"
    assert execute(["train", str(classes), "-o", str(output), *TINY, "--json"]) == 0
    return output


def test_the_summary_is_json_and_a_second_call_has_nothing_to_do(classes, tmp_path, capsys):
    arguments = ["train", str(classes), "-o", str(tmp_path / "run"), *TINY]
    assert execute([*arguments, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["iterations"], summary["num_classes"]) == (4, 4)
    assert summary["losses"]["loss_classifier"] > 0
    assert execute(arguments) == 0
    assert "Nothing was left to do" in capsys.readouterr().out


def test_logits_go_to_compare_and_fit(classes, trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert execute(["predict", str(trained), "--data", str(classes), "-o", "logits", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["images"]["test"] == 12
    assert np.load("logits/test_logits.npy").shape == (12, 4)
    assert np.load("logits/test_labels.npy").tolist() == np.load(classes / "test_labels.npy").tolist()
    statistics = ["-s", "logits/statistics.safetensors", "--counts", "logits/class_counts.json"]
    weights = ["--weights", "logits/class_layer.safetensors", "--key", "weight"]
    test = ["-l", "logits/test_logits.npy", "--labels", "logits/test_labels.npy", "--bootstrap", "0"]
    methods = ["--methods", "logn,loga,tau-norm:tau=0.5"]
    assert execute(["compare", *test, *statistics, *weights, *methods, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert execute(["fit", "logits/statistics.safetensors", "-o", "logn.safetensors"]) == 0


def test_statistics_of_a_classifier_are_collected(classes, trained, tmp_path, capsys):
    output = tmp_path / "stats.safetensors"
    arguments = ["collect", str(trained), "--data", str(classes), "-o", str(output), "--json"]
    assert execute(arguments) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == len(np.load(classes / "train_labels.npy"))
    assert execute([*arguments, "--max-images", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 5


def test_second_stages_start_from_a_run(classes, trained, tmp_path, capsys):
    for only in ("new-classifier", "scales"):
        options = ["--start", str(trained), "--only", only, "--sampler", "class-balanced"]
        arguments = ["train", str(classes), "-o", str(tmp_path / only), *options, *TINY]
        assert execute(arguments) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "Expected `nowhere` to be annotations, or a list or a folder of images, but there is none."),
        (["--data", "nowhere", "--task", "classification"], "to be a folder or a list of labelled images"),
        (
            [".", "--feature-memory"],
            "Expected `--feature-memory` only with data of a detector, but got data of an image",
        ),
        (["--data", ".", "--model", "alexnet"], "Expected `--model` to be one of"),
        (["--data", ".", "--loss", "bags"], "Expected `background` to be 0 or -1"),
        (["--data", ".", "--weights", "none.pth", "-m", "resnet10"], "there is no `none.pth`"),
        (["--data", ".", "--imbalance", "10"], "Expected `--imbalance` for CIFAR and class folders only"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, sentence, classes, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(classes)
    assert sentence in refused("train", *arguments, "-o", tmp_path / "run", *TINY)
    assert not (tmp_path / "run").exists()


def test_other_images_than_those_of_the_training_are_refused(trained, tmp_path, capsys):
    settings = GlyphClassSettings(classes=4, most=13, fewest=3, dev=1, test=1)
    other = generate_glyph_classes(tmp_path / "other", settings)
    run = ["predict", str(trained), "--data", str(other), "-o", str(tmp_path / "logits")]
    assert execute(run) == 2
    assert "to be the training images of" in capsys.readouterr().err
    assert execute([*run, "--split", "test"]) == 0
    assert execute([*run, "--split", "all"]) == 2
    assert "Expected `--split` to be one of" in capsys.readouterr().err
    assert not (tmp_path / "logits" / "train_logits.npy").exists()


def test_the_verbs_of_before_do_the_same(classes, trained, tmp_path, run, refused):
    options = ["--data", classes, *TINY, "--json"]
    assert run("train-classifier", *options, "-o", tmp_path / "run").code == 0
    names = [path / "checkpoint.safetensors" for path in (trained, tmp_path / "run")]
    assert names[0].read_bytes() == names[1].read_bytes()
    assert run("predict-classifier", "-m", trained, "-d", classes, "--split", "test", "-o", tmp_path / "old").code == 0
    assert run("predict", trained, "-d", classes, "--split", "test", "-o", tmp_path / "new").code == 0
    old, new = ((tmp_path / name / "test_logits.npy").read_bytes() for name in ("old", "new"))
    assert old == new
    (tmp_path / "train.json").write_text("{}")  # this verb never trained a detector
    sentence = refused("train-classifier", "-d", tmp_path / "train.json", "-o", tmp_path / "other")
    assert "to be a list (.txt) or a folder of labelled images" in sentence


def test_options_of_detectors_are_refused(classes, trained, tmp_path, refused):
    sentence = refused("predict", trained, "--data", classes, "--dtype", "float32", "-o", tmp_path / "logits")
    assert sentence == (
        "Expected `--dtype` only with a detector or a detector in an ONNX file, but got an image classifier "
        f"(`{trained}`)."
    )
    assert "Expected `MODEL`, but got none" in refused("predict", "--data", classes, "-o", tmp_path / "logits")
    sentence = refused("predict", trained, "--data", classes, "--batch", "0", "-o", tmp_path / "logits")
    assert sentence == "Expected `--batch` to be at least 1, but got 0."
    assert not (tmp_path / "logits").exists()
