"""Thresholds in files: what is damaged is refused, names cannot run, and empty results give none."""

import copy
import csv
import json

import pytest
from tests.made.split import make_split

from logn.errors import InputError
from logn.thresholds.choose import operating_points
from logn.thresholds.points import OperatingPoints


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return make_split(tmp_path_factory.mktemp("split"), activation="sigmoid")


@pytest.fixture(scope="module")
def document(split):
    return operating_points(split.store, split.annotations, num_bootstrap=5).to_dict()


def places(value, path=()):
    """The way to each value of a document; of lists the first entry stands for all."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


@pytest.mark.parametrize("value", [None, -1, 10**30, "x", [1], {}, "gone"])
def test_a_file_with_any_wrong_value_is_read_or_refused_in_one_sentence(document, tmp_path, value):
    refused = 0
    for path in places(document):
        changed = copy.deepcopy(document)
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        if value == "gone":
            del holder[path[-1]]
        else:
            holder[path[-1]] = value
        (tmp_path / "t.json").write_text(json.dumps(changed))
        try:
            points = OperatingPoints.load(tmp_path / "t.json")
            points.fold()
        except InputError:
            refused += 1
    assert refused > 20


def test_columns_that_cannot_be_are_refused(document, tmp_path):
    for settings in ({"columns": [0] * 10}, {"columns": [99, *range(1, 10)]}, {"num_columns": 4}, {"columns": "abc"}):
        changed = document | {"settings": document["settings"] | settings}
        (tmp_path / "t.json").write_text(json.dumps(changed))
        with pytest.raises(InputError, match=r"t.json` is a damaged file of thresholds"):
            OperatingPoints.load(tmp_path / "t.json")


def test_no_name_in_a_csv_file_is_a_formula_and_all_come_back(tmp_path):
    names = ("=cmd|' /C calc'!A0", "+1", "-1", "@sum", "'quoted", "'=both", "cup\x1b[2J", "plain, with comma", "\tx")
    points = OperatingPoints.from_thresholds({name: 0.1 + number / 20 for number, name in enumerate(names)})
    points.save(tmp_path / "t.csv")
    assert "\x1b" not in (tmp_path / "t.csv").read_text()
    with (tmp_path / "t.csv").open(newline="") as file:
        written = [name for name, _ in csv.reader(file)][1:]
    assert not any(name[0] in "=+-@\t\r" for name in written)
    again = OperatingPoints.load(tmp_path / "t.csv", class_names=names)
    assert (again.class_names, again.thresholds.tolist()) == (names, points.thresholds.tolist())


def test_results_without_detections_give_no_thresholds(split, tmp_path):
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(InputError, match="no detections to choose thresholds on"):
        operating_points(tmp_path / "results.json", split.annotations)


def test_many_thresholds_are_taken_in_linear_time():
    """They took 13 seconds."""
    names = [f"class {number}" for number in range(20_000)]
    points = OperatingPoints.from_thresholds(dict.fromkeys(names[::2], 0.5), class_names=names)
    assert points.thresholds[:4].tolist() == [0.5, 0.25, 0.5, 0.25]
