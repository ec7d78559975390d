"""Comparing methods on a classifier: the same numbers as each alone, honest choices, what is said and written."""

import numpy as np
import pytest
from tests.made.accuracy import classification_metrics

import logn
from logn.data.class_counts import ClassCounts
from logn.errors import InputError, LogNWarning
from logn.measure.classification.rows import moments_of_logits
from logn.measure.compare import compare
from logn.measure.comparison import CompareSettings
from logn.measure.tables import write_comparison
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

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


def compare_rows(logits, labels, methods, *, num_bootstrap=0, **options):
    settings = options.pop("settings", CompareSettings(num_bootstrap=num_bootstrap))
    return compare(logits, labels, methods, settings=settings, **options)


@pytest.fixture(scope="module")
def comparison():
    options = {"train_logits": TRAIN, "counts": COUNTS, "weight": WEIGHT}
    return compare_rows(TEST, LABELS, METHODS, num_bootstrap=200, **options)


@pytest.mark.parametrize("bias", [1.0, 0.0])
def test_strengths_of_a_classifier_and_of_the_forced_map(bias):
    rng, counts = np.random.default_rng(0), np.array([900, 300, 90, 30])
    train, test = rng.choice(4, 3000, p=counts / counts.sum() if bias else None), rng.integers(0, 4, 400)
    logits = [2 * np.eye(4)[of] + rng.normal(size=(len(of), 4)) + bias * np.log(counts) for of in (train, test)]
    settings = CompareSettings(num_bootstrap=0)
    inputs = {"settings": settings, "train_logits": logits[0], "counts": counts}
    found = compare(logits[1], test, ["recommended"], **inputs)
    assert [",force=true" in point.method for point in found.strengths] == [not bias] * 5
    first, last = found.strengths[0], found.strengths[-1]
    assert first.values["balanced"] == found["none"]["balanced"]  # without a background there is no margin
    row = compare(logits[1], test, [last.method], **inputs).rows[1]
    assert last.values["balanced"] == row["balanced"]
    assert last.values["long-tailed"] == pytest.approx((row.per_class * counts).sum() / counts.sum())
    assert last.threshold is None


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
        expected = classification_metrics(corrected, LABELS, COUNTS)
        assert dict(row.values) == pytest.approx(dict(expected.values))


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
    truth = compare_rows(rows(many, 77), many, ["logn"], **options)["logn"].differences["few"]
    covered = 0
    for seed in range(60):
        found = compare_rows(rows(LABELS, 100 + seed), LABELS, ["logn"], num_bootstrap=300, **options)
        change = found["logn"].differences["few"]
        covered += change.low <= truth.difference <= change.high
    assert covered >= 50


def test_the_verdict_says_what_changed(comparison):
    for words in ("logn raises few-shot accuracy by ", "Its calibration error (ECE) rises from "):
        assert words in comparison.verdict("logn")
    assert compare_rows(TEST, LABELS, []).verdict() == "Nothing was compared: none is the only row."
    without = compare_rows(TEST, LABELS, ["logn"], train_logits=TRAIN)
    assert "without intervals to say how sure that is" in without.verdict()


def test_statistics_from_an_array_a_file_and_an_object_are_the_same(tmp_path):
    np.save(tmp_path / "train.npy", TRAIN)
    moments = moments_of_logits(TRAIN)
    moments.save(tmp_path / "stats.safetensors")
    expected = compare_rows(TEST, LABELS, ["recommended"], train_logits=TRAIN)
    files = {"train_logits": tmp_path / "train.npy"}, {"moments": tmp_path / "stats.safetensors"}
    for options in (*files, {"moments": moments}):
        found = compare_rows(TEST, LABELS, ["recommended"], **options)
        assert found["recommended"].values == expected["recommended"].values


def test_counts_and_statistics_meet_by_name():
    names = tuple("abcdefg")
    moments = ClassMoments(Head(CLASSES, names=names), sample_rows=50)
    moments.update(TRAIN)
    order = np.random.default_rng(1).permutation(CLASSES)
    table = ClassCounts(COUNTS[order], names=[names[place] for place in order])
    found = compare_rows(TEST, LABELS, ["loga"], moments=moments, counts=table)
    plain = compare_rows(TEST, LABELS, ["loga"], counts=COUNTS)
    assert found["loga"].values == plain["loga"].values
    assert found.classes[found.rows[0].confused[0].label].name in names
    # Counts with names and nothing to match them with lend their names.
    with pytest.warns(LogNWarning, match="The counts have class names, but those of the model are unknown"):
        lent = compare_rows(TEST, LABELS, [], counts=ClassCounts(COUNTS, names=names))
    assert lent.classes[2].name == "c"


NAN = TRAIN.copy()
NAN[3, 2] = np.nan
OTHER = ClassMoments(Head(7, background=0))
REVERSED = logn.methods.logit_adjustment(COUNTS).with_head(Head(names=tuple("gfedcba")))


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        (["logn"], {}, "The method `logn` needs `moments`: pass it"),
        (["loga"], {}, "The method `loga` needs `counts`"),
        (["tau-norm"], {}, "The method `tau-norm` needs `weight`"),
        (["tau-norm"], {"weight": WEIGHT[:3]}, "has 3 columns, but the predictions have 7"),
        (["softmax"], {}, "`method` to be one of none, recommended, logn"),
        (["logn"], {"train_logits": TRAIN[:, :4]}, "columns differs: 4 in the statistics, 7 in"),
        (["logn"], {"train_logits": NAN}, "Expected `train_logits` to be finite, but row 3, class 2 is nan"),
        (["logn"], {"train_logits": TRAIN, "moments": ClassMoments(7)}, r"`train_logits`, not both"),
        (["logn"], {"moments": OTHER}, "The background differs: first in the statistics, none in"),
        (["loga"], {"counts": [*COUNTS[:-1], 0]}, "no training sample of class 6"),
        ({"short": lambda logits: logits[:, :2]}, {}, r"gave shape \(420, 2\) for logits of shape \(420, 7\)"),
        ({"wide": logn.ClassAffine.identity(8)}, {}, "columns differs: 8 in `wide`, 7 in"),
        ({"other": REVERSED}, {"class_names": [*"abcdefg"]}, r"The classes differ: .* in `other`, .* in the pred"),
    ],
)
def test_bad_input_gets_one_sentence(methods, options, message):
    with pytest.raises(InputError, match=message):
        compare_rows(TEST, LABELS, methods, **options)


def test_fracal_takes_dimensions():
    dimensions = np.linspace(0.5, 1.5, CLASSES)
    found = compare_rows(TEST, LABELS, ["fracal"], counts=COUNTS, dimensions=dimensions)
    assert found["fracal"].transform == logn.methods.fracal(COUNTS, COUNTS.sum(), dimensions)


def test_settings_reach_the_groups_the_intervals_and_the_tables(comparison):
    settings = CompareSettings(num_bootstrap=20, seed=3, bounds=(12, 50), confidence=0.9)
    found = compare_rows(TEST, LABELS, ["loga"], counts=COUNTS, settings=settings)
    assert found.settings == settings
    assert [entry.group for entry in comparison.classes] == [*["many"] * 2, *["medium"] * 3, *["few"] * 2]
    assert [entry.group for entry in found.classes] == [*["many"] * 3, *["medium"] * 2, *["few"] * 2]
    assert found["loga"].differences["few"].confidence == 0.9
    for form in ("table", "markdown"):
        assert all(words in write_comparison(comparison, form) for words in ("200 paired draws of rows", "taken for"))
