"""The metrics of a classifier: against scikit-learn, hotcoco and plain loops, from any kind of logits."""

import re
import warnings

import hotcoco.metrics
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from tests.made.accuracy import classification_metrics

import logn
from logn.base.arrays import softmax
from logn.data.class_counts import ClassCounts
from logn.errors import InputError, LogNWarning
from logn.matching.bootstrap_draws import Draws
from logn.measure.classification.accuracy import (
    BINS,
    PAPER_BOUNDS,
    bootstrap_metrics,
    classification_truth,
    read_labels,
    weighted_metrics,
)
from logn.measure.classification.rows import moments_of_logits, open_logits, row_outcomes
from logn.methods.affine import ClassAffine

COUNTS = np.array([500, 101, 100, 60, 20, 19, 3])
CLASSES = len(COUNTS)


@pytest.fixture(scope="module")
def problem():
    """Logits whose frequent classes are favoured, and labels that are not balanced."""
    rng = np.random.default_rng(3)
    labels = rng.choice(CLASSES, 900, p=np.arange(1, CLASSES + 1) / 28)
    logits = 2 * np.eye(CLASSES)[labels] + rng.normal(size=(900, CLASSES)) + 0.5 * np.log(COUNTS)
    return logits, labels


def test_the_numbers_are_those_of_scikit_learn_and_hotcoco(problem):
    logits, labels = problem
    found = classification_metrics(logits, labels, COUNTS)
    probabilities, predicted = softmax(logits), logits.argmax(axis=1)
    confidence = probabilities.max(axis=1)
    assert found["top-1"] == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    assert found["balanced"] == pytest.approx(sklearn_metrics.balanced_accuracy_score(labels, predicted))
    assert found["NLL"] == pytest.approx(sklearn_metrics.log_loss(labels, probabilities))
    assert found["confidence"] == pytest.approx(confidence.mean())
    expected, _ = hotcoco.metrics.calibration_error(confidence, predicted == labels, n_bins=BINS)
    assert found["ECE"] == pytest.approx(expected)
    matrix = sklearn_metrics.confusion_matrix(labels, predicted)
    np.testing.assert_allclose(found.per_class, np.diag(matrix) / matrix.sum(axis=1))
    np.testing.assert_array_equal(found.predictions_per_class, matrix.sum(axis=0))
    np.fill_diagonal(matrix, 0)
    worst = found.confused[0]
    assert worst.errors == matrix.max() == matrix[worst.label, worst.predicted]
    assert worst.share == pytest.approx(worst.errors / (labels == worst.label).sum())


def test_groups_by_the_paper_and_by_own_bounds(problem):
    logits, labels = problem
    found = classification_metrics(logits, labels, COUNTS)
    own = classification_metrics(logits, labels, COUNTS, bounds=(3, 499))
    groups = {"many": slice(2), "medium": slice(2, 5), "few": slice(5, 7)}  # few 1-19, medium 20-100, many above
    own_groups = {"many": slice(1), "medium": slice(1, 6), "few": slice(6, 7)}
    for metrics, members in ((found, groups), (own, own_groups)):
        for group, classes in members.items():
            assert metrics[group] == pytest.approx(found.per_class[classes].mean())
    assert PAPER_BOUNDS == (19, 100)
    assert set(classification_metrics(logits, labels).values) == {"top-1", "balanced", "ECE", "confidence", "NLL"}
    # Counts with names are put in order.
    names, order = [f"class {label}" for label in range(CLASSES)], np.random.default_rng(0).permutation(CLASSES)
    table = ClassCounts(COUNTS[order], names=[names[label] for label in order])
    assert classification_metrics(logits, labels, table, class_names=names).values == found.values


def test_a_class_without_rows_counts_nowhere():
    found = classification_metrics(np.eye(3)[[0, 0, 1]], [0, 0, 0], [500, 50, 5])
    assert found["balanced"] == pytest.approx(2 / 3)
    assert np.isnan([found["few"], found.per_class[2]]).all()


