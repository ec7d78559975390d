"""docs/understanding.md and the README say what the committed data of the understanding runs say."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA, PAGE = ROOT / "docs/results/understanding.json", ROOT / "docs/understanding.md"
SCRIPT = ROOT / "benchmarks/understanding_page.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="the benchmarks are not beside the tests")


@pytest.fixture(scope="module")
def results():
    return json.loads(DATA.read_text())


def test_the_tables_are_made_of_the_data(results, tmp_path):
    spec = importlib.util.spec_from_file_location("understanding_page", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    copy = shutil.copy(PAGE, tmp_path)
    script.write_page(results, Path(copy))
    assert Path(copy).read_text() == PAGE.read_text()


def test_every_setting_was_trained_twice(results):
    seeds = {}
    for row in results["rows"]:
        seeds.setdefault((row["axis"], row["label"]), []).append(row["seed"])
    assert set(map(tuple, seeds.values())) == {(0, 1)}
    assert ("classes", "1203") in seeds


@pytest.mark.parametrize("page", [PAGE, ROOT / "README.md"], ids=["page", "README"])
def test_what_is_said_of_1203_classes(results, page):
    rows = [row["methods"] for row in results["rows"] if (row["axis"], row["label"]) == ("classes", "1203")]

    def of_seeds(form, method, metric="AP", minus=None):
        return " / ".join(
            format(100 * (row[method][metric] - (row[minus][metric] if minus else 0.0)), form) for row in rows
        )

    text = " ".join(page.read_text().split())
    sentence = text[text.index("**With 1,203 classes**") :][:600]
    assert of_seeds(".1f", "none") in sentence
    form = ".1f" if page == PAGE else "+.1f"
    for method in ("logn", "norcal", "logn:balanced"):
        assert of_seeds(form, method, minus="none") in sentence, method
    if page != PAGE:
        assert of_seeds(".1f", "logn:balanced", "APr", "none") in sentence
