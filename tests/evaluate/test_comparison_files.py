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
from logn.evaluate.classification.logits import RowOutcomes
from logn.evaluate.classification.metrics import metrics_of_outcomes
from logn.evaluate.classification.reliability import Reliability
from logn.evaluate.classification.truth import classification_truth
from logn.evaluate.comparison.comparison import Comparison, DetectionScope, EvaluatedClass, classifier_classes
from logn.evaluate.comparison.method_fitting import ScoresAsLogits, UnsavedMap
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.provenance import Provenance
from logn.evaluate.comparison.report_details import ReportDetails
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.comparison.sweep import Curve, Sweep
from logn.evaluate.decode.decoder import DecodeSettings
from logn.evaluate.detection.before_after import score_histogram
from logn.evaluate.detection.bootstrap import Interval
from logn.evaluate.detection.gallery import KINDS, GalleryImage, Mark
from logn.evaluate.detection.metrics import DetectionMetrics
from logn.evaluate.detection.protocol import EvaluationProtocol
from logn.evaluate.detection.recall_at_count import COUNTED_AT, RecallAtCount
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
    st.sampled_from(KINDS),
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
HISTOGRAMS = st.builds(score_histogram, st.lists(st.floats(0, 1)), st.lists(st.floats(0, 1)))
DETAILS = st.builds(
    ReportDetails,
    st.integers(0, 500),
    st.integers(0, 500),
    st.dictionaries(st.sampled_from(["all", "rare"]), HISTOGRAMS),
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
    split=st.booleans(),
    bounds=st.none() | st.just((5, 50)),
    objective=st.none() | TEXTS,
)
CURVES = st.builds(
    Curve,
    st.builds(Sweep, TEXTS, TEXTS, st.lists(st.floats(-9, 9), min_size=2, max_size=2).map(tuple)),
    st.dictionaries(TEXTS, st.tuples(VALUES, VALUES), max_size=2),
    st.none() | TEXTS,
    st.none() | st.tuples(VALUES, VALUES),
)
PROVENANCE = st.builds(
    Provenance, TEXTS, st.dictionaries(TEXTS, TEXTS), st.lists(TEXTS).map(tuple), st.dictionaries(TEXTS, st.integers())
)
COMMON = {
    "curves": st.lists(CURVES, max_size=2).map(tuple),
    "seconds": st.dictionaries(TEXTS, st.floats(0, 9)),
    "notes": st.lists(TEXTS, max_size=2).map(tuple),
    "provenance": PROVENANCE,
}


@st.composite
def detections(draw):
    made = draw(SETTINGS)
    protocol = draw(st.builds(EvaluationProtocol, images=st.none() | TEXTS, nms_iou=st.none() | st.floats(0, 1)))
    others = draw(st.sampled_from([(), ("AP-Pool", "ECE"), ("AP-mask", "APr-Fixed", "ECE")]))
    boxes = ("AP", "AP50", *draw(st.sampled_from([(), ("APr", "APc", "APf")])))
    names = ["none", *draw(st.lists(TEXTS.filter(lambda text: text != "none"), unique=True, max_size=2))]
    rows = [
        MethodResult(
            name,
            DetectionMetrics(
                {key: draw(VALUES) for key in boxes},
                np.array(draw(st.lists(VALUES, min_size=CLASSES, max_size=CLASSES))),
                protocol,
            ),
            {key: draw(VALUES) for key in others},
            draw(intervals((*boxes, *others), made.confidence)),
            draw(st.none() | ERRORS),
            draw(st.floats(0, 9)),
            draw(st.lists(TEXTS, max_size=2).map(tuple)),
            draw(st.dictionaries(TEXTS, st.floats(-9, 9) | TEXTS)),
            draw(MAPS),
            draw(st.none() | DETAILS),
            recall=draw(st.fixed_dictionaries(RECALL)),
        )
        for name in names
    ]
    known = st.none() | st.floats(0, 99)
    classes = [
        EvaluatedClass(
            draw(st.integers(0, 2**40)),
            draw(TEXTS),
            draw(st.none() | st.sampled_from("rcf")),
            draw(st.integers(0, 99)),
            *(draw(known) for _ in range(3)),
        )
        for _ in range(CLASSES)
    ]
    scope = DetectionScope(protocol, draw(st.dictionaries(st.sampled_from(["AP-Pool", "mask"]), st.just(protocol))))
    common = {name: draw(values) for name, values in COMMON.items()}
    return Comparison(tuple(rows), scope, classes=tuple(classes), settings=made, **common)