def test_all_kinds_of_logits_give_the_same(problem, tmp_path):
    logits, labels = problem
    halves = logits.astype(np.float16)
    expected = classification_metrics(halves, labels, COUNTS).values
    for name, array in (("logits", halves), ("labels", labels), ("big_endian", halves.astype(">f4"))):
        np.save(tmp_path / f"{name}.npy", array)
    np.savez_compressed(tmp_path / "logits.npz", logits=halves)
    for source, classes in [
        (tmp_path / "logits.npy", tmp_path / "labels.npy"),
        (str(tmp_path / "logits.npz"), labels.tolist()),
        (torch.tensor(halves), torch.tensor(labels)),
        (halves.astype(np.float64).tolist(), labels),
        (np.load(tmp_path / "logits.npy", mmap_mode="r"), labels),
        (tmp_path / "big_endian.npy", labels),
    ]:
        assert classification_metrics(source, classes, COUNTS).values == expected


def test_files_are_mapped_and_blocks_do_not_change_a_bit(problem, tmp_path, monkeypatch):
    logits, labels = problem
    np.save(tmp_path / "logits.npy", logits)
    opened = open_logits(tmp_path / "logits.npy")
    source = opened.rows
    while isinstance(source, np.ndarray) and not isinstance(source, np.memmap):
        source = source.base
    assert isinstance(source, np.memmap)
    halved = ClassAffine(np.full(CLASSES, 0.5), np.arange(CLASSES) / 10)
    whole = row_outcomes(opened, labels, [None, halved])
    monkeypatch.setattr("logn.measure.classification.rows.NUMBERS_AT_ONCE", 50)
    seen = []
    small = row_outcomes(opened, labels, [None, halved], seen.append)
    assert sum(seen) == len(labels)
    assert len(seen) > 100
    np.testing.assert_equal([vars(outcome) for outcome in small], [vars(outcome) for outcome in whole])


def test_statistics_of_logits_are_those_of_class_moments(problem):
    logits, _ = problem
    moments = moments_of_logits(logits)
    np.testing.assert_allclose(moments.mean, logits.mean(axis=0))
    np.testing.assert_allclose(moments.variance, logits.var(axis=0, ddof=1))
    assert len(moments.sample) == len(logits)
    assert moments.head.activation == "softmax"


@given(seed=st.integers(0, 1000), rows=st.integers(3, 40))
def test_a_draw_is_as_if_its_rows_had_been_repeated(seed, rows):
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(rows, CLASSES)), rng.integers(0, CLASSES, rows)
    truth = classification_truth(labels, CLASSES, train_counts=COUNTS)
    (outcomes,) = row_outcomes(open_logits(logits), labels)
    weights = rng.integers(0, 3, rows)
    weights[0] = 1
    found = weighted_metrics(outcomes, truth, weights[None].astype(float))
    repeated = np.repeat(np.arange(rows), weights)
    expected = classification_metrics(logits[repeated], labels[repeated], COUNTS)
    assert {name: values[0] for name, values in found.items()} == pytest.approx(dict(expected.values), nan_ok=True)


def test_draws_are_paired_and_do_not_depend_on_the_blocks(problem, monkeypatch):
    logits, labels = problem
    truth = classification_truth(labels, CLASSES, train_counts=COUNTS)
    outcomes = row_outcomes(open_logits(logits), labels, [None, ClassAffine(np.full(CLASSES, 2.0), np.zeros(CLASSES))])
    first, second = bootstrap_metrics(outcomes, truth, 60)
    # A common scale changes no prediction, so over the same draws nothing but the confidence differs.
    np.testing.assert_array_equal(first["few"], second["few"])
    assert (first["confidence"] < second["confidence"]).all()
    assert first["top-1"].std() == pytest.approx(np.sqrt(np.var(outcomes[0].predicted == labels) / 900), rel=0.4)
    together = Draws(900, 7).counts()
    apart = np.concatenate(list(Draws(900, 7).blocks(1)))
    np.testing.assert_array_equal(together, apart)


NAN_LOGITS = np.where(np.arange(12).reshape(4, 3) == 7, np.nan, 0.0)
TWO, ONE, CUTLERY = np.zeros((2, 3)), np.zeros((1, 3)), ["cup", "fork", "jar"]


