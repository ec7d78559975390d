"""Comparing methods on a classifier: the same numbers as each alone, honest choices, what is said and written."""

import csv
import io
import json

import numpy as np
import pytest

import logn
from logn.classes.counts import ClassCounts
from logn.errors import InputError
from logn.evaluate.classification.compare import compare_classification
from logn.evaluate.classification.logits import moments_of_logits
from logn.evaluate.classification.metrics import classification_metrics
from logn.evaluate.classification.tables import save_classification, write_classification
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.comparison.sweep import first_half
from logn.statistics.moments import ClassMoments, StatisticsMetadata

COUNTS = np.array([600, 150, 100, 40, 20, 12, 5])
CLASSES = len(COUNTS)
WEIGHT = np.random.default_rng(9).normal(size=(CLASSES, 4)) * np.linspace(2, 0.5, CLASSES)[:, None]
METHODS = ["logn", "recommended", "loga", "norcal:gamma=0.5", "fracal", "iif", "tau-norm", "temperature:value=2"]


def rows(labels, seed):
    """Logits of a classifier that favours what it has seen often."""
    noise = np.random.default_rng(seed).normal(size=(len(labels), CLASSES))
    spread = 0.6 + 0.1 * np.log(COUNTS)
    return ((2.2 * np.eye(CLASSES)[labels] + noise) * spread + 0.6 * np.log(COUNTS)).astype(np.float32)


TRAIN = rows(np.repeat(np.arange(CLASSES), COUNTS), 0)
LABELS = np.repeat(np.arange(CLASSES), 60)
TEST = rows(LABELS, 1)
DEV_LABELS = np.repeat(np.arange(CLASSES), 30)
DEV = rows(DEV_LABELS, 2)


@pytest.fixture(scope="module")
def comparison():
    options = {"train_logits": TRAIN, "counts": COUNTS, "weight": WEIGHT, "families": [0, 0, 0, 1, 1, 1, 1]}
    return compare_classification(TEST, LABELS, METHODS, num_bootstrap=200, **options)


def test_every_row_equals_measuring_that_method_alone(comparison):
    moments = moments_of_logits(TRAIN)
    alone = {
        "none": lambda logits: logits,
        "logn": logn.logit_normalization(moments),
        "recommended": logn.recommend(moments, activation="softmax").fit(moments),
        "loga": logn.methods.logit_adjustment(COUNTS),
        "norcal:gamma=0.5": logn.methods.norcal(COUNTS, 0.5),
        "fracal": logn.methods.fracal(COUNTS, COUNTS.sum(), None),
        "iif": logn.methods.inverse_image_frequency(COUNTS),
        "tau-norm": logn.methods.tau_norm(WEIGHT, 1.0),
        "temperature:value=2": logn.methods.temperature(CLASSES, 2.0),
    }
    assert [row.name for row in comparison.rows] == ["none", *METHODS] == list(alone)
    for row in comparison.rows:
        corrected = alone[row.name](TEST.astype(np.float64))
        expected = classification_metrics(corrected, LABELS, COUNTS, families=[0, 0, 0, 1, 1, 1, 1])
        assert dict(row.values) == pytest.approx(dict(expected.values))


def test_logn_helps_the_few_and_the_recommended_method_keeps_the_scores_usable(comparison):
    none, plain, recommended = (comparison[name] for name in ("none", "logn", "recommended"))
    for found in (plain, recommended):
        assert found["few"] > none["few"] + 0.1
        assert found.differences["few"].low > 0
    assert recommended["ECE"] < plain["ECE"]


def test_a_map_of_other_classes_is_refused():
    names = [f"class {number}" for number in range(CLASSES)]
    source = StatisticsMetadata(class_names=names[::-1])
    affine = logn.methods.logit_adjustment(COUNTS).with_source(source)
    with pytest.raises(logn.InputError, match="`other` to be of the classes of the logits, whose class 0 is 'class 0'"):
        compare_classification(TEST, LABELS, {"other": affine}, class_names=names, num_bootstrap=0)
    options = {"class_names": names, "num_bootstrap": 0, "allow_mismatch": True}
    with pytest.warns(logn.LogNWarning, match="`other` to be of the classes of the logits"):
        compare_classification(TEST, LABELS, {"other": affine}, **options)
    with pytest.raises(logn.InputError, match="`wide` to have 7 columns, those of the logits, but got 8"):
        compare_classification(TEST, LABELS, {"wide": logn.ClassAffine.identity(8)}, num_bootstrap=0)


