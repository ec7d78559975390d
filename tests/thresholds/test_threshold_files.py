"""Thresholds in files: what is damaged is refused, names cannot run, and empty results give none."""

import copy
import csv
import json

import pytest
from tests.made.split import make_split

from logn.errors import InputError, LogNWarning
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
    for values in ({"unused": [0]}, {"unused": [99]}, {"num_columns": 4}, {"background": 7}, {"names": "abc"}):
        changed = document | {"head": document["head"] | values}
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


NAMES = ("car", "traffic light", "bus", "dog")
NAN = float("nan")
# What a tool writes, the threshold of each class at 0.25, and the classes that keep the common one.
FORMS = {
    "plain": ({"bus": 0.6, "car": 0.1}, [0.1, 0.25, 0.6, 0.25], "traffic light, dog"),
    "plain with a default": ({"bus": 0.6, "default": 0.3}, [0.3, 0.3, 0.6, 0.3], "car, traffic light, dog"),
    "spelled otherwise": ({"Traffic_Light": 0.6}, [0.25, 0.6, 0.25, 0.25], "car, bus, dog"),
    "LibreYOLO's classes": ({"car": 0.7, "bus": NAN, "dog": 0.0}, [0.7, 0.25, 0.25, 0.25], "traffic light, bus, dog"),
    "LibreYOLO's metrics": (
        {"metrics/mAP50": 0.5, "metrics/best_conf": 0.4, "metrics/best_conf_per_class": {"car": 0.7, "bus": NAN}},
        [0.7, 0.4, 0.4, 0.4],
        "traffic light, bus, dog",
    ),
    "LibreYOLO without a common one": (
        {"metrics/best_conf": 0.0, "metrics/best_conf_per_class": {"car": 0.7}},
        [0.7, 0.25, 0.25, 0.25],
        "traffic light, bus, dog",
    ),
    "Roboflow's best": (
        {"confidence": 0.42, "per_class_confidence": {"car": 0.6, "dog": 0.3}},
        [0.6, 0.42, 0.42, 0.3],
        "traffic light, bus",
    ),
    "Roboflow's model": (
        {"model_id": "a/1", "recommended_parameters": {"confidence": None, "per_class_confidence": {"car": 0.6}}},
        [0.6, 0.25, 0.25, 0.25],
        "traffic light, bus, dog",
    ),
    "Roboflow's filter": (
        {"type": "filter", "class_thresholds": {"car": 0.98}, "default_threshold": 0.3},
        [0.98, 0.3, 0.3, 0.3],
        "traffic light, bus, dog",
    ),
}
TABLES = {
    "class and threshold": "class,threshold\nbus,0.6\ncar,0.1\n",
    "other columns": "id,Name,F1,Threshold\n2,bus,0.9,0.6\n0,car,0.8,0.1\n1,traffic light,,\n3,dog,,nan\n",
    "no header": "bus,0.6\ncar,0.1\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_thresholds_of_other_tools_are_taken_as_they_are(form, tmp_path):
    content, thresholds, kept = FORMS[form]
    (tmp_path / "theirs.json").write_text(json.dumps(content))  # NaN as Python writes it
    for source in (content, tmp_path / "theirs.json", json.dumps(content)):
        points = OperatingPoints.load(source, class_names=NAMES)
        assert (points.class_names, points.thresholds.tolist()) == (NAMES, thresholds)
        (note,) = points.notes
        assert note.endswith(f": {kept}.")


@pytest.mark.parametrize("table", TABLES)
def test_a_table_of_classes_and_thresholds(table, tmp_path):
    (tmp_path / "theirs.csv").write_text(TABLES[table])
    points = OperatingPoints.load(tmp_path / "theirs.csv", class_names=NAMES)
    assert points.thresholds.tolist() == [0.1, 0.25, 0.6, 0.25]


def test_classes_that_the_model_does_not_have_are_named():
    with pytest.warns(LogNWarning, match=r"not have 2 of the classes .* \(did you mean car\?\): cra, unicorn\.$"):
        points = OperatingPoints.from_thresholds({"cra": 0.5, "bus": 0.6, "unicorn": 0.1}, class_names=NAMES)
    assert points.thresholds.tolist() == [0.25, 0.25, 0.6, 0.25]


def test_two_classes_of_one_name_have_no_threshold_by_name():
    with pytest.raises(InputError, match="2 classes of the model are called 'car'"):
        OperatingPoints.from_thresholds({"car": 0.5}, class_names=("car", "car", "bus"))


@pytest.fixture
def results(tmp_path):
    """Results and labels of three classes, one of which `NAMES` does not have."""

    def write(lowest):
        images = [{"id": number, "width": 50, "height": 50} for number in range(60)]
        boxes = [{"image_id": number, "category_id": number % 3, "bbox": [0, 0, 9, 9]} for number in range(60)]
        truth = [{**box, "id": number + 1, "area": 81} for number, box in enumerate(boxes)]
        categories = [{"id": number, "name": name} for number, name in enumerate(("bus", "cow", "car"))]
        labels = {"images": images, "annotations": truth, "categories": categories}
        found = [{**box, "score": 0.4 + number / 200} for number, box in enumerate(boxes)]
        wrong = [{**box, "bbox": [20, 0, 9, 9], "score": lowest} for box in boxes]
        (tmp_path / "results.json").write_text(json.dumps(found + wrong))
        return tmp_path / "results.json", labels

    return write


def test_points_of_a_results_file_fit_a_model_with_other_classes(results, tmp_path):
    points = operating_points(*results(0.05), num_bootstrap=0)
    points.save(tmp_path / "points.json")
    chosen = dict(zip(points.class_names, points.thresholds.tolist(), strict=True))
    with pytest.warns(LogNWarning, match="does not have 1 of the classes that have thresholds: cow"):
        again = OperatingPoints.load(tmp_path / "points.json", 0.25, NAMES)
    assert again.class_names == NAMES
    assert again.thresholds.tolist() == [chosen["car"], 0.25, chosen["bus"], 0.25]


def test_results_that_are_cut_at_a_high_score_are_announced(results):
    with pytest.warns(LogNWarning, match=r"The lowest score of `.*results.json` is 0.3, so no threshold below it"):
        operating_points(*results(0.3), num_bootstrap=0)


@pytest.mark.parametrize("content", ['{"a": 1}', '{"annotations": []}', '["a"]', None])
def test_what_is_no_results_file_is_refused(split, tmp_path, content):
    if content is not None:
        (tmp_path / "nothere.json").write_text(content)
    with pytest.raises(InputError, match=r"nothere.json"):
        operating_points(tmp_path / "nothere.json", split.annotations)
