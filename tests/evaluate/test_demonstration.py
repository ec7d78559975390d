"""The whole story at the smallest size: every step runs, resumes and gives the same result again."""

import contextlib
import json

import numpy as np
import pytest
import torch

import logn
from logn.cli.main import execute
from logn.cli.verbs.demo import sentences
from logn.datasets.detection_dataset import DetectionDataset
from logn.datasets.glyphs.settings import GlyphSettings
from logn.evaluate.store.detector_statistics import collect_detector_statistics
from logn.experiments.demo import METHODS, DemoSettings, run_demo
from logn.statistics.moments import ClassMoments
from logn.training.engine.checkpoint import load_detector

TINY = DemoSettings(
    GlyphSettings(classes=6, train=24, dev=1, test=8), iterations=3, statistics_images=6, num_bootstrap=20, processes=1
)


@contextlib.contextmanager
def quiet(_name, _total):
    yield lambda amount: None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo")
    run_demo(path, TINY, seed=1, step=quiet)
    return path


def test_a_second_call_trains_nothing_and_finds_the_same(folder):
    before = (folder / "model" / "checkpoint.safetensors").stat().st_mtime_ns
    first = run_demo(folder, TINY, seed=1, step=quiet)
    assert (folder / "model" / "checkpoint.safetensors").stat().st_mtime_ns == before
    again = run_demo(folder, TINY, seed=1, step=quiet)
    assert [row.name for row in first.comparison.rows] == ["none", *METHODS]
    for mine, theirs in zip(first.comparison.rows, again.comparison.rows, strict=True):
        assert mine.values == pytest.approx(theirs.values, nan_ok=True)
    assert {"AP", "APr-mask", "APf"} <= set(first.comparison.metric_names)
    assert "uncorrected detector" in sentences(first)[0]


def test_statistics_are_those_of_the_logits_and_know_where_they_are_from(folder):
    detector = load_detector(folder / "model")
    training = DetectionDataset(folder / "data" / "train.json")
    moments = collect_detector_statistics(detector, training)
    with logn.record(detector.eval(), detector.logit_layer) as recorded:
        for index in range(len(training)):
            image = training.read_image(index).transpose(2, 0, 1).astype(np.float32) / 255
            detector.propose([torch.from_numpy(image)])
    np.testing.assert_allclose(moments.mean, recorded.mean, rtol=1e-5, atol=1e-5)
    assert moments.count.tolist() == recorded.count.tolist()
    assert moments.metadata.class_names == ("background", *training.class_names)
    assert moments.metadata.background == 0


def test_collecting_from_the_command_line(folder, tmp_path, capsys):
    output = tmp_path / "stats.safetensors"
    arguments = [
        "collect",
        str(folder / "model"),
        "--data",
        str(folder / "data"),
        "-o",
        str(output),
        "--max-images",
        "6",
    ]
    assert execute([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 6
    np.testing.assert_array_equal(
        logn.ClassMoments.load(output).mean, logn.ClassMoments.load(folder / "statistics.safetensors").mean
    )


@pytest.mark.parametrize("option", ["--batch", "--most"])
def test_nothing_at_a_time_is_refused(folder, tmp_path, capsys, option):
    arguments = ["collect", str(folder / "model"), "--data", str(folder / "data"), "-o", str(tmp_path / "s"), option]
    for number in ("0", "-1"):
        assert execute([*arguments, number]) == 2
        assert f"to be at least 1, but got {number}" in capsys.readouterr().err


def test_collecting_takes_the_images_of_labels_and_leaves_their_classes(folder):
    other = folder / "data" / "other.json"
    content = json.loads((folder / "data" / "train.json").read_text())
    content["categories"] = content["categories"][:5]
    content["annotations"] = [item for item in content["annotations"] if item["category_id"] <= 5]
    other.write_text(json.dumps(content))
    outputs = [folder / "own.safetensors", folder / "other.safetensors"]
    for labels, output in zip((folder / "data" / "train.json", other), outputs, strict=True):
        command = ["collect", str(folder / "model"), "--data", str(labels), "--max-images", "3", "-o", str(output)]
        assert execute(command) == 0
    first, second = (ClassMoments.load(output) for output in outputs)
    np.testing.assert_array_equal(first.mean, second.mean)
    other.unlink()


def test_quick_and_full_exclude_each_other(capsys):
    assert execute(["demo", "--quick", "--full"]) == 2
    assert "one of `--quick` and `--full`" in capsys.readouterr().err
