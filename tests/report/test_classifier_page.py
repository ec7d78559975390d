"""The page of a classifier: the same story, told with accuracies, confusions and reliability."""

import json
import re
import shutil
from html import unescape

import numpy as np
import pytest

from logn.cli.main import execute
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.comparison import CompareSettings, Comparison
from logn.report.page import write_report
from logn.report.page_classifier import confusion_table, reliability_charts
from logn.report.run_folder import open_run

HOSTILE = "<script>alert(1)</script>"
NAMES = ("cup", HOSTILE, "spoon", "{{ 7 * 7 }}")
COUNTS = np.array([500, 60, 30, 5])
SECTIONS = ["methods", "groups", "statistics", "classes", "confusions", "reliability", "next-steps", "provenance"]


def rows(labels, seed):
    noise = np.random.default_rng(seed).normal(size=(len(labels), 4))
    return 2 * np.eye(4)[labels] + noise + 0.7 * np.log(COUNTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("classifier") / "run"
    labels = np.repeat(np.arange(4), 50)
    compare(
        rows(labels, 1),
        labels,
        ["logn", "loga"],
        train_logits=rows(np.repeat(np.arange(4), COUNTS), 0),
        counts=COUNTS,
        class_names=NAMES,
        settings=CompareSettings(num_bootstrap=50),
    ).save(path)
    return path


@pytest.fixture(scope="module")
def page(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    summary = write_report(open_run(folder), path)
    return summary, path.read_text(encoding="utf-8")


def test_the_story_is_told_in_order_and_lacks_nothing(page, folder):
    summary, text = page
    assert summary.missing == {}
    assert re.findall(r'<section id="([a-z-]+)"', text) == SECTIONS
    assert summary.verdict == Comparison.load(folder).verdict("logn")
    assert f'<p id="verdict">{summary.verdict}</p>' in unescape(text).replace("\xa0", " ")
    words = (" accuracy by ", "Few-shot classes", "All methods on the same logits", "50 paired draws of rows")
    for said in (*words, "4 classes, 200 rows", "few-shot, 5 training images, 50 rows"):
        assert said in text
    shown = text.split("</style>")[1].split("<footer>")[0]
    for left_out in ("boxes", "proposals", "Rare classes", "AP", "nan", "None"):
        assert not re.search(rf"\b{left_out}\b", shown), left_out


def test_names_from_the_data_are_text(page):
    _, text = page
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count("<script") == text.count("</script>") == 2
    assert "{{ 7 * 7 }}" in text


def test_confusions_are_counted_under_every_method(folder):
    comparison = Comparison.load(folder)
    table = confusion_table(comparison)
    assert table.methods == ("none", "logn", "loga")
    first = table.pairs[0]
    assert first.rows == 50
    worst = comparison.baseline.confused[0]
    assert (NAMES[worst.label], worst.errors) == (first.name, first.errors[0])
    assert first.errors[1:] == tuple(row.confused[0].errors for row in comparison.rows[1:])


def test_reliability_stands_where_accuracy_and_confidence_are(folder):
    comparison = Comparison.load(folder)
    row = comparison["logn"]
    bins = row.reliability
    assert bins.rows.sum() == 200
    present = bins.rows > 0
    assert np.average(bins.accuracy[present], weights=bins.rows[present]) == pytest.approx(row["top-1"])
    assert np.average(bins.confidence[present], weights=bins.rows[present]) == pytest.approx(row["confidence"])
    gaps = np.abs(bins.accuracy - bins.confidence)[present]
    assert np.average(gaps, weights=bins.rows[present]) == pytest.approx(row["ECE"])
    charts = reliability_charts(comparison, row).charts
    assert [chart.title for chart in charts] == ["none", "logn"]
    assert charts[1].words.startswith(f"ECE {100 * row['ECE']:.1f}, mean confidence ")


def test_negative_log_likelihood_is_in_nats_and_confidence_has_no_best(page, folder):
    _, text = page
    comparison = Comparison.load(folder)
    table = re.search(r'<section id="methods".*?</section>', text, re.DOTALL).group(0)
    for row in comparison.rows:
        assert f">{row['NLL']:.3f}</td>" in table
    best = min(row["NLL"] for row in comparison.rows)
    assert f'data-value="{best:.6g}" data-label="NLL" class="best">{best:.3f}' in table
    most = max(row["confidence"] for row in comparison.rows)
    assert f'data-value="{most:.6g}" data-label="confidence">' in table


def test_the_top_says_what_it_costs_and_the_end_what_to_do(page, folder):
    _, text = page
    top, comparison = text.split("<main>")[0], Comparison.load(folder)
    before, after = comparison.baseline, comparison["logn"]
    assert "Calibration error (ECE)" in top
    assert f"<small>{100 * before['ECE']:.1f} → </small>{100 * after['ECE']:.1f}" in top
    assert "Mean confidence" in top
    end = re.sub(r"</?span[^>]*>", "", text.split('<section id="next-steps"')[1].split("</section>")[0])
    assert "logn correct MODEL --images train/ --method logn -o CORRECTED" in end
    assert "logn thresholds" not in end


def test_what_is_not_known_is_left_out_or_said(tmp_path):
    labels = np.repeat(np.arange(4), 20)
    compare(rows(labels, 1), labels, ["temperature:value=2"], settings=CompareSettings(num_bootstrap=0)).save(tmp_path)
    summary = write_report(open_run(tmp_path), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert list(summary.missing) == ["Logit statistics by class"]
    assert "made with training counts (`--counts`)" in summary.missing["Logit statistics by class"]
    assert 'id="groups"' not in text
    assert "same family" not in text
    assert "no intervals were computed" in text


def test_the_commands_compare_and_report(tmp_path, capsys):
    labels = np.repeat(np.arange(4), 50)
    np.save(tmp_path / "test.npy", rows(labels, 1))
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "train.npy", rows(np.repeat(np.arange(4), COUNTS), 0))
    (tmp_path / "counts.json").write_text(json.dumps(COUNTS.tolist()))
    given = ["compare", tmp_path / "test.npy", "--labels", tmp_path / "labels.npy"]
    given += ["--train-logits", tmp_path / "train.npy", "--counts", tmp_path / "counts.json"]
    given += ["--bootstrap", 20, "-o", tmp_path / "run"]
    assert execute(list(map(str, given))) == 0
    said = capsys.readouterr()
    assert f"logn report {tmp_path}/run" in said.err
    assert execute(["report", str(tmp_path / "run"), "-m", "recommended", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == {}
    shutil.copytree(tmp_path / "run", tmp_path / "moved")
    assert execute(["report", str(tmp_path / "moved"), "--json"]) == 0
    text = unescape(re.sub(r"</?span[^>]*>", "", (tmp_path / "moved" / "report.html").read_text()))
    assert "--bootstrap 20" in text
    assert "nms_iou" not in text
