"""A comparison in a folder: saved and loaded it equals itself, and what somebody changed is refused in one sentence."""

import json
import math
import shutil
import string
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import logn
from logn.errors import InputError, LogNWarning
from logn.measure.classification.accuracy import ConfusedPair, Reliability
from logn.measure.comparison import (
    CompareSettings,
    Comparison,
    EvaluatedClass,
    MethodResult,
    Provenance,
    ReportDetails,
    UnsavedMap,
)
from logn.measure.detection.bootstrap import Interval
from logn.measure.detection.example_images import Mark
from logn.measure.detection.metrics import COUNTED_AT, EvaluationProtocol, RecallAtCount
from logn.measure.detection.threshold_curve import ThresholdCurve
from logn.measure.detection.tide import ERROR_TYPES, SPECIAL_ERRORS, ErrorTypes
from logn.methods.affine import ClassAffine
from logn.predictions.decoder import DecodeSettings
from logn.statistics.head import Head

CLASSES = 3
VALUES, TEXTS, COUNTS = st.floats(-2, 2) | st.just(math.nan), st.text(max_size=12), st.integers(0, 2**40)
LABELS = st.integers(0, CLASSES - 1)
GAINS = dict.fromkeys((*ERROR_TYPES, *SPECIAL_ERRORS), VALUES)
PLAIN = {
    **{float: VALUES, str: TEXTS, int: COUNTS, bool: st.booleans(), Any: COUNTS},
    Mark: st.builds(Mark, TEXTS, st.tuples(*[VALUES] * 4), LABELS, st.none() | VALUES, st.booleans(), TEXTS),
    ErrorTypes: st.builds(
        ErrorTypes,
        VALUES,
        st.fixed_dictionaries(GAINS),
        st.fixed_dictionaries(dict.fromkeys(ERROR_TYPES, COUNTS)),
        st.dictionaries(st.sampled_from("rcf"), st.fixed_dictionaries({"AP50": VALUES, **GAINS}), max_size=1),
    ),
}


