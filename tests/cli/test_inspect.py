"""`logn inspect`: the tables, the sentences, the recommendation, the figure, and what programs read."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from logn.errors import LogNWarning
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments


@pytest.fixture
def stats(tmp_path):
    """Statistics of forty classes whose means fall with their counts, one of them dead."""
    names = (*(f"class[{index}]" for index in range(40)), "background")
    moments = ClassMoments(Head(41, background=-1, names=names), nonfinite="skip")
    rows = np.random.default_rng(0).standard_normal((60, 41)) * 0.5 + np.append(-np.arange(40) / 5, 9)
    rows[:, 3] = 1.0
    rows[0, 5] = np.nan
    moments.update(rows)
    moments.save(tmp_path / "stats.safetensors")
    (tmp_path / "counts.json").write_text(str([2000 // (index + 1) for index in range(40)]))
    return tmp_path / "stats.safetensors"


def test_the_table_and_the_sentences(run, stats, tmp_path):
    result = run("inspect", stats, "--counts", tmp_path / "counts.json")
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["class", "group", "images", "logits", "mean", "std"]
    assert lines[2][:4] == ["class[0]", "f", "2,000", "60"]
    assert lines[5][1] == "(dead)"
    assert lines[12] == ["…", "20", "more"]
    assert lines[22][:3] == ["class[39]", "c", "50"]
    assert "strongly follow the training counts" in result.out
    assert "Dead: 1 of 40 classes" in result.out
    assert "Skipped: 1 value, NaN or infinite" in result.out
    whole = run("inspect", stats, "--verbose").out
    assert sum("class[" in line for line in whole.split("Recorded:")[0].splitlines()) == 40
    assert "Pass the training counts" in whole


def test_what_programs_read(run, stats, tmp_path):
    result = run("inspect", stats, "--counts", tmp_path / "counts.json", "--plot", tmp_path / "p.svg", "--json").json
    assert len(result["classes"]) == len(result["mean"]) == len(result["std"]) == 40
    assert result["dead"] == ["class[3]"]
    assert result["groups"][0] == "f"
    assert result["rank_correlation_with_count"]["mean"] > 0.9
    assert result["head"]["background"] == -1
    assert (tmp_path / "p.svg").exists()


def test_classes_never_seen_become_null(run, tmp_path):
    ClassMoments(3).save(tmp_path / "a.safetensors")
    assert run("inspect", tmp_path / "a.safetensors", "--json").json["std"] == [None, None, None]
    assert run("inspect", tmp_path / "a.safetensors").code == 0


@pytest.fixture
def with_rows(tmp_path):
    """Statistics with a row sample, background first."""
    metadata = Head(background=0, activation="softmax")
    moments = ClassMoments(replace(metadata, num_columns=21), sample_rows=500, mean_probability=True)
    mean, std = np.append(5, -np.arange(20) / 6), np.append(1, 1.5 - np.arange(20) / 20)
    moments.update(np.random.default_rng(0).standard_normal((800, 21)) * std + mean)
    moments.save(tmp_path / "rows.safetensors")
    return tmp_path / "rows.safetensors"


def test_the_recommendation_and_the_threshold_to_use(run, with_rows):
    result = run("inspect", with_rows, "--at", "0.05")
    assert "Long-tailed: of 20 classes, a frequent class scores" in result.out
    assert "where you used 0.05, if your images have the class mix of these training images." in result.out
    assert "Recorded: background first, activation softmax" in result.out
    assert f"To correct it: logn fit {with_rows} --at 0.05 -o affine.safetensors" in result.out
    found = run("inspect", with_rows, "--at", "0.01", "--json").json
    advice = found["recommendation"]
    assert (advice["method"], advice["head"], advice["threshold"]) == ("recommended", "softmax detector", 0.01)
    assert found["threshold"]["use"] < 0.01


def test_an_activation_that_is_not_recorded_is_taken_for_a_softmax_with_a_warning(run, tmp_path):
    moments = ClassMoments(20, sample_rows=500)
    moments.update(np.random.default_rng(0).standard_normal((500, 20)) - 5 - np.arange(20) / 5)
    moments.save(tmp_path / "unknown.safetensors")
    assert "Softmax or sigmoid? Assumed softmax." in run("inspect", tmp_path / "unknown.safetensors").err
    softmax = run("inspect", tmp_path / "unknown.safetensors", "--activation", "softmax")
    assert softmax.err == ""
    assert "--activation softmax -o affine.safetensors" in softmax.out


def test_statistics_that_are_doubtful_are_told_once_and_not_refused(run, tmp_path):
    random = np.random.default_rng(0)
    scores, single = random.uniform(size=(300, 5)), random.normal(size=(300, 1))
    for rows, words in ((scores, "as probabilities do"), (single, "one logit")):
        np.save(tmp_path / "logits.npy", rows)
        run("collect", tmp_path / "logits.npy", "-o", tmp_path / "stats.safetensors", "--overwrite")
        for verb in (("inspect",), ("fit", "--overwrite", "-o", tmp_path / "affine.safetensors")):
            with warnings.catch_warnings():
                warnings.simplefilter("error", LogNWarning)
                result = run(*verb, tmp_path / "stats.safetensors")
            assert result.code == 0
            assert (result.out + result.err).count(words) == 1
