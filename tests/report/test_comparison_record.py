"""A comparison file that somebody changed is refused in one sentence."""

import json

import pytest

from logn.errors import InputError
from logn.report.comparison_record import read_comparison


@pytest.mark.parametrize("section", ["methods", "classes", "protocol", "draws", "confidence", "notes"])
@pytest.mark.parametrize("value", [3, "x", {}, [1]], ids=str)
def test_a_changed_section_is_refused_or_read(run_folder, tmp_path, section, value):
    """Some changes are harmless; none may end in anything but a record or the sentence."""
    content = json.loads((run_folder / "comparison.json").read_text())
    assert read_comparison(run_folder / "comparison.json").protocol == content["protocol"]
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps({**content, section: value}))
    if (section, value) in [("draws", 3), ("confidence", 3), ("classes", {})] or (section == "notes" and value != 3):
        read_comparison(path)
    else:
        with pytest.raises(InputError, match="Expected"):
            read_comparison(path)


def test_a_comparison_of_classifiers_has_no_page(tmp_path):
    (tmp_path / "comparison.json").write_text(json.dumps({"task": "classification"}))
    with pytest.raises(InputError, match="on a classifier, for which there is no page"):
        read_comparison(tmp_path / "comparison.json")
