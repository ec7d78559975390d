"""A comparison in a folder: saved and loaded it equals itself, and what somebody changed is refused in one sentence."""

import json
import math
import shutil
import string
import tempfile
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import logn
from logn.calibrators.affine import ClassAffine
from logn.calibrators.fracal import FracalSigmoid
from logn.errors import InputError, LogNWarning
from logn.evaluate.classification.metrics import ConfusedPair, Reliability
from logn.evaluate.comparison.comparison import (
    CompareSettings,
    Comparison,
    EvaluatedClass,
    MethodResult,
    Provenance,
)
from logn.evaluate.comparison.method_fitting import ScoresAsLogits, UnsavedMap
from logn.evaluate.comparison.threshold_curve import ThresholdCurve
from logn.evaluate.decode.decoder import DecodeSettings
from logn.evaluate.detection.bootstrap import Interval
from logn.evaluate.detection.gallery import GalleryImage, Mark, ReportDetails
from logn.evaluate.detection.metrics import COUNTED_AT, EvaluationProtocol, RecallAtCount
from logn.evaluate.detection.tide import ERROR_TYPES, SPECIAL_ERRORS, ErrorTypes

VALUES = st.floats(-2, 2) | st.just(math.nan)
TEXTS = st.text(max_size=12)
CLASSES = 3


def intervals(names, confidence):
    return st.fixed_dictionaries({name: st.builds(Interval, VALUES, VALUES, VALUES) for name in names}).map(
        lambda found: {name: Interval(c.difference, c.low, c.high, confidence) for name, c in found.items()}
    )


GAINS = dict.fromkeys((*ERROR_TYPES, *SPECIAL_ERRORS), VALUES)
ERRORS = st.builds(
    ErrorTypes,
    VALUES,
    st.fixed_dictionaries(GAINS),
    st.fixed_dictionaries({name: st.integers(0, 9) for name in ERROR_TYPES}),
    st.dictionaries(st.sampled_from("rcf"), st.fixed_dictionaries({"AP50": VALUES, **GAINS}), max_size=1),
)
PAIRS = st.tuples(st.integers(0, 99), st.integers(0, 99))
RECALL = {
    at: st.builds(
        RecallAtCount,
        st.just(at),
        st.integers(0, 99),
        st.floats(0, 1),
        st.integers(0, 99),
        st.integers(0, 99),
        VALUES,
        st.dictionaries(st.sampled_from("rcf"), VALUES),
    )
    for at in COUNTED_AT
}
MARKS = st.builds(
    Mark,
    st.sampled_from(["hit", "alarm", "unjudged", "missed"]),
    st.tuples(*[st.floats(-9, 9)] * 4),
    st.integers(0, CLASSES - 1),
    st.none() | st.floats(0, 1),
    st.booleans(),
)
IMAGES = st.builds(
    GalleryImage,
    TEXTS,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 2**40),
    st.lists(MARKS, max_size=3).map(tuple),
    st.lists(MARKS, max_size=3).map(tuple),
    st.lists(TEXTS, max_size=2).map(tuple),
    st.none() | PAIRS,
)
DETAILS = st.builds(
    ReportDetails,
    st.integers(0, 500),
    st.integers(0, 500),
    st.lists(IMAGES, max_size=2).map(tuple),
    st.none() | ERRORS,
)
NUMBERS = st.lists(st.floats(0.1, 9), min_size=CLASSES, max_size=CLASSES)
MAPS = st.one_of(
    st.none(),
    st.builds(ClassAffine, NUMBERS, NUMBERS, st.sampled_from([None, 0, -1]), TEXTS, st.dictionaries(TEXTS, TEXTS)),
    NUMBERS.map(lambda shift: ScoresAsLogits(FracalSigmoid(np.array(shift)), increasing=True)),
    st.just(np.negative),
)
SETTINGS = st.builds(
    CompareSettings,
    decode=st.builds(DecodeSettings, st.floats(0, 0.9), st.floats(0, 1), st.none() | st.integers(1, 900)),
    num_bootstrap=st.integers(0, 9),
    confidence=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**40),
    bounds=st.none() | st.just((5, 50)),
)
PROVENANCE = st.builds(
    Provenance, TEXTS, st.dictionaries(TEXTS, TEXTS), st.lists(TEXTS).map(tuple), st.dictionaries(TEXTS, st.integers())
)
COMMON = {
    "seconds": st.dictionaries(TEXTS, st.floats(0, 9)),
    "notes": st.lists(TEXTS, max_size=2).map(tuple),
    "provenance": PROVENANCE,
}


def tuples(values):
    return st.tuples(values, values)


CURVES = st.builds(
    ThresholdCurve,
    st.floats(0, 1),
    tuples(st.floats(0, 1)),
    *[tuples(st.integers(0, 9))] * 2,
    *[st.integers(0, 9)] * 3,
    *[st.floats(0, 1)] * 2,
    *[st.integers(0, 9)] * 2,
)
CLASS_VALUES = st.lists(VALUES, min_size=CLASSES, max_size=CLASSES).map(np.array)
PLACES = st.integers(0, CLASSES - 1)
RELIABILITY = st.builds(
    Reliability, st.lists(st.integers(0, 9)).map(lambda rows: np.array(rows, np.int64)), CLASS_VALUES, CLASS_VALUES
)


