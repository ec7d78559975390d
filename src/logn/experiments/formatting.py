"""Small words for the findings of the tables."""

from __future__ import annotations

import math
from collections.abc import Iterable

from logn.experiments.experiment import RowResult, SectionResult


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
