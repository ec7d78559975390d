"""A comparison of classifiers written for people, for programs and for papers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from logn.errors import InputError
from logn.evaluate.classification_comparison import ClassificationComparison
from logn.evaluate.classification_truth import OLTR_BOUNDS, SHOTS
from logn.evaluate.comparison_files import without_nan
from logn.evaluate.tables import Table, change_text, exact, points
from logn.files import atomic_path

MAIN_COLUMNS = ("top-1", *SHOTS)
OTHER_COLUMNS = ("balanced", "ECE", "confidence", "NLL", "within-family")
SHOWN_PAIRS = 8


def classification_tables(comparison: ClassificationComparison) -> list[Table]:
    """Give the tables: metrics with differences, OLTR's groups where they differ, confusions, sweeps."""
    tables = [metric_table(comparison)]
    if comparison.truth.groups and not _same_groups(comparison):
        tables.append(oltr_table(comparison))
    if comparison.rows[0].metrics.confused:
        tables.append(confusion_table(comparison))
    return tables + sweep_tables(comparison)


def metric_table(comparison: ClassificationComparison) -> Table:
    """One row per method: the accuracies, below each its difference to the first row, then the others."""
    main = [name for name in MAIN_COLUMNS if name in comparison.metric_names]
    others = [name for name in OTHER_COLUMNS if name in comparison.metric_names]
    rows = []
    for place, row in enumerate(comparison.rows):
        changes = [f"\n{change_text(row.differences[name])}" if place else "" for name in main]
        cells = [points(row[name]) + change for name, change in zip(main, changes, strict=True)]
        rows.append((row.name, *cells, *(_cell(name, row[name]) for name in others)))
    return Table(caption(comparison), ("method", *main, *others), tuple(rows))


def oltr_table(comparison: ClassificationComparison) -> Table:
    """The groups by the bounds of OLTR's code."""
    names = [f"{shot}-OLTR" for shot in SHOTS]
    rows = tuple((row.name, *(points(row[name]) for name in names)) for row in comparison.rows)
    few, medium = OLTR_BOUNDS
    text = f"By the bounds of OLTR's code: few at most {few} training samples, many at least {medium + 1}."
    return Table(text, ("method", *names), rows)


def confusion_table(comparison: ClassificationComparison) -> Table:
    """What the uncorrected model confuses most, and how often each method does."""
    truth = comparison.truth
    pairs = comparison.rows[0].metrics.confused[:SHOWN_PAIRS]
    rows = tuple(
        (
            truth.name(pair.label),
            truth.name(pair.predicted),
            str(int(truth.rows_per_class[pair.label])),
            *(str(row.metrics.confusions.errors_of(pair.label, pair.predicted)) for row in comparison.rows),
        )
        for pair in pairs
    )
    text = "The pairs that the uncorrected model confuses most: rows of the class that are taken for the other."
    return Table(text, ("class", "taken for", "rows", *(row.name for row in comparison.rows)), rows)


def sweep_tables(comparison: ClassificationComparison) -> list[Table]:
    """One table per sweep: the metrics over its values."""
    tables = []
    for curve in comparison.curves:
        names = [name for name in (*MAIN_COLUMNS, "ECE") if name in curve.metrics]
        rows = tuple(
            (f"{value:g}", *(points(curve.metrics[name][place]) for name in names))
            for place, value in enumerate(curve.sweep.values)
        )
        chosen = f"other rows chose {curve.chosen}." if curve.chosen else "no value was chosen."
        text = f"{curve.sweep.method} over {curve.sweep.parameter}; {chosen}"
        tables.append(Table(text, (curve.sweep.parameter, *names), rows))
    return tables


def full_table(comparison: ClassificationComparison) -> Table:
    """Every metric and every difference with its ends, for a spreadsheet; in points, NLL in nats."""
    names = comparison.metric_names
    header = ["method", *(f"{name}{part}" for name in names for part in ("", " difference", " low", " high"))]
    rows = []
    for row in comparison.rows:
        cells = [row.name]
        for name in names:
            change = row.differences[name]
            numbers = (row[name], change.difference, change.low, change.high)
            cells += [exact(number / 100 if name == "NLL" else number) for number in numbers]
        rows.append(tuple(cells))
    return Table(caption(comparison), tuple(header), tuple(rows))


def per_class_table(comparison: ClassificationComparison) -> Table:
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


def caption(comparison: ClassificationComparison) -> str:
    """Say what was measured, how the differences were found, and every note."""
    parts = [comparison.truth.describe()]
    if comparison.truth.groups and _same_groups(comparison):
        parts.append("the bounds of OLTR's code give the same groups")
    if comparison.draws and len(comparison.rows) > 1:
        share = f"{100 * comparison.confidence:g} %"
        parts.append(f"differences with {share} intervals from {comparison.draws:,} paired draws of rows")
    return ". ".join(["; ".join(parts), *(note.rstrip(".") for note in comparison.notes)]) + "."


def _same_groups(comparison: ClassificationComparison) -> bool:
    groups = comparison.truth.groups
    return all(np.array_equal(groups[shot], groups[f"{shot}-OLTR"]) for shot in SHOTS)


def _cell(name: str, value: float) -> str:
    if name == "NLL":
        return "-" if math.isnan(value) else f"{value:.3f}"
    return points(value)


_WRITERS: Mapping[str, Callable[[ClassificationComparison], str]] = {
    "table": lambda comparison: "\n\n".join(table.to_text() for table in classification_tables(comparison)),
    "markdown": lambda comparison: "\n\n".join(table.to_markdown() for table in classification_tables(comparison)),
    "csv": lambda comparison: full_table(comparison).to_csv(),
    "latex": lambda comparison: "\n\n".join(table.to_latex() for table in classification_tables(comparison)),
}


def write_classification(comparison: ClassificationComparison, form: str = "table") -> str:
    """Write a comparison as "table", "markdown", "csv" or "latex"."""
    if form not in _WRITERS:
        raise InputError(f"Expected `format` to be one of {', '.join(_WRITERS)}, but got {form!r}.")
    return _WRITERS[form](comparison)


def save_classification(comparison: ClassificationComparison, folder: str | os.PathLike[str]) -> None:
    """Write `comparison.json`, `.md`, `.csv`, `.tex` and `per_class.csv` into `folder`, which must exist."""
    content = {
        "comparison.json": json.dumps(without_nan(comparison.to_dict()), indent=1, ensure_ascii=False) + "\n",
        "comparison.md": write_classification(comparison, "markdown") + "\n",
        "comparison.csv": write_classification(comparison, "csv"),
        "comparison.tex": write_classification(comparison, "latex") + "\n",
        "per_class.csv": per_class_table(comparison).to_csv(),
    }
    for name, text in content.items():
        with atomic_path(Path(folder) / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
