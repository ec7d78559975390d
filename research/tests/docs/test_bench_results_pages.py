"""The pages of the bench's tables say what their data say, and every row is one that the bench still measures."""

import json
import math
from pathlib import Path

import pytest
from logn_research.experiments import (
    bench_pages,
    classifier_pages,
    components,
    margins,
    online_table,
    sampler_table,
    table1,
)
from logn_research.experiments.bench_detectors import BENCHMARK
from logn_research.experiments.classifier_measurements import ClassifierRowResult, ClassifierSectionResult
from logn_research.experiments.classifier_spec import GLYPH_CLASSES
from logn_research.experiments.experiment import BenchResult, RowResult, SectionResult
from logn_research.experiments.imagenet_lt import sections

RESULTS = Path(__file__).parents[2] / "docs" / "results"
EXPERIMENTS = {module.EXPERIMENT.name: module.EXPERIMENT for module in (table1, components, margins, online_table)}
EXPERIMENTS["samplers"] = sampler_table.EXPERIMENT
# What is said of a table beside what its page writer says.
NOTE = "**To be run again.**"


def by_seed(values):
    return {int(seed): with_nan(value) for seed, value in values.items()}


def with_nan(value):
    """JSON has no NaN: it is written as null."""
    if isinstance(value, dict):
        return {name: with_nan(each) for name, each in value.items()}
    return math.nan if value is None else value


def bench_result(content):
    """What was measured, from the file: a row that the bench does not have is an error."""
    experiment = EXPERIMENTS[content["table"]]
    found = []
    for stored, section in zip(content["sections"], experiment.sections(BENCHMARK, 0), strict=True):
        rows = {row.label: row for row in section.rows}
        found.append(SectionResult(stored["title"], tuple(_row(rows[each["method"]], each) for each in stored["rows"])))
    return BenchResult(experiment, tuple(found), tuple(content["settings"]["seeds"]), BENCHMARK)


def _row(row, stored):
    names = ("metrics", "failures", "errors", "margin", "logged_seconds", "training_seconds", "total_seconds")
    return RowResult(row, *(by_seed(stored[name]) for name in (*names, "relative_cost")))


def classifier_result(content):
    """The same for the tables of classifiers."""
    found = []
    for stored, section in zip(content["sections"], sections(0, GLYPH_CLASSES), strict=True):
        rows = {row.label: row for row in section.rows}
        results = [
            ClassifierRowResult(
                rows[each["method"]],
                *(by_seed(each[name]) for name in ("metrics", "chosen", "failures", "training_seconds")),
                by_seed(each["training_loss"]),
            )
            for each in stored["rows"]
        ]
        found.append(ClassifierSectionResult(stored["title"], tuple(results)))
    return classifier_pages.ClassifierBench(GLYPH_CLASSES, tuple(content["seeds"]), tuple(found), content["settings"])


def page_of(content):
    """The page that the bench writes of such data, and the data that it writes."""
    if content["table"] in EXPERIMENTS:
        result = bench_result(content)
        return bench_pages.to_markdown(result, content["command"]), bench_pages.to_dict(result, content["command"])
    bench = classifier_result(content)
    return classifier_pages.to_markdown(bench, content["command"]), classifier_pages.to_dict(bench, content["command"])


@pytest.mark.parametrize("name", [*EXPERIMENTS, "imagenet-lt", "imagenet-lt-12-epochs"])
def test_the_page_is_that_of_the_data(name):
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    page, again = page_of(content)
    published = (RESULTS / f"{name}.md").read_text(encoding="utf-8").split("\n\n")
    assert "\n\n".join(part for part in published if not part.startswith(NOTE)) == page
    assert again == content
