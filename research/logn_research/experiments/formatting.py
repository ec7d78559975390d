"""Small words for the findings of the tables."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from logn.files import write_text
from logn_research.experiments.experiment import RowResult, SectionResult


def signed(value: float) -> str:
    """Write a difference in points.

    Example:
        >>> signed(1.26), signed(float("nan"))
        ('+1.3', 'an unknown amount')
    """
    return "an unknown amount" if math.isnan(value) else f"{value:+.1f}"


def best_row(section: SectionResult, metric: str, labels: Iterable[str] | None = None) -> RowResult:
    """The row with the highest mean of a metric, among those that have one."""
    chosen = None if labels is None else set(labels)
    rows = [row for row in section.measured() if chosen is None or row.row.label in chosen]
    return max(rows, key=lambda row: -math.inf if math.isnan(row.mean(metric)) else row.mean(metric))


#: Two-sided 95 % quantiles for 1, 2, … degrees of freedom.
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.959964


def student_quantile(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t, to three digits after the point.

    Args:
        freedom: Degrees of freedom, at least 1.

    Example:
        >>> [round(student_quantile(freedom), 3) for freedom in (1, 6, 24, 1000)]
        [12.706, 2.447, 2.064, 1.962]
    """
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    # Fisher's expansion around the normal distribution.
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of independent values; NaN for fewer than two.

    Example:
        >>> round(half_width([60.0, 61.0, 62.0]), 2)
        2.48
    """
    if len(values) < 2:
        return math.nan
    return student_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def write_page(folder: Path, name: str, markdown: str, result: Mapping[str, Any]) -> dict[str, Path]:
    """Write `NAME.md` and `NAME.json` into a folder, which is made if it is not there; gives their paths by form."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"markdown": folder / f"{name}.md", "json": folder / f"{name}.json"}
    content = {"markdown": markdown, "json": json.dumps(result, indent=1, ensure_ascii=False) + "\n"}
    for form, path in paths.items():
        write_text(path, content[form])
    return paths


def listed(title: str, sentences: Sequence[str]) -> list[str]:
    r"""A part of the page with a line for each sentence; none where there is nothing to say.

    Example:
        >>> listed("What it says", ["It works."]), listed("Rows without numbers", [])
        (['## What it says\n\n- It works.'], [])
    """
    return [f"## {title}\n\n" + "\n".join(f"- {sentence}" for sentence in sentences)] if sentences else []
