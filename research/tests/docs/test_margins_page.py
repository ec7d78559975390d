"""Table 3 is measured at the authors' score threshold, and the page says what the data say."""

import json

from logn_research.pages import ROOT

PAGE = ROOT / "docs" / "results" / "margins.md"


def test_the_margins_are_measured_at_a_threshold_of_0_and_the_sentences_are_those_of_the_data():
    content = json.loads((ROOT / "results" / "margins.json").read_text(encoding="utf-8"))
    assert content["settings"]["threshold"] == 0
    text = PAGE.read_text(encoding="utf-8")
    for section in content["sections"]:
        ap = {
            row["method"]: sum(100 * numbers["AP"] for numbers in row["metrics"].values()) / len(row["metrics"])
            for row in section["rows"]
        }
        plain = ap.pop("none")
        best, worst = max(ap, key=ap.get), min(ap, key=ap.get)
        assert (
            f"- {section['title']}: of the margins, {best} has the highest box AP ({ap[best]:.1f}, "
            f"{ap[best] - plain:+.1f} against no correction) and {worst} the lowest ({ap[worst]:.1f}); -12 has "
            f"{ap['-12']:.1f}, and the paper's min changes it by {ap['min'] - plain:+.1f}.\n"
        ) in text