@st.composite
def comparisons(draw):
    made, task = draw(SETTINGS), draw(st.sampled_from(["detection", "classification"]))
    protocol = draw(st.builds(EvaluationProtocol, images=st.none() | TEXTS, nms_iou=st.none() | st.floats(0, 1)))
    metrics = {"detection": ("AP", "APr", "AP-Pool", "ECE"), "classification": ("top-1", "few", "ECE", "confidence")}
    names = ["none", *draw(st.lists(TEXTS.filter(lambda text: text != "none"), unique=True, max_size=2))]
    pairs = draw(st.lists(st.tuples(PLACES, PLACES), max_size=2)) if task == "classification" else []
    curves = draw(st.booleans()) and task == "detection"
    rows = []
    for name in names:
        of_task = {
            "detection": {
                "recall": draw(st.fixed_dictionaries(RECALL)),
                "thresholds": draw(CURVES) if curves else None,
                "errors": draw(st.none() | ERRORS),
                "details": draw(st.none() | DETAILS),
            },
            "classification": {
                "predictions_per_class": np.array([draw(st.integers(0, 9)) for _ in range(CLASSES)]),
                "confused": tuple(ConfusedPair(*pair, draw(st.integers(0, 9)), draw(VALUES)) for pair in pairs),
                "reliability": draw(st.none() | RELIABILITY),
            },
        }[task]
        rows.append(
            MethodResult(
                name,
                {key: draw(VALUES) for key in metrics[task]},
                draw(CLASS_VALUES),
                draw(intervals(metrics[task], made.confidence)),
                draw(MAPS),
                draw(st.lists(TEXTS, max_size=2).map(tuple)),
                draw(st.floats(0, 9)),
                **of_task,
            )
        )
    known = st.none() | st.floats(0, 99)
    classes = st.builds(
        EvaluatedClass, st.integers(0, 2**40), TEXTS, st.none() | TEXTS, st.integers(0, 99), known, known, known
    )
    protocols = {"AP": protocol, "AP-Pool": protocol} if task == "detection" else {}
    return Comparison(
        tuple(rows),
        task,
        draw(TEXTS),
        classes=tuple(draw(st.lists(classes, min_size=CLASSES, max_size=CLASSES))),
        protocols=protocols,
        settings=made,
        **{name: draw(values) for name, values in COMMON.items()},
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
        for one, two in zip(comparison.rows, loaded.rows, strict=True):
            assert two.name == one.name
            np.testing.assert_equal(dict(two.values), dict(one.values))
            np.testing.assert_equal(two.per_class, one.per_class)
            assert two.recall.keys() == one.recall.keys()
            if isinstance(one.transform, ClassAffine):
                assert two.transform == one.transform
            elif one.transform is np.negative:
                assert isinstance(two.transform, UnsavedMap)


@pytest.fixture(scope="module")
def saved(softmax_split, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    split = softmax_split
    logn.compare(
        split.store,
        split.annotations,
        ["logn", "loga"],
        settings=CompareSettings(num_bootstrap=5),
        moments=split.moments,
        counts=split.counts,
    ).save(folder)
    return folder


def other_row(comparison, **parts):
    return replace(comparison, rows=(*comparison.rows[:-1], replace(comparison.rows[-1], **parts)))


@pytest.mark.parametrize(
    "change",
    [
        lambda found: replace(found, notes=("other",)),
        lambda found: replace(found, settings=CompareSettings(num_bootstrap=5, seed=1)),
        lambda found: replace(found, rows=found.rows[:-1]),
        lambda found: replace(found, classes=(replace(found.classes[0], mean=None), *found.classes[1:])),
        lambda found: other_row(found, transform=ClassAffine(np.ones(11), np.zeros(11), -1)),
        lambda found: other_row(found, differences={}),
        lambda found: other_row(found, details=replace(found.rows[-1].details, gallery=())),
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


@pytest.mark.parametrize("section", ["rows", "classes", "protocols", "settings", "provenance", "seconds"])
@pytest.mark.parametrize("value", [3, "x", [1], None], ids=str)
def test_a_changed_section_is_refused(saved, tmp_path, section, value):
    folder = changed(saved, tmp_path, lambda content: content.update({section: value}))
    with pytest.raises(InputError, match="Expected"):
        Comparison.load(folder)


@pytest.mark.parametrize("entry", ["name", "values", "per_class"])
def test_a_method_that_lacks_an_entry_is_refused(saved, tmp_path, entry):
    folder = changed(saved, tmp_path, lambda content: content["rows"][1].pop(entry))
    with pytest.raises(InputError, match=r"to be what `logn compare -o` writes, but it is not \(TypeError"):
        Comparison.load(folder)


def test_a_map_that_no_file_can_hold_is_named(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 30)
    found = logn.compare(
        rng.normal(size=(30, 3)), labels, {"mine": np.negative}, settings=CompareSettings(num_bootstrap=0)
    )
    with pytest.warns(LogNWarning, match="The map of mine is a function that no file can hold"):
        found.save(tmp_path)
    loaded = Comparison.load(tmp_path)
    assert loaded == found
    with pytest.warns(LogNWarning, match="The map of mine"):
        loaded.save(tmp_path / "again")


def test_a_folder_without_a_comparison_and_one_of_the_future_are_refused(saved, tmp_path):
    with pytest.raises(InputError, match=r"to hold `comparison\.json`, which `logn compare -o` writes"):
        Comparison.load(tmp_path)
    folder = changed(saved, tmp_path, lambda content: content.update(schema=99))
    with pytest.raises(InputError, match=r"to be logn.comparison of schema 3, but it is logn.comparison of schema 99"):
        Comparison.load(folder)


def test_every_text_of_a_name_survives(tmp_path):
    """Also half a pair of surrogates, which UTF-8 cannot hold."""
    names = (string.printable, "\ud83d", "猫 \u2028")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 30)
    found = logn.compare(
        rng.normal(size=(30, 3)), labels, [], class_names=names, settings=CompareSettings(num_bootstrap=0)
    )
    found.save(tmp_path)
    assert Comparison.load(tmp_path) == found
    assert [known.name for known in Comparison.load(tmp_path).classes] == list(names)