@pytest.mark.parametrize(
    ("logits", "labels", "options", "sentence"),
    [
        (TWO, [0, 3], {}, "Expected `labels` to be from 0 to 2, but row 1 has class 3."),
        (TWO, [-1, 0], {}, "Expected `labels` to be from 0 to 2, but row 0 has class -1."),
        (TWO, [0.0, 1.0], {}, "one whole number per row, but got float64"),
        (TWO, np.eye(3)[:2].astype(int), {}, "one whole number per row, but got int64 of shape"),
        (TWO, np.array([], int), {}, "`labels` to have at least one row, but got none"),
        (TWO, [0], {}, "There are 1 labels for 2 rows of `logits`."),
        (np.zeros((0, 3)), [], {}, "with at least one row, but got shape (0, 3)"),
        (np.zeros(3), [0], {}, "`logits` to be (rows, classes) with at least one row, but got shape (3,)"),
        (np.zeros((2, 3), int), [0, 1], {}, "`logits` to be floating point, but got int64"),
        (NAN_LOGITS, [0, 1, 2, 0], {}, "Expected `logits` to be finite, but row 2, class 1 is nan."),
        (-np.inf * np.ones((1, 2)), [0], {}, "row 0, class 0 is -inf"),
        (ONE, [0], {"train_counts": [5, 5]}, "`counts` has 2 classes, but the logits have 3"),
        (ONE, [0], {"train_counts": [5, 0, 1]}, "no training sample of class 1, and"),
        (
            ONE,
            [0],
            {"train_counts": [5, 0, 0], "class_names": CUTLERY},
            "no training sample of class 1 (fork) and 1 more,",
        ),
        (ONE, [0], {"train_counts": [5, -2, 1]}, "at least 0, but got -2 for class 1"),
        (ONE, [0], {"class_names": ["a"]}, "`class_names` to have one name for each of 3 classes, but got 1"),
        (ONE, [0], {"bounds": (100, 19)}, "`bounds` to ascend, but got 100 and 19"),
        (ONE, [0], {"bounds": (19, 19)}, "`bounds` to ascend, but got 19 and 19"),
    ],
)
def test_bad_input_gets_one_sentence(logits, labels, options, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        classification_metrics(logits, labels, **options)


def test_labels_are_read_from_many_files(tmp_path):
    np.save(tmp_path / "labels.npy", np.array([2, 0, 1]))
    texts = {"json": "[2, 0, 1]", "csv": "file,label\na,2\nb,0\nc,1\n", "txt": "val/a b.jpg 2\n\nval/b.jpg 0\n1\n"}
    for suffix, text in texts.items():
        (tmp_path / f"labels.{suffix}").write_text(text)
    for suffix in ("npy", *texts):
        assert read_labels(tmp_path / f"labels.{suffix}").tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("test.txt", "a.jpg 1\nb.jpg one\n", "`labels`"),
        ("labels.csv", "label\n1\n0.5\n", "row 1 has 0.5"),
        ("labels.csv", "class_id\n1\n", "class_id"),
        ("labels.json", '{"a": 1}', "`labels`"),
        ("labels.json", "[0, 1", "labels.json"),
        ("labels.npy", "nonsense", "labels.npy"),
        ("labels.xlsx", "", ".npy"),
        ("test.txt", "0\n7\n", "row 1 has class 7"),
        ("ragged.json", "[0, [1]]", "`labels`"),
    ],
)
def test_bad_label_files_are_named(tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=re.escape(sentence)) as error:
        classification_metrics(TWO, tmp_path / name)
    assert name in str(error.value)


def test_probabilities_for_logits_are_refused_in_every_form(problem, tmp_path):
    logits, labels = problem
    scores = softmax(logits)
    np.save(tmp_path / "scores.npy", scores)
    for given_scores in (scores, scores.astype(np.float16), torch.tensor(scores), tmp_path / "scores.npy"):
        with pytest.raises(InputError, match=r"holds probabilities .*, not logits.*numpy\.log"):
            classification_metrics(given_scores, labels)
    with pytest.raises(InputError, match="`train_logits` holds probabilities"):
        logn.compare(logits, labels, ["logn"], train_logits=scores)
    with pytest.raises(InputError, match="`logits` holds probabilities"):
        logn.compare(scores, labels, ["logn"], train_logits=logits)
    # The logarithm that the sentence proposes gives the same classifier.
    again = classification_metrics(np.log(scores.clip(1e-12)), labels)
    assert again["NLL"] == pytest.approx(classification_metrics(logits, labels)["NLL"])


def test_scores_of_sigmoids_are_warned_of_and_few_rows_are_not_judged(problem):
    logits, labels = problem
    with pytest.warns(LogNWarning, match="`logits` seems to hold sigmoid scores"):
        classification_metrics(1 / (1 + np.exp(-logits)), labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classification_metrics(softmax(logits[:19]), labels[:19])
