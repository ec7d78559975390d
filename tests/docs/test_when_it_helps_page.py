"""docs/when-it-helps.md says what its data say."""

import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = DOCS.parent / "benchmarks/when_it_helps.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="the benchmarks are not beside the tests")


def test_the_page_is_written_from_the_committed_data():
    from evidence import Evidence
    from evidence_page import evidence_page

    evidence = [Evidence(**one) for one in json.loads((DOCS / "results/when-it-helps.json").read_text())]
    assert len(evidence) >= 24
    assert (DOCS / "when-it-helps.md").read_text() == evidence_page(evidence)


README_ROWS = {
    "**LogN, balanced**": "LogN balanced",
    "LogN, the paper's recipe": "LogN (paper)",
    "NorCal, gamma 0.6": "NorCal",
    "NorCal, tuned on dev": "NorCal, tuned",
    "FRACAL": "FRACAL",
    "logit adjustment, tau 1": "LogA",
}


def rows_of(text):
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("|")]
    cells = ([cell.strip() for cell in line.split(" | ")] for line in lines)
    return {first: rest for first, *rest in cells}


def test_the_table_of_the_readme_is_an_extract_of_the_page():
    section = (DOCS.parent / "README.md").read_text().split("## What it does, measured")[1].split("\n## ")[0]
    page = (DOCS / "when-it-helps.md").read_text().split("## Every method over all detectors")[1].split("\n## ")[0]
    shown, measured = rows_of(section), rows_of(page)
    columns = ["AP", "worst", "raised", "APr", "APf", "AP exhaustive"]
    places = [measured["method"].index(name) for name in columns]
    for label, method in README_ROWS.items():
        cells = [cell.strip("*") for cell in shown[label][1:]]
        assert [cell.replace("+0.0", "0.0").replace("-0.0", "0.0") for cell in cells] == [
            measured[method][place].replace("+0.0", "0.0").replace("-0.0", "0.0") for place in places
        ]
    assert len(shown) == len(README_ROWS) + 2
