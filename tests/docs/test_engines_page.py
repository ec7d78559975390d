"""The page on engines shows the numbers that were measured, and claims what they say."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "how-to" / "engines.md", ROOT / "docs" / "results" / "engines.json"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")
ROWS = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
COLUMNS = [("none", "-"), ("p2p", "before"), ("p2p", "after"), ("logn:balanced", "before"), ("logn:balanced", "after")]
PLACES = list(dict.fromkeys((row["engine"], row["precision"]) for row in ROWS))


def measured(engine, precision, correction, folded):
    wanted = {"engine": engine, "precision": precision, "correction": correction, "folded": folded}
    (found,) = [row for row in ROWS if wanted.items() <= row.items()]
    return found


def line(place):
    cells = [measured(*place, *column) for column in COLUMNS]
    return f"| {' | '.join(place)} | " + " | ".join(f"{cell['top-1']:.1f} / {cell['few']:.1f}" for cell in cells) + " |"


def test_the_table_is_what_was_measured():
    text = PAGE.read_text(encoding="utf-8")
    shown = [row for row in text.splitlines() if row.startswith(("| OpenVINO", "| LiteRT", "| onnxruntime"))]
    assert shown == [line(place) for place in PLACES]
    assert len(shown) == 9


@pytest.mark.parametrize("place", PLACES, ids=" ".join)
def test_a_correction_raises_rare_classes_and_the_mean_in_every_engine_and_precision(place):
    plain, *corrected = (measured(*place, *column) for column in COLUMNS)
    for row in corrected:
        assert row["few"] > plain["few"]
        assert row["top-1"] > plain["top-1"]
