"""The table of CIFAR-LT: every method on the kept test logits, by group of classes, with what it costs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import logn
from logn.base.arrays import FloatArray, nan_mean, softmax

# As in the paper's ImageNet-LT table: more than 100 training images, 20 to 100, fewer.
MANY, FEW = 100, 20
BINS = 15
DRAWS = 1000


@dataclass(frozen=True)
class Row:
    """One method on one run; shares, not percent.

    Attributes:
        method: Its name in the table.
        balanced: Accuracy on the balanced test set.
        groups: Accuracy of many, medium and few; NaN for a group without classes.
        long_tailed: Accuracy on a test set with the class mix of training.
        ece: Expected calibration error on the balanced test set.
        change: Balanced accuracy minus that without correction, with its 95 % interval.
    """

    method: str
    balanced: float
    groups: tuple[float, float, float]
    long_tailed: float
    ece: float
    change: tuple[float, float, float]


def kept_counts(run: Path) -> npt.NDArray[np.int64]:
    """Training images of each class of a kept run."""
    return np.array(json.loads((run / "counts.json").read_text(encoding="utf-8")))


def maps_of(run: Path) -> dict[str, logn.ClassAffine]:
    """The map of each method of the table, from the statistics, the counts or the class layer of a run."""
    moments, counts = logn.ClassMoments.load(run / "statistics.safetensors"), kept_counts(run)
    layer = np.load(run / "class_layer.npz")
    fit, advice = logn.methods.fit, logn.recommend(moments, activation="softmax")
    ours = "0.75 of the prior, if forced" if advice.method == "none" else "**0.75 of the prior, recommended**"
    return {
        "none": logn.ClassAffine.identity(len(counts)),
        "half of the prior": fit("p2p:strength=0.5", moments),
        ours: advice.fit(moments, force=True),
        "the prior": fit("p2p:strength=1", moments),
        "LogN, eq. 1": fit("logn", moments),
        "logit adjustment (counts)": fit("loga", counts=counts),
        "tau-norm": logn.methods.tau_norm(layer["weight"], 1.0, layer["bias"]),
    }


def rows_of(run: Path, draws: int = DRAWS) -> list[Row]:
    """The rows of a kept run."""
    logits = np.load(run / "test_logits.npy").astype(np.float64)
    labels, counts = np.load(run / "test_labels.npy").astype(np.int64), kept_counts(run)
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(labels), (draws, len(labels)))
    plain = logits.argmax(axis=1) == labels
    return [_row(method, affine(logits), labels, counts, plain, drawn) for method, affine in maps_of(run).items()]


def _row(
    method: str,
    logits: FloatArray,
    labels: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    plain: npt.NDArray[np.bool_],
    drawn: npt.NDArray[np.int64],
) -> Row:
    right = logits.argmax(axis=1) == labels
    number = np.bincount(labels, minlength=len(counts))
    of_class = np.divide(
        np.bincount(labels, right, len(counts)), number, out=np.full(len(counts), np.nan), where=number > 0
    )
    members = (counts > MANY, (counts >= FEW) & (counts <= MANY), counts < FEW)
    many, medium, few = (float(nan_mean(of_class[member])) for member in members)
    # Each class counts the same, however many test images it has.
    change = (right.astype(float) - plain) * len(labels) / (number[labels] * np.count_nonzero(number))
    low, high = np.quantile(change[drawn].mean(axis=1), (0.025, 0.975)) if len(drawn) else (np.nan, np.nan)
    balanced, long_tailed = _both_accuracies(logits, labels, counts)
    interval = float(change.mean()), float(low), float(high)
    error = calibration_error(logits, right)
    return Row(method, float(balanced), (many, medium, few), float(long_tailed), error, interval)


def calibration_error(logits: FloatArray, right: npt.NDArray[np.bool_]) -> float:
    """Expected calibration error of the top class in equal bins of its probability.

    Example:
        >>> round(calibration_error(np.log([[0.9, 0.1], [0.9, 0.1]]), np.array([True, False])), 6)
        0.4
    """
    confidence = softmax(logits).max(axis=1)
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gap = np.bincount(place, confidence, BINS) - np.bincount(place, right, BINS)
    return float(np.abs(gap).sum() / len(right))


def verdict_of(run: Path) -> str:
    """What `logn.recommend` says of a run, in one sentence."""
    return logn.recommend(logn.ClassMoments.load(run / "statistics.safetensors"), activation="softmax").finding


def as_markdown(run: Path, draws: int = DRAWS) -> str:
    """The table of a kept run, in percent, with its settings above and the verdict below."""
    settings = json.loads((run / "run.json").read_text(encoding="utf-8"))
    head = f"{settings['data']}, imbalance {settings['imbalance']:g}, {settings['loss']}, seed {settings['seed']}"
    lines = [
        f"**{head}, {settings['precision']}, {settings['epochs']} epochs**",
        "",
        "| method | balanced | change | many | medium | few | long-tailed | ECE |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows_of(run, draws):
        change = (
            "" if row.method == "none" else "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * value for value in row.change))
        )
        groups = " | ".join(_percent(value) for value in row.groups)
        cells = f"{_percent(row.balanced)} | {change} | {groups} | {_percent(row.long_tailed)} | {_percent(row.ece)}"
        lines.append(f"| {row.method} | {cells} |")
    return "\n".join([*lines, "", f"`logn inspect`: {verdict_of(run)}", ""])


STRENGTHS = (0.25, 0.5, 0.75, 1.0)
# The rule: of the strengths that cost less long-tailed accuracy than this on average, the one that gains most.
MOST_LOST = 0.01


def strength_changes(run: Path) -> npt.NDArray[np.float64]:
    """Change of balanced and long-tailed accuracy at each strength, on even and on odd test images: (2, 4, 2)."""
    logits = np.load(run / "test_logits.npy").astype(np.float64)
    labels, counts = np.load(run / "test_labels.npy").astype(np.int64), kept_counts(run)
    moments = logn.ClassMoments.load(run / "statistics.safetensors")
    names = (f"recommended:strength={strength},force=true" for strength in STRENGTHS)
    maps = [logn.methods.fit(name, moments, activation="softmax") for name in names]
    changes = np.empty((2, len(STRENGTHS), 2))
    for half in range(2):
        rows, truth = logits[half::2], labels[half::2]
        plain = _both_accuracies(rows, truth, counts)
        for place, affine in enumerate(maps):
            changes[half, place] = _both_accuracies(affine(rows), truth, counts) - plain
    return changes


def _both_accuracies(
    logits: FloatArray, labels: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Accuracy on a balanced test set and on one with the class mix of training, of classes with images."""
    number = np.bincount(labels, minlength=len(counts))
    seen = number > 0
    of_class = np.bincount(labels, logits.argmax(axis=1) == labels, len(counts))[seen] / number[seen]
    return np.array([of_class.mean(), np.average(of_class, weights=counts[seen])])


def strengths_as_markdown(runs: list[Path]) -> str:
    """What each strength changes on each run, on odd test images; and the choice, on even ones, by the rule."""
    changes = np.stack([strength_changes(run) for run in runs])
    lines = [
        "| run | " + " | ".join(f"{strength:g}" for strength in STRENGTHS) + " |",
        "|:--|" + "--:|" * len(STRENGTHS),
    ]
    named = [*zip((run.name for run in runs), changes[:, 1], strict=True), ("**mean**", changes[:, 1].mean(axis=0))]
    for name, values in named:
        cells = " | ".join("{:+.1f} \\| {:+.1f}".format(*(100 * value)) for value in values)
        lines.append(f"| {name} | {cells} |")
    chosen, reached = (_best_strength(part) for part in changes.mean(axis=0))
    last = f"Balanced \\| long-tailed accuracy, on the odd test images. Chosen on the even ones: {chosen:g}"
    return "\n".join([*lines, "", f"{last} (on the odd ones: {reached:g}).", ""])


def _best_strength(changes: npt.NDArray[np.float64]) -> float:
    allowed = changes[:, 1] > -MOST_LOST
    return STRENGTHS[int(np.where(allowed, changes[:, 0], -np.inf).argmax())]


def _percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.1f}"