@st.composite
def classifications(draw):
    made = draw(SETTINGS)
    labels = np.array(draw(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=9)))
    truth = classification_truth(
        labels,
        CLASSES,
        train_counts=draw(st.none() | st.just([200, 30, 5])),
        families=draw(st.none() | st.just(["a", "b", "a"])),
        class_names=draw(st.none() | st.lists(TEXTS, min_size=CLASSES, max_size=CLASSES)),
        bounds=draw(st.sampled_from([(19, 100), (5, 50)])),
    )
    rows = []
    for name in ("none", *draw(st.lists(TEXTS.filter(lambda text: text != "none"), unique=True, max_size=2))):
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        predicted, confidence = rng.integers(0, CLASSES, len(labels)), rng.random(len(labels))
        outcomes = RowOutcomes(predicted, confidence, -np.log(confidence))
        metrics = metrics_of_outcomes(outcomes, truth)
        changes = draw(intervals(tuple(metrics.values), made.confidence))
        reliability = Reliability.of(outcomes, labels)
        rows.append(MethodResult(name, metrics, {}, changes, transform=draw(MAPS), reliability=reliability))
    common = {name: draw(values) for name, values in COMMON.items()}
    return Comparison(tuple(rows), truth, classes=classifier_classes(truth), settings=made, **common)


# A comparison has so many parts that making a failing one smaller takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(max_examples=30, phases=PHASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(detections() | classifications())
def test_a_comparison_saved_and_loaded_equals_itself(comparison):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)  # of maps that no file can hold
        comparison.save(folder)
        loaded = logn.Comparison.load(folder)
        assert loaded == comparison
        assert str(loaded) == str(comparison)
        assert loaded.settings == comparison.settings
        assert loaded.describe() == comparison.describe()
        for one, two in zip(comparison.rows, loaded.rows, strict=True):
            assert two.name == one.name
            np.testing.assert_equal(dict(two.values), dict(one.values))
            np.testing.assert_equal(two.metrics.per_class, one.metrics.per_class)
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
        lambda found: other_row(found, details=replace(found.rows[-1].details, histograms={})),
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


@pytest.mark.parametrize("section", ["methods", "classes", "protocol", "draws", "confidence", "notes", "settings"])
@pytest.mark.parametrize("value", [3, "x", {}, [1], None], ids=str)
def test_a_changed_section_is_refused_or_read(saved, tmp_path, section, value):
    """Some changes are harmless; none may end in anything but a comparison or the sentence."""
    folder = changed(saved, tmp_path, lambda content: content.update({section: value}))
    if (section, value) in [("draws", 3), ("classes", {})] or (section == "notes" and value not in (3, None)):
        Comparison.load(folder)
    else:
        with pytest.raises(InputError, match="Expected"):
            Comparison.load(folder)


@pytest.mark.parametrize("entry", ["method", "metrics", "differences"])
def test_a_method_that_lacks_an_entry_is_refused(saved, tmp_path, entry):
    folder = changed(saved, tmp_path, lambda content: content["methods"][1].pop(entry))
    with pytest.raises(InputError, match=rf"to be what `logn compare -o` writes, but it is not \(KeyError: '{entry}'"):
        Comparison.load(folder)


def test_files_of_two_comparisons_are_not_taken_for_one(saved, tmp_path):
    folder = changed(saved, tmp_path, lambda content: None)
    Comparison.load(folder)
    (tmp_path / "comparison.safetensors").write_bytes(b"x" + (saved / "comparison.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"to be of the same comparison as `comparison\.json`, but it is of another"):
        Comparison.load(folder)


def test_without_the_arrays_the_metrics_are_read_and_a_warning_says_what_is_missing(saved, tmp_path):
    folder = changed(saved, tmp_path, lambda content: None)
    (folder / "comparison.safetensors").unlink()
    with pytest.warns(LogNWarning, match="the fitted maps and pictures are not there"):
        found = Comparison.load(folder)
    assert found["logn"].values == Comparison.load(saved)["logn"].values
    assert found["logn"].details is None
    with pytest.raises(InputError, match="a map that was saved with its comparison"):
        found["logn"].transform(np.zeros(11))


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
    with pytest.raises(InputError, match=r"to be logn.comparison of schema 2, but it is logn.comparison of schema 99"):
        Comparison.load(folder)


def test_a_classifier_of_before_there_were_arrays_is_read(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    found = logn.compare(np.eye(3)[labels] + rng.normal(size=(60, 3)), labels, ["loga"], counts=[900, 40, 5])
    found.save(tmp_path)
    content = json.loads((tmp_path / "comparison.json").read_text())
    for name in ("format", "schema", "settings", "provenance", "arrays", "bounds", "class_names", "families"):
        del content[name]
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    read = Comparison.load(tmp_path)
    assert read.truth.describe() == found.truth.describe()
    assert read["loga"].values == found["loga"].values
    content["classes"][1]["group"] = "few"
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="the groups of the classes to follow their counts"):
        Comparison.load(tmp_path)


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
