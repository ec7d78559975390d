"""`logn inspect`: the tables, the sentences, the advice, the figure, and what programs read."""

import re
import warnings

import numpy as np
import pytest

from logn.calibrators.advice import recommended_method
from logn.errors import LogNWarning
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments


@pytest.fixture
def stats(tmp_path):
    """Statistics of forty classes whose means fall with their counts, one of them dead."""
    names = (*(f"class[{index}]" for index in range(40)), "background")
    moments = ClassMoments(41, nonfinite="skip", metadata=StatisticsMetadata(background=-1, class_names=names))
    rows = np.random.default_rng(0).standard_normal((60, 41)) * 0.5 + np.append(-np.arange(40) / 5, 9)
    rows[:, 3] = 1.0
    rows[0, 5] = np.nan
    moments.update(rows)
    moments.save(tmp_path / "stats.safetensors")
    (tmp_path / "counts.json").write_text(str([2000 // (index + 1) for index in range(40)]))
    return tmp_path / "stats.safetensors"


def test_the_table_and_the_sentence(run, stats, tmp_path):
    result = run("inspect", stats, "--counts", tmp_path / "counts.json", "--top", "4")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split() == ["class", "group", "images", "logits", "mean", "std"]
    assert lines[1].split()[:4] == ["class[0]", "f", "2,000", "60"]
    assert lines[4].split()[1] == "(dead)"
    assert lines[5].split() == ["…", "32", "more"]
    assert lines[9].split()[:3] == ["class[39]", "c", "50"]
    assert "strongly follow the training counts" in result.out
    assert "Dead: 1 of 40 classes" in result.out
    assert "Skipped: 1 values" in result.out
    assert f"background {ClassMoments.load(stats).mean[-1]:.3f}" in result.out


def test_all_classes_are_shown_on_request(run, stats):
    result = run("inspect", stats, "--top", "0")
    assert sum("class[" in line for line in result.out.split("Recorded:")[0].splitlines()) == 40
    assert "give the counts" in result.out


def test_what_programs_read(run, stats, tmp_path):
    result = run("inspect", stats, "--counts", tmp_path / "counts.json", "--plot", tmp_path / "p.png", "--json").json
    assert len(result["classes"]) == len(result["mean"]) == len(result["std"]) == 40
    assert result["dead"] == ["class[3]"]
    assert result["groups"][0] == "f"
    assert result["correlation_with_log_count"]["mean"]["spearman"] > 0.9
    assert set(result["margins"]) == {"min", "mean", "max", "background"}
    assert result["metadata"]["background"] == -1
    assert (tmp_path / "p.png").exists()


def test_classes_never_seen_become_null(run, tmp_path):
    ClassMoments(3).save(tmp_path / "a.safetensors")
    result = run("inspect", tmp_path / "a.safetensors", "--json").json
    assert result["std"] == [None, None, None]
    assert run("inspect", tmp_path / "a.safetensors").code == 0


def test_without_rows_it_says_how_to_collect_them(run, stats):
    result = run("inspect", stats)
    assert "What each form would do: unknown." in result.out
    assert "--sample-rows 4096" in result.out
    plain = run("inspect", stats, "--json").json
    assert plain["forms"]["forms"] == []
    assert plain["advice"]["form"] == "logn:balanced"


@pytest.fixture
def with_rows(tmp_path):
    """Statistics with a row sample, background first."""
    metadata = StatisticsMetadata(background=0, activation="softmax")
    moments = ClassMoments(21, sample_rows=500, mean_probability=True, metadata=metadata)
    mean, std = np.append(5, -np.arange(20) / 6), np.append(1, 1.5 - np.arange(20) / 20)
    moments.update(np.random.default_rng(0).standard_normal((800, 21)) * std + mean)
    moments.save(tmp_path / "rows.safetensors")
    return tmp_path / "rows.safetensors"


def test_what_each_form_would_do(run, with_rows):
    result = run("inspect", with_rows)
    table = result.out.split("What each form would do, on 500 sampled rows:\n")[1].splitlines()
    assert table[0].split()[:4] == ["form", "margin", "foreground", "mass"]
    assert "scores > 0.05 per 1,000 rows" in table[0]
    rows = {line[:20].strip(): line[20:].split() for line in table[1:12]}
    assert list(rows) == [
        "as it is",
        "paper (margin min)",
        "margin mean",
        "margin max",
        "margin background",
        "margin 0",
        "relative std alone",
        "balanced",
        "p2p, mass kept",
        "p2p, margin -1",
        "p2p, margin -2",
    ]
    assert rows["p2p, mass kept"][1] == rows["balanced"][1] == rows["as it is"][0]  # the mass stays
    assert float(rows["paper (margin min)"][1]) < float(rows["as it is"][0]) / 2
    assert f"\nAdvice: {recommended_method(0, 'softmax')} (confidence " in result.out
    federated = run("inspect", with_rows, "--labels", "federated").out
    assert f"\nAdvice: {recommended_method(0, 'softmax', 'federated')} (confidence " in federated
    assert "Mind: The paper's own form (logn:margin=min) lowers the foreground mass" in result.out


def test_the_forms_for_programs_and_the_users_threshold(run, with_rows):
    low, high = (run("inspect", with_rows, "--threshold", value, "--json").json for value in ("0.01", "0.5"))
    assert low["forms"]["quantity"] == "foreground mass"
    assert low["forms"]["threshold"] == 0.01
    assert low["forms"]["before"]["detections"] > high["forms"]["before"]["detections"]
    assert [form["form"] for form in low["forms"]["forms"]][-1] == "p2p:extra_margin=-2"
    assert low["advice"]["indicators"]["mean_spread"] > 0.5


def test_mistakes_are_named(refused, stats, tmp_path):
    (tmp_path / "short.json").write_text("[1, 2]")
    assert "40 foreground classes, but got 2" in refused("inspect", stats, "--counts", tmp_path / "short.json")
    assert ".png, .svg, .pdf" in refused("inspect", stats, "--plot", tmp_path / "p.gif")
    assert "to exist" in refused("inspect", stats, "--plot", tmp_path / "no/p.png")
    assert "counts.json" in refused("inspect", tmp_path / "counts.json")
    assert "no-such" in refused("inspect", tmp_path / "no-such.safetensors")
    assert "--top" in refused("inspect", stats, "--top", "-1")
    assert "--threshold" in refused("inspect", stats, "--threshold", "5")


@pytest.mark.parametrize("columns", ["50", "80"])
def test_no_number_is_cut_on_a_small_terminal(run, with_rows, monkeypatch, columns):
    wide = run("inspect", with_rows, "--top", "3").out
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", columns)
    small = run("inspect", with_rows, "--top", "3").out
    numbers = re.compile(r"-?\d[\d,]*\.?\d*")
    assert sorted(numbers.findall(re.sub(r"\x1b\[\d*m", "", small))) == sorted(numbers.findall(wide))
    assert [line for line in small.splitlines() if "…" in line and "more" not in line] == []


def test_the_background_is_told_in_the_words_of_the_option(run, with_rows):
    assert "Recorded: background first, activation softmax" in run("inspect", with_rows).out


def test_an_activation_that_is_not_recorded_is_taken_for_sigmoids_and_that_is_said(run, tmp_path):
    moments = ClassMoments(20, sample_rows=500)
    mean, std = -5 - np.arange(20) / 5, 2 - np.arange(20) / 20
    moments.update(np.random.default_rng(0).standard_normal((500, 20)) * std + mean)
    moments.save(tmp_path / "unknown.safetensors")
    told = run("inspect", tmp_path / "unknown.safetensors").out
    assert "expected detections" in told
    assert "Mind: The activation is not recorded: the scores are taken for those of sigmoids" in told
    assert "paper's own form" not in told  # which keeps the number of detections
    assert "not recorded" in run("inspect", tmp_path / "unknown.safetensors", "--json").json["forms"]["assumption"]
    softmax = run("inspect", tmp_path / "unknown.safetensors", "--activation", "softmax").out
    assert "confidence" in softmax
    assert "not recorded" not in softmax
    assert "--method logn:balanced --activation softmax -o affine.safetensors" in softmax


def test_statistics_that_are_doubtful_are_told_once_and_not_refused(run, tmp_path):
    random = np.random.default_rng(0)
    scores, single = random.uniform(size=(300, 5)), random.normal(size=(300, 1))
    for rows, words in ((scores, "as probabilities do"), (single, "one logit")):
        np.save(tmp_path / "logits.npy", rows)
        run("collect", tmp_path / "logits.npy", "-o", tmp_path / "stats.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("error", LogNWarning)
            result = run("inspect", tmp_path / "stats.safetensors")
        assert result.code == 0
        assert result.out.count(words) == 1
    np.save(tmp_path / "logits.npy", random.dirichlet(np.ones(5), 300))
    run("collect", tmp_path / "logits.npy", "-o", tmp_path / "stats.safetensors")
    result = run("inspect", tmp_path / "stats.safetensors")
    assert result.code == 0
    assert "unknown. Expected `STATISTICS` to be of logits" in " ".join(result.out.split())


def test_strengths_are_shown(run, tmp_path):
    moments = ClassMoments(8, sample_rows=500, mean_probability=True, metadata=StatisticsMetadata(activation="softmax"))
    moments.update(np.random.default_rng(0).normal(-np.arange(8.0), 2.0, size=(500, 8)))
    moments.save(tmp_path / "stats.safetensors")
    result = run("inspect", tmp_path / "stats.safetensors")
    assert result.code == 0
    for method in ("logn:balanced", "p2p"):
        assert f"What a part of {method} (--strength) would do, on 500 sampled rows:" in result.out
    found = run("inspect", tmp_path / "stats.safetensors", "--json").json["strengths"]["p2p"]["forms"]
    assert [effect["label"] for effect in found] == [f"strength {part}" for part in ("0.25", "0.5", "0.75", "1")]
    changed = [effect["winners_changed"] for effect in found]
    assert changed == sorted(changed)
    assert changed[-1] > 0


def test_two_files_show_drift(run, tmp_path):
    for name, offset in (("train", 0.0), ("deployed", 1.0)):
        moments = ClassMoments(3, mean_probability=True, metadata=StatisticsMetadata(class_names=("a", "b", "c")))
        moments.update(np.random.default_rng(0).normal([0.0, offset, -2.0], size=(300, 3)))
        moments.save(tmp_path / f"{name}.safetensors")
    files = (tmp_path / "train.safetensors", tmp_path / "deployed.safetensors")
    result = run("inspect", *files)
    assert result.code == 0
    assert "1 of 3 classes differ by more than chance explains; most of all b, by +1.0" in result.out
    found = run("inspect", *files, "--json").json
    assert (found["order"][0], found["drifted"]) == (1, [False, True, False])
    refused = run("inspect", *files, "--plot", tmp_path / "x.png")
    assert refused.code == 2
    assert "only with one file of statistics" in refused.err
