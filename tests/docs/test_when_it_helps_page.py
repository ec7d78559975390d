"""docs/when-it-helps.md says what its data say."""

import json
from pathlib import Path

from logn.experiments.evidence import Evidence
from logn.experiments.evidence_page import evidence_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_written_from_the_committed_data():
    evidence = [Evidence(**one) for one in json.loads((DOCS / "results/when-it-helps.json").read_text())]
    assert len(evidence) >= 24
    assert (DOCS / "when-it-helps.md").read_text() == evidence_page(evidence)
