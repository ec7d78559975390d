"""The page of a classifier: the same story, told with accuracies, confusions and reliability."""

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.report.conftest import HOSTILE, ROW_METHODS, ROW_NAMES, logit_rows

from logn.errors import InputError
from logn.measure.compare import compare
from logn.measure.comparison import CompareSettings, Comparison
from logn.report import sections
from logn.report.page import write_report
from logn.report.view import View

SECTIONS = ["methods", "strengths", "confusions", "reliability", "classes", "statistics", "steps", "provenance"]


@pytest.fixture(scope="module")
def comparison(classifier_folder):
    return Comparison.load(classifier_folder)


@pytest.fixture(scope="module")
def text(classifier_folder):
    return (classifier_folder / "report.html").read_text(encoding="utf-8")


def test_the_story_is_told_in_the_words_of_classifiers(text, comparison):
    assert re.findall(r'<section id="([a-z-]+)"', text) == SECTIONS
    view = View.of(comparison, comparison["logn"])
    assert [piece.words for piece in sections.headline(view)[0]] == ["Few-shot classes: accuracy", "Many-shot:"]
    titles = [card.title for card in sections.cards(view)]
    assert titles[:4] == ["Accuracy, few-shot", "Accuracy, medium-shot", "Accuracy, many-shot", "Accuracy, all"]
    assert titles[4:] == ["Class-mean accuracy", "Calibration error (ECE)"]
    for said in ("same logits", "50 paired draws of rows", "4 classes, 200 rows", "5 training images"):
        assert said in text
    shown = text.split("</style>")[1].split("<footer>")[0].split("<details><summary>All settings")[0]
    for left_out in ("boxes", "proposals", "Rare classes", "AP", "nan", "None", "logn thresholds"):
        assert not re.search(rf"\b{left_out}\b", shown), left_out


def test_names_from_the_data_are_text(text):
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count("<script") == text.count("</script>") == 3
    assert "{{ 7 * 7 }}" in text


def test_confusions_are_counted_under_every_method(comparison):
    table = sections.confusions(View.of(comparison, comparison["logn"]))
    assert table["columns"] == ["rows", "none", *ROW_METHODS]
    worst = comparison.baseline.confused[0]
    name, taken_for, (examples, *errors) = table["pairs"][0]
    assert (name, taken_for, examples) == (ROW_NAMES[worst.label], ROW_NAMES[worst.predicted], 50)
    assert errors == [row.confused[0].errors for row in comparison.rows]


def test_reliability_adds_up_to_accuracy_confidence_and_ece(comparison):
    row, bins = comparison["logn"], comparison["logn"].reliability
    present = bins.rows > 0
    weights = bins.rows[present]
    assert np.average(bins.accuracy[present], weights=weights) == pytest.approx(row["top-1"])
    assert np.average(bins.confidence[present], weights=weights) == pytest.approx(row["confidence"])
    gaps = np.abs(bins.accuracy - bins.confidence)[present]
    assert np.average(gaps, weights=weights) == pytest.approx(row["ECE"])
    charts = sections.reliability(View.of(comparison, row))["charts"]
    assert charts[1]["caption"].startswith(f"ECE {100 * row['ECE']:.1f}, mean confidence ")


def test_negative_log_likelihood_is_in_nats_and_confidence_has_no_best(text, comparison):
    best = min(row["NLL"] for row in comparison.rows)
    assert f'<td data-value="{best:.6g}" class="best">{best:.3f}' in text
    most = max(row["confidence"] for row in comparison.rows)
    assert f'<td data-value="{most:.6g}">' in text


def test_what_is_not_known_is_left_out_or_named(tmp_path):
    labels, settings = np.repeat(np.arange(4), 20), CompareSettings(num_bootstrap=0)
    compare(logit_rows(labels, 1), labels, ["temperature:value=2"], settings=settings).save(tmp_path)
    summary = write_report(tmp_path, tmp_path / "report.html")
    assert list(summary.missing) == ["How far?", "Logits and training frequency"]
    text = (tmp_path / "report.html").read_text()
    assert "No intervals were computed" in text
    assert re.search(r"<h1>\s*<span>Accuracy [\d.]+ → ", text)


def test_what_was_left_out_is_named_with_the_command(comparison):
    without = replace(comparison, classes=tuple(replace(entry, train_count=None) for entry in comparison.classes))
    with pytest.raises(InputError, match=r"made without `--counts`\. Compare again with it\.$"):
        sections.logit_statistics(View.of(without, without["logn"]))
    typed = without.made_by(("logn", "compare", "my test.safetensors", "-o", "out"))
    line = "Compare again with it: logn compare 'my test.safetensors' -o out --counts counts.csv --overwrite"
    with pytest.raises(InputError, match=re.escape(line)):
        sections.logit_statistics(View.of(typed, typed["logn"]))