def test_differences_are_to_the_uncorrected_model_and_paired(comparison):
    assert all(change.difference == 0 for change in comparison.rows[0].differences.values())
    for row in comparison.rows:
        assert row.differences.keys() == row.values.keys()
        for name, change in row.differences.items():
            assert change.difference == pytest.approx(row[name] - comparison.rows[0][name])
            assert change.low <= change.high
    # A temperature changes no prediction: paired, there is no doubt about that.
    change = comparison["temperature:value=2"].differences["few"]
    assert (change.low, change.high) == (0.0, 0.0)


def test_the_intervals_cover_the_difference_of_other_test_rows():
    """Ninety-five in a hundred do, up to chance."""
    many = np.repeat(np.arange(CLASSES), 4000)
    options = {"train_logits": TRAIN, "counts": COUNTS}
    truth = compare_classification(rows(many, 77), many, ["logn"], num_bootstrap=0, **options)["logn"].differences[
        "few"
    ]
    covered = 0
    for seed in range(60):
        found = compare_classification(rows(LABELS, 100 + seed), LABELS, ["logn"], num_bootstrap=300, **options)
        change = found["logn"].differences["few"]
        covered += change.low <= truth.difference <= change.high
    assert covered >= 50


def test_the_verdict_says_what_changed(comparison):
    said = comparison.verdict("logn")
    assert "logn raises few-shot accuracy by " in said
    assert "Its calibration error (ECE) rises from " in said
    assert comparison.verdict() == said
    alone = compare_classification(TEST, LABELS, [], num_bootstrap=0)
    assert alone.verdict() == "Nothing was compared: none is the only row."
    without = compare_classification(TEST, LABELS, ["logn"], train_logits=TRAIN, num_bootstrap=0)
    assert "without intervals to say how sure that is" in without.verdict()


def test_all_forms_are_written(comparison, tmp_path):
    save_classification(comparison, tmp_path)
    content = json.loads((tmp_path / "comparison.json").read_text())
    assert content["task"] == "classification"
    assert [method["method"] for method in content["methods"]] == ["none", *METHODS]
    assert content["classes"][3]["group"] == "medium"
    assert content["classes"][3]["accuracy"].keys() == {"none", *METHODS}
    table = list(csv.DictReader(io.StringIO((tmp_path / "comparison.csv").read_text())))
    assert float(table[1]["few"]) == pytest.approx(100 * comparison["logn"]["few"], abs=1e-3)
    assert float(table[1]["NLL"]) == pytest.approx(comparison["logn"]["NLL"], abs=1e-3)
    assert float(table[1]["few low"]) == pytest.approx(100 * comparison["logn"].differences["few"].low, abs=1e-3)
    per_class = list(csv.DictReader(io.StringIO((tmp_path / "per_class.csv").read_text())))
    assert [row["group"] for row in per_class] == ["many", "many", "medium", "medium", "medium", "few", "few"]
    for form in ("table", "markdown", "latex"):
        text = write_classification(comparison, form)
        assert "200 paired draws of rows" in text
        assert "By the bounds of OLTR's code: few at most 20 training samples, many at least 100." in text
        assert "taken for" in text
    assert str(comparison) == write_classification(comparison)
    with pytest.raises(InputError, match="one of table, markdown, csv, latex, but got 'html'"):
        write_classification(comparison, "html")


def test_groups_that_do_not_differ_are_said_once():
    found = compare_classification(TEST, LABELS, [], counts=np.arange(1, CLASSES + 1), num_bootstrap=0)
    text = write_classification(found)
    assert "the bounds of OLTR's code give the same groups" in text
    assert "few-OLTR" not in text
    assert found["none"]["few-OLTR"] == found["none"]["few"]


def test_statistics_from_an_array_a_file_and_an_object_are_the_same(tmp_path):
    np.save(tmp_path / "train.npy", TRAIN)
    moments = moments_of_logits(TRAIN)
    moments.save(tmp_path / "stats.safetensors")
    expected = compare_classification(TEST, LABELS, ["recommended"], train_logits=TRAIN, num_bootstrap=0)
    for options in (
        {"train_logits": tmp_path / "train.npy"},
        {"moments": moments},
        {"moments": tmp_path / "stats.safetensors"},
    ):
        found = compare_classification(TEST, LABELS, ["recommended"], num_bootstrap=0, **options)
        assert found["recommended"].values == expected["recommended"].values


