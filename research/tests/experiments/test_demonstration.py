"""The whole story at the smallest size: every step runs, resumes and gives the same result again."""

import contextlib
import json

import numpy as np
import pytest
import torch
from logn_research.cli.demo import sentences, threshold_cells
from logn_research.datasets.glyphs.settings import GlyphSettings
from logn_research.experiments.demo import METHODS, DemoSettings, run_demo
from logn_research.experiments.detector_statistics import collect_detector_statistics
from logn_research.training.checkpoint import load_detector

import logn
from logn.cli.main import execute
from logn.evaluate.comparison.tables import change_text
from logn.labels.dataset import DetectionDataset
from logn.statistics.moments import ClassMoments

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
    told = sentences(first)
    assert "uncorrected detector" in told[0]
    for found, labels in ((first.comparison, "federated"), (first.exhaustive, "exhaustive")):
        assert f"{change_text(found['recommended'].differences['AP'])} by {labels}" in told[1]


def test_both_protocols_and_a_fixed_threshold_are_told(folder, monkeypatch, capsys):
    result = run_demo(folder, TINY, seed=1, step=quiet)
    monkeypatch.setattr("logn_research.experiments.demo.run_demo", lambda *_, **__: result)
    for columns in ("80", "100", "140"):
        monkeypatch.setenv("COLUMNS", columns)
        assert execute(["demo", "--quick", "--seeds", "2"]) == 0
        out, err = capsys.readouterr()
        lines = [line for line in out.splitlines() if "/" not in line]  # paths are as long as they are
        assert max(map(len, lines)) <= int(columns)
        text = " ".join(out.split())
        assert "By federated labels, as LVIS has them" in text
        assert "By exhaustive labels, as COCO has them" in text
        assert "At a fixed threshold, by exhaustive labels" in text
        assert text.count("over 2 seeds by") == 2
        assert "logn correct" in err
    header, rows = threshold_cells(result.exhaustive)
    assert [row[0] for row in rows] == ["none", *METHODS]
    assert rows[0][3:5] == ("0.5", rows[0][1])
    assert rows[1][5] == f"{100 * result.exhaustive.rows[1].recall[0.5].recall:.1f}"
    assert header[1] == "found at 0.5"
    assert rows[1][1] == f"{result.exhaustive.rows[1].thresholds.found_at:,}"
    assert execute(["demo", "--quick", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["seed 0"]
    assert [row["method"] for row in said["exhaustive"]["methods"]] == [row["method"] for row in said["methods"]]


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


def test_a_folder_of_images_without_labels_gives_the_same_statistics(folder, tmp_path, capsys):
    labelled, unlabelled = tmp_path / "labelled.safetensors", tmp_path / "unlabelled.safetensors"
    assert execute(["collect", str(folder / "model"), "--data", str(folder / "data"), "-o", str(labelled)]) == 0
    pictures = folder / "data" / "images" / "train"
    assert execute(["collect", str(folder / "model"), "--images", str(pictures), "-o", str(unlabelled)]) == 0
    one, two = ClassMoments.load(labelled), ClassMoments.load(unlabelled)
    np.testing.assert_array_equal(one.count, two.count)
    np.testing.assert_allclose(one.mean, two.mean)
    np.testing.assert_allclose(one.variance, two.variance)
    assert one.metadata == two.metadata


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
