"""A comparison as files: for programs, for a README, for a spreadsheet and for a paper."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from logn.evaluate.comparison import Comparison
from logn.evaluate.tables import Table, exact, write_comparison
from logn.files import write_text
from logn.strict_json import plain_values


def save_comparison(comparison: Comparison, folder: str | os.PathLike[str]) -> None:
    """Write `comparison.json`, `.md`, `.csv`, `.tex` and `per_class.csv` into `folder`, which must exist."""
    save_forms(folder, comparison.to_dict(), partial(write_comparison, comparison), per_class_table(comparison))


def save_forms(
    folder: str | os.PathLike[str], result: Mapping[str, Any], write: Callable[[str], str], per_class: Table
) -> None:
    """Write a comparison, of detectors or of classifiers, in every form that it has.

    Args:
        folder: Where to write; it must exist.
        result: The comparison as plain values.
        write: Gives the tables as "markdown", "csv" or "latex".
        per_class: The table of all classes.
    """
    content = {
        "comparison.json": json.dumps(plain_values(result), indent=1, ensure_ascii=False) + "\n",
        "comparison.md": write("markdown") + "\n",
        "comparison.csv": write("csv"),
        "comparison.tex": write("latex") + "\n",
        "per_class.csv": per_class.to_csv(),
    }
    for name, text in content.items():
        write_text(Path(folder) / name, text)


def per_class_table(comparison: Comparison) -> Table:
    """AP of every class under every method, in points; empty where a class has no box."""
    header = ("id", "name", "group", "boxes", *(row.name for row in comparison.rows))
    rows = tuple(
        (
            str(known.id),
            known.name,
            known.group or "",
            str(known.boxes),
            *(exact(float(row.metrics.per_class[place])) for row in comparison.rows),
        )
        for place, known in enumerate(comparison.classes)
    )
    return Table(comparison.protocol.describe(), header, rows)