def test_own_maps_and_the_baseline():
    found = compare_classification(TEST, LABELS, {"mine": lambda logits: -logits, "none": None}, num_bootstrap=0)
    assert [row.name for row in found.rows] == ["none", "mine"]
    with pytest.raises(InputError, match="a list of specifications, but got the text 'logn'"):
        compare_classification(TEST, LABELS, "logn")
    with pytest.raises(InputError, match="one of none, mine, but got 'yours'"):
        _ = found["yours"]
    with pytest.raises(InputError, match="a method to keep the shape"):
        compare_classification(TEST, LABELS, {"short": lambda logits: logits[:, :2]})


def test_sweeps_without_other_rows_choose_nothing():
    found = compare_classification(TEST, LABELS, [], counts=COUNTS, sweeps=["tau=0:2:0.5"], num_bootstrap=0)
    (curve,) = found.curves
    assert curve.chosen is None
    assert [row.name for row in found.rows] == ["none", *curve.sweep.specs]
    assert curve.metrics["few"] == tuple(found[spec]["few"] for spec in curve.sweep.specs)
    assert "no value was chosen" in write_classification(found)


def test_a_value_is_chosen_on_dev_and_reported_on_all_test_rows():
    options = {"counts": COUNTS, "sweeps": ["tau=0:2:0.5"], "num_bootstrap": 0}
    found = compare_classification(TEST, LABELS, [], dev=(DEV, DEV_LABELS), **options)
    (curve,) = found.curves
    maps = [logn.methods.logit_adjustment(COUNTS, tau) for tau in curve.sweep.values]
    dev = [classification_metrics(affine(DEV.astype(float)), DEV_LABELS)["top-1"] for affine in maps]
    assert curve.choosing == pytest.approx(dev)
    assert curve.chosen == curve.sweep.specs[int(np.argmax(dev))]
    assert [row.name for row in found.rows] == ["none", curve.chosen]
    assert found["none"]["top-1"] == classification_metrics(TEST, LABELS)["top-1"]
    assert f"other rows chose {curve.chosen}." in write_classification(found)
    least = compare_classification(TEST, LABELS, [], dev=(DEV, DEV_LABELS), objective="NLL", **options)
    assert least.curves[0].chosen == curve.sweep.specs[int(np.argmin(least.curves[0].choosing))]


@pytest.mark.parametrize(("objective", "best"), [("ECE", np.argmin), ("NLL", np.argmin), ("top-1", np.argmax)])
def test_of_errors_the_least_is_chosen(objective, best):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    logits = 5 * (np.eye(3)[labels] + rng.normal(size=(400, 3)))  # far too sure
    dev = (logits[:200], labels[:200])
    sweep = "value=1:9:1" if objective != "top-1" else "tau=0:2:0.5"
    found = compare_classification(
        logits[200:],
        labels[200:],
        [],
        counts=[9, 5, 200],
        sweeps=[sweep],
        dev=dev,
        objective=objective,
        num_bootstrap=0,
    )
    (curve,) = found.curves
    assert np.ptp(curve.choosing) > 0
    assert curve.chosen == curve.sweep.specs[best(curve.choosing)]


def test_a_split_chooses_on_one_half_and_reports_on_the_other():
    found = compare_classification(
        TEST, LABELS, ["loga"], counts=COUNTS, sweeps=["tau=0:2:0.5"], split=True, num_bootstrap=0
    )
    half = ~first_half(np.arange(len(LABELS)))
    expected = classification_metrics(TEST[half], LABELS[half], COUNTS)
    assert dict(found["none"].values) == pytest.approx(dict(expected.values))
    assert {row.name for row in found.rows} == {"none", "loga", found.curves[0].chosen}
    assert "One half of the rows; choices were made on the other" in write_classification(found)


def test_counts_and_statistics_meet_by_name():
    names = tuple("abcdefg")
    moments = ClassMoments(CLASSES, sample_rows=50, metadata=StatisticsMetadata(class_names=names))
    moments.update(TRAIN)
    order = np.random.default_rng(1).permutation(CLASSES)
    table = ClassCounts(COUNTS[order], names=[names[place] for place in order])
    found = compare_classification(TEST, LABELS, ["loga"], moments=moments, counts=table, num_bootstrap=0)
    plain = compare_classification(TEST, LABELS, ["loga"], counts=COUNTS, num_bootstrap=0)
    assert found["loga"].values == plain["loga"].values
    assert found.to_dict()["methods"][0]["confused"][0]["label"] in names
    # Counts with names and nothing to match them with lend their names.
    lent = compare_classification(TEST, LABELS, [], counts=ClassCounts(COUNTS, names=names), num_bootstrap=0)
    assert lent.truth.name(2) == "c"


