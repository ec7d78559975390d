"""The tables of classifiers from made numbers: means with intervals, changes against the baseline, the paper beside."""

import json

import pytest
from logn_research.datasets.glyphs.settings import GlyphClassSettings
from logn_research.experiments.classifier_measurements import ClassifierRowResult, ClassifierSectionResult
from logn_research.experiments.classifier_pages import (
    ClassifierBench,
    findings,
    section_table,
    to_markdown,
    to_text,
    write_pages,
)
from logn_research.experiments.classifier_spec import ClassifierProblem
from logn_research.experiments.formatting import half_width, student_quantile
from logn_research.experiments.imagenet_lt import COMPONENTS, MAIN, PAPER_DATA, sections

from logn.text_table import TextStyle

FACTS = {
    "classes": 100,
    "train": 9900,
    "most": 500,
    "fewest": 3,
    "test": 4000,
    "groups": {"many": 31, "medium": 32, "few": 37},
    "epochs": 24,
    "stage_epochs": 10,
}


def made_row(row, level, seeds):
    """Numbers that grow with the place of the row; every seed is half a point higher than the one before."""
    groups = {"many": 0.3, "medium": 0.0, "few": -0.3, "top-1": 0.0, "ECE": -0.4}
    metrics = {seed: {name: 0.5 + extra + level + 0.005 * seed for name, extra in groups.items()} for seed in seeds}
    return ClassifierRowResult(row, metrics=metrics, seconds=dict.fromkeys(seeds, 60.0))


def made_bench(seeds=(0, 1, 2), failed=()):
    found = []
    for section in sections(0):
        rows = [made_row(row, 0.01 * place, seeds) for place, row in enumerate(section.rows)]
        rows = [
            ClassifierRowResult(row.row, failures={0: "It was stopped."}) if row.row.label in failed else row
            for row in rows
        ]
        found.append(ClassifierSectionResult(section.title, tuple(rows)))
    return ClassifierBench(ClassifierProblem("glyph classes", GlyphClassSettings()), tuple(seeds), tuple(found), FACTS)


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_the_tables_fit_a_terminal(columns):
    text = to_text(made_bench(), TextStyle(width=columns, prose=columns))
    assert [line for line in text.splitlines() if len(line) > columns] == []


def test_every_row_of_the_paper_stands_beside_ours():
    bench = made_bench()
    tables = {section.title: section_table(bench, section) for section in bench.sections}
    paper = {row[0]: row[-4:] for row in tables[MAIN].rows}
    assert paper["Softmax"] == ("65.9", "37.5", "7.7", "44.4")
    assert paper["LogN"] == ("59.1", "50.3", "35.0", "51.6")
    assert len(paper) == 10
    assert all(cell for cells in paper.values() for cell in cells)
    assert {row[0]: row[-1] for row in tables[COMPONENTS].rows}["std"] == "50.9"


def test_means_have_intervals_and_changes_are_taken_seed_by_seed():
    table = section_table(made_bench(), made_bench().sections[0])
    focal = dict(zip(table.header, table.rows[1], strict=True))
    assert focal["overall"] == "51.5 ± 1.2"
    assert focal["change"] == "+1.0 ± 0.0"  # the seeds move both rows alike
    assert dict(zip(table.header, table.rows[0], strict=True))["change"] == ""
    assert half_width([50.0, 50.5, 51.0]) == pytest.approx(4.303 * 0.5 / 3**0.5)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (6, 2.447), (10, 2.228), (11, 2.201), (24, 2.064), (30, 2.042), (120, 1.980)]
)
def test_quantiles_are_those_of_tables(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, abs=6e-4)


def test_one_seed_has_no_interval():
    table = section_table(made_bench((0,)), made_bench((0,)).sections[0])
    assert table.rows[1][4] == "51.0"
    assert "seeds" not in table.caption


def test_a_row_that_failed_is_named_and_holds_up_no_other():
    bench = made_bench(failed=("cRT", "Softmax"))
    table = section_table(bench, bench.sections[0])
    assert table.rows[2][:2] == ("cRT", "failed")
    assert dict(zip(table.header, table.rows[1], strict=True))["change"] == "-"
    assert f"{MAIN}, cRT, seed 0: It was stopped." in bench.failures
    assert "It was stopped." in to_markdown(bench, "logn bench imagenet-lt")


def test_the_findings_follow_from_the_numbers():
    sentences = findings(made_bench())
    assert "The highest overall accuracy is 59.5 %, by LogN." in sentences
    change = next(sentence for sentence in sentences if sentence.startswith("LogN against Softmax"))
    assert "overall accuracy by +9.0 ± 0.0" in change
    assert f"on {PAPER_DATA} the paper's changes overall accuracy by +7.2" in change


def test_pages_hold_everything(tmp_path):
    paths = write_pages(made_bench(), tmp_path / "results", "logn bench imagenet-lt")
    content = json.loads(paths["json"].read_text())
    assert content["sections"][0]["rows"][9]["method"] == "LogN"
    assert content["sections"][0]["rows"][9]["paper"]["few"] == 35.0
    assert content["sections"][0]["rows"][1]["change_of_top_1"]["mean"] == pytest.approx(1.0)
    page = paths["markdown"].read_text()
    for words in (
        "9,900 training images",
        "24 epochs",
        "31, 32 and 37 classes",
        "`logn bench imagenet-lt`",
        "ResNeXt-50",
    ):
        assert words in page