def made(hint):
    """Any value of a type hint."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if is_dataclass(hint):
        return st.builds(hint, **{name: made(part) for name, part in get_type_hints(hint).items()})
    if origin is tuple:
        return (
            st.lists(made(arguments[0]), max_size=2).map(tuple)
            if ... in arguments
            else st.tuples(*map(made, arguments))
        )
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(*map(made, arguments), max_size=2)
    return st.none() | made(arguments[0])


NUMBERS = st.lists(st.floats(0.1, 9), min_size=CLASSES, max_size=CLASSES)
CLASS_VALUES = st.lists(VALUES, min_size=CLASSES, max_size=CLASSES).map(np.array)
ROWS = st.lists(COUNTS, min_size=CLASSES, max_size=CLASSES).map(np.array)
MAPS = st.one_of(
    st.none(),
    st.builds(
        ClassAffine, NUMBERS, NUMBERS, st.sampled_from([None, Head(background=0)]), TEXTS, st.dictionaries(TEXTS, TEXTS)
    ),
    st.just(np.negative),
)
SETTINGS = st.builds(
    CompareSettings,
    decode=st.builds(DecodeSettings, st.floats(0, 0.9), st.floats(0, 1), st.none() | st.integers(1, 900)),
    num_bootstrap=st.integers(0, 9),
    confidence=st.floats(0.01, 0.99),
    seed=COUNTS,
    bounds=st.none() | st.just((5, 50)),
)
PROTOCOL = st.builds(EvaluationProtocol, images=st.none() | TEXTS, nms_iou=st.none() | st.floats(0, 1))
METRICS = {"detection": ("AP", "APr", "AP-Pool", "ECE"), "classification": ("top-1", "few", "ECE", "confidence")}


@st.composite
def comparisons(draw):
    task, pairs = draw(st.sampled_from(sorted(METRICS))), draw(st.lists(st.tuples(LABELS, LABELS), max_size=2))
    names = ["none", *draw(st.lists(TEXTS.filter(lambda text: text != "none"), unique=True, max_size=2))]
    counted = {"thresholds": (0.25, 0.5), "found": (4, 2), "false_alarms": (7, 1)}
    curves = made(ThresholdCurve).map(lambda curve: replace(curve, **counted)) if draw(st.booleans()) else st.none()
    of_task = {
        "detection": {
            "recall": st.fixed_dictionaries(dict.fromkeys(COUNTED_AT, made(RecallAtCount))),
            "thresholds": curves,
            "errors": made(ErrorTypes | None),
            "details": made(ReportDetails | None),
        },
        "classification": {
            "predictions_per_class": ROWS,
            "confused": st.tuples(*(st.builds(ConfusedPair, *map(st.just, pair), COUNTS, VALUES) for pair in pairs)),
            "reliability": st.none() | st.builds(Reliability, ROWS, CLASS_VALUES, CLASS_VALUES),
        },
    }[task]
    row = st.builds(
        MethodResult,
        values=st.fixed_dictionaries(dict.fromkeys(METRICS[task], VALUES)),
        per_class=CLASS_VALUES,
        differences=st.fixed_dictionaries(dict.fromkeys(METRICS[task], made(Interval))),
        transform=MAPS,
        seconds=VALUES,
        name=st.just(""),
        **of_task,
    )
    return Comparison(
        tuple(replace(draw(row), name=name) for name in names),
        task,
        draw(TEXTS),
        classes=draw(st.tuples(*[made(EvaluatedClass)] * CLASSES)),
        protocols=dict.fromkeys(("AP", "AP-Pool"), draw(PROTOCOL)) if task == "detection" else {},
        settings=draw(SETTINGS),
        seconds=draw(made(Mapping[str, float])),
        notes=draw(made(tuple[str, ...])),
        provenance=draw(made(Provenance)),
    )


# A comparison has so many parts that making a failing one smaller takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(max_examples=30, phases=PHASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(comparisons())
def test_a_comparison_saved_and_loaded_equals_itself(comparison):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)  # of maps that no file can hold
        comparison.save(folder)
        loaded = logn.Comparison.load(folder)
        assert loaded == comparison
        assert str(loaded) == str(comparison)
        assert loaded.settings == comparison.settings
        for row, again in zip(comparison.rows, loaded.rows, strict=True):
            assert again.name == row.name
            np.testing.assert_equal((dict(again.values), again.per_class), (dict(row.values), row.per_class))
            assert again.recall.keys() == row.recall.keys()
            if isinstance(row.transform, ClassAffine):
                assert again.transform == row.transform
            elif row.transform is np.negative:
                assert isinstance(again.transform, UnsavedMap)


@pytest.fixture(scope="module")
def saved(softmax_split, tmp_path_factory):
    folder, split = tmp_path_factory.mktemp("saved"), softmax_split
    inputs = {"settings": CompareSettings(num_bootstrap=5), "moments": split.moments, "counts": split.counts}
    logn.compare(split.store, split.annotations, ["logn", "loga"], **inputs).save(folder)
    return folder


def other_row(comparison, **parts):
    return replace(comparison, rows=(*comparison.rows[:-1], replace(comparison.rows[-1], **parts)))


@pytest.mark.parametrize(
    "change",
    [
        lambda found: replace(found, notes=("other",)),
        lambda found: replace(found, settings=CompareSettings(num_bootstrap=5, seed=1)),
        lambda found: replace(found, classes=(replace(found.classes[0], mean=None), *found.classes[1:])),
        lambda found: other_row(found, transform=ClassAffine(np.ones(11), np.zeros(11), head=Head(background=-1))),
        lambda found: other_row(found, details=replace(found.rows[-1].details, images=-1)),
    ],
)
def test_a_comparison_that_differs_in_any_part_is_another(saved, change):
    found = Comparison.load(saved)
    assert found == Comparison.load(saved)
    assert found != change(found)


def changed(saved, folder, change):
    """The saved comparison in another folder, its document changed."""
    for path in saved.iterdir():
        shutil.copy(path, folder)
    content = json.loads((folder / "comparison.json").read_text())
    change(content)
    (folder / "comparison.json").write_text(json.dumps(content))
    return folder


SECTIONS = ("rows", "classes", "protocols", "settings", "provenance", "seconds")
CHANGES = {
    **{f"{name} {value}": ({name: value}, "comparison.json`") for name in SECTIONS for value in (3, "x", [1], None)},
    "schema": ({"schema": 99}, "schema 99"),
    "no methods": ({"rows": []}, "0 methods"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_document_is_refused(saved, tmp_path, change):
    with pytest.raises(InputError, match=CHANGES[change][1]):
        Comparison.load(changed(saved, tmp_path, lambda content: content.update(CHANGES[change][0])))


@pytest.mark.parametrize("entry", ["name", "values", "per_class"])
def test_a_method_that_lacks_an_entry_is_refused(saved, tmp_path, entry):
    folder = changed(saved, tmp_path, lambda content: content["rows"][1].pop(entry))
    with pytest.raises(InputError, match=r"is not as `logn compare -o` writes it \(TypeError"):
        Comparison.load(folder)


def of_rows(methods, **options):
    rng = np.random.default_rng(0)
    labels, settings = rng.integers(0, 3, 30), CompareSettings(num_bootstrap=0)
    return logn.compare(rng.normal(size=(30, 3)), labels, methods, settings=settings, **options)


def test_a_map_that_no_file_can_hold_is_named(tmp_path):
    found = of_rows({"mine": np.negative})
    with pytest.warns(LogNWarning, match="The map of mine is a Python function, which cannot be saved"):
        found.save(tmp_path)
    loaded = Comparison.load(tmp_path)
    assert loaded == found
    with pytest.warns(LogNWarning, match="The map of mine"):
        loaded.save(tmp_path / "again")
    with pytest.raises(InputError, match=r"has no `comparison\.json`\. Pass a folder that `logn compare -o` wrote"):
        Comparison.load(tmp_path / "nowhere")


def test_every_text_of_a_name_survives(tmp_path):
    """Also half a pair of surrogates, which UTF-8 cannot hold."""
    names = (string.printable, "\ud83d", "猫 \u2028")
    found = of_rows([], class_names=names)
    found.save(tmp_path)
    assert Comparison.load(tmp_path) == found
    assert [entry.name for entry in Comparison.load(tmp_path).classes] == list(names)