def with_nan(logits):
    broken = logits.copy()
    broken[3, 2] = np.nan
    return broken


@pytest.mark.parametrize(
    ("methods", "options", "sentence"),
    [
        (
            ["logn"],
            {},
            "statistics (`moments`, `--statistics`) or `train_logits` (`--train-logits`) for the method `logn`",
        ),
        (["loga"], {}, "`counts` for the method `loga`"),
        (["tau-norm"], {}, "`weight` for the method `tau-norm`"),
        (["tau-norm"], {"weight": WEIGHT[:3]}, "of the 7 classes of the logits, but got 3"),
        (["softmax"], {}, "`method` to be one of none, recommended, logn"),
        (["logn"], {"train_logits": TRAIN[:, :4]}, "of the 7 classes of the test logits, but got 4"),
        (
            ["logn"],
            {"train_logits": with_nan(TRAIN)},
            "Expected `train_logits` to be finite, but row 3, class 2 is nan.",
        ),
        (
            ["logn"],
            {"train_logits": TRAIN, "moments": ClassMoments(7)},
            "`train_logits` (`--train-logits`), but got both",
        ),
        (
            ["logn"],
            {"moments": ClassMoments(7, metadata=StatisticsMetadata(background=0))},
            "which has no background, but got some with a background",
        ),
        (["loga"], {"counts": [*COUNTS[:-1], 0]}, "but class 6 has no training sample"),
        ([], {"num_bootstrap": -1}, "`num_bootstrap` to be at least 0"),
        ([], {"confidence": 95}, "`confidence` to lie between 0 and 1"),
        ([], {"split": True, "dev": (DEV, DEV_LABELS)}, "one of `dev` and `split`, but got both"),
        ([], {"counts": COUNTS, "sweeps": ["tau=0:1:1"], "dev": (DEV[:, :3], DEV_LABELS)}, "of 7 classes, but got 3"),
        (
            [],
            {"counts": COUNTS, "sweeps": ["tau=0:1:1"], "split": True, "objective": "AP"},
            "`objective` to be one of top-1, balanced",
        ),
    ],
)
def test_bad_input_gets_one_sentence(methods, options, sentence):
    with pytest.raises(InputError) as error:
        compare_classification(TEST, LABELS, methods, **{"num_bootstrap": 0, **options})
    assert sentence in str(error.value)


def test_a_half_needs_rows():
    with pytest.raises(InputError, match="enough rows for `split`"):
        compare_classification(TEST[:1], LABELS[:1], [], split=True, num_bootstrap=0)


def test_settings_are_the_same_objects_as_for_detectors():
    settings = CompareSettings(num_bootstrap=20, seed=3, bounds=(5, 50), confidence=0.9)
    inputs = {"moments": moments_of_logits(TRAIN), "counts": COUNTS, "weight": WEIGHT}
    found = compare_classification(TEST, LABELS, ["logn", "tau-norm"], settings=settings, **inputs)
    same = compare_classification(
        TEST,
        LABELS,
        ["logn", "tau-norm"],
        train_logits=TRAIN,
        counts=COUNTS,
        weight=WEIGHT,
        num_bootstrap=20,
        seed=3,
        bounds=(5, 50),
        confidence=0.9,
    )
    assert found.to_dict()["methods"][1]["differences"] == same.to_dict()["methods"][1]["differences"]
    assert found.settings == same.settings == settings
    for single, sentence in (
        ({"settings": settings, "draws": 5}, "Expected `settings` or `draws` alone, but got both."),
        ({"draws": 5, "num_bootstrap": 5}, "`num_bootstrap` or its older name `draws`, but got both"),
    ):
        with pytest.raises(InputError) as error:
            compare_classification(TEST, LABELS, [], **single)
        assert sentence in str(error.value)


def test_fracal_takes_dimensions():
    dimensions = np.linspace(0.5, 1.5, CLASSES)
    found = compare_classification(TEST, LABELS, ["fracal"], counts=COUNTS, dimensions=dimensions, num_bootstrap=0)
    assert found["fracal"].transform == logn.methods.fracal(COUNTS, COUNTS.sum(), dimensions)
