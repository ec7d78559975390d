"""A comparison of classifiers written for people, for programs and for papers."""

from __future__ import annotations

import math
import os

import numpy as np

from logn.errors import InputError
from logn.evaluate.classification.metrics import ClassificationMetrics
from logn.evaluate.classification.truth import OLTR_BOUNDS, SHOTS
from logn.evaluate.comparison.comparison import Comparison
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.tables import (
    Table,
    exact,
    full_cells,
    metric_cells,
    metric_tones,
    points,
    sweep_tables,
    write_comparison,
)

MAIN_COLUMNS = ("top-1", *SHOTS)
OTHER_COLUMNS = ("balanced", "ECE", "confidence", "NLL", "within-family")
SHOWN_PAIRS = 8


def classification_tables(comparison: Comparison) -> list[Table]:
    """Give the tables: metrics with differences, OLTR's groups where they differ, confusions, sweeps."""
    tables = [metric_table(comparison)]
    if comparison.truth.groups and not _same_groups(comparison):
        tables.append(oltr_table(comparison))
    if metrics_of(comparison.rows[0]).confused:
        tables.append(confusion_table(comparison))
    return tables + sweep_tables(comparison, (*MAIN_COLUMNS, "ECE"), "other rows")


def metric_table(comparison: Comparison) -> Table:
    """One row per method: the accuracies, below each its difference to the first row, then the others."""
    header, rows = metric_cells(comparison, MAIN_COLUMNS, OTHER_COLUMNS, {"NLL": _nats})
    return Table(caption(comparison), header, tuple(rows), tones=metric_tones(comparison, header, MAIN_COLUMNS))


def oltr_table(comparison: Comparison) -> Table:
    """The groups by the bounds of OLTR's code."""
    names = [f"{shot}-OLTR" for shot in SHOTS]
    rows = tuple((row.name, *(points(row[name]) for name in names)) for row in comparison.rows)
    few, medium = OLTR_BOUNDS
    text = f"By the bounds of OLTR's code: few at most {few} training samples, many at least {medium + 1}."
    return Table(text, ("method", *names), rows)


def confusion_table(comparison: Comparison) -> Table:
    """What the uncorrected model confuses most, and how often each method does."""
    truth = comparison.truth
    pairs = metrics_of(comparison.rows[0]).confused[:SHOWN_PAIRS]
    rows = tuple(
        (
            truth.name(pair.label),
            truth.name(pair.predicted),
            str(int(truth.rows_per_class[pair.label])),
            *(str(metrics_of(row).confusions.errors_of(pair.label, pair.predicted)) for row in comparison.rows),
        )
        for pair in pairs
    )
    text = "The pairs that the uncorrected model confuses most: rows of the class that are taken for the other."
    return Table(text, ("class", "taken for", "rows", *(row.name for row in comparison.rows)), rows, keys=2)


def full_table(comparison: Comparison) -> Table:
    """Every metric and every difference with its ends, for a spreadsheet; in points, NLL in nats."""
    header, rows = full_cells(comparison, {"NLL": lambda nats: exact(nats / 100)})
    return Table(caption(comparison), header, tuple(rows))


def per_class_table(comparison: Comparison) -> Table:
    """Accuracy of every class under every method, in points; empty where a class has no test row."""
    truth = comparison.truth
    header = ("class", "name", "group", "train_count", "rows", *(row.name for row in comparison.rows))
    counts = [""] * truth.num_classes if truth.train_counts is None else [f"{n:g}" for n in truth.train_counts]
    rows = tuple(
        (
            str(place),
            truth.name(place),
            truth.group_of(place) or "",
            counts[place],
            str(int(truth.rows_per_class[place])),
            *(exact(float(row.metrics.per_class[place])) for row in comparison.rows),
        )
        for place in range(truth.num_classes)
    )
    return Table(truth.describe(), header, rows)


def caption(comparison: Comparison) -> str:
    """Say what was measured, how the differences were found, and every note."""
    parts = [comparison.truth.describe()]
    if comparison.truth.groups and _same_groups(comparison):
        parts.append("the bounds of OLTR's code give the same groups")
    if comparison.num_bootstrap and len(comparison.rows) > 1:
        share = f"{100 * comparison.confidence:g} %"
        parts.append(f"differences with {share} intervals from {comparison.num_bootstrap:,} paired draws of rows")
    return ". ".join(["; ".join(parts), *(note.rstrip(".") for note in comparison.notes)]) + "."


def _same_groups(comparison: Comparison) -> bool:
    groups = comparison.truth.groups
    return all(np.array_equal(groups[shot], groups[f"{shot}-OLTR"]) for shot in SHOTS)


def _nats(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def metrics_of(row: MethodResult) -> ClassificationMetrics:
    """The metrics of a classifier's row; those of a detector are refused."""
    if not isinstance(row.metrics, ClassificationMetrics):
        raise InputError("Expected a comparison on a classifier, but this one is on a detector.")
    return row.metrics


def write_classification(comparison: Comparison, form: str = "table") -> str:
    """An older name of `write_comparison`."""
    return write_comparison(comparison, form)


def save_classification(comparison: Comparison, folder: str | os.PathLike[str]) -> None:
    """An older name of `Comparison.save`."""
    comparison.save(folder)
