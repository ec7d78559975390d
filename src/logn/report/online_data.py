"""Data of the figure on online LogN: AP by group of the baseline, of training with LogN, and of LogN afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from logn.errors import InputError
from logn.evaluate.comparison.comparison import Comparison

GROUPS = ("APr", "APc", "APf", "AP")


@dataclass(frozen=True)
class OnlineComparison:
    """AP between 0 and 1 by series, in the order of `metrics`."""

    metrics: tuple[str, ...]
    series: Mapping[str, tuple[float, ...]]


def online_comparison(run: Comparison, online: Comparison, method: str | None = None) -> OnlineComparison:
    """Put a model that was trained with LogN beside the usual one, before and after the correction.

    Args:
        run: Comparison of the model that was trained as usual.
        online: Comparison of the model that was trained with LogN; its uncorrected row is taken, since the
            normalisation is part of that model.
        method: Which row of `run` is LogN afterwards; by default the first after the uncorrected model.
    """
    if run.describe() != online.describe():
        raise InputError(
            f"Expected both runs to be measured by the same protocol, but got `{run.describe()}` and "
            f"`{online.describe()}`."
        )
    focus = run.focus(method)
    metrics = tuple(name for name in GROUPS if name in run.metric_names and name in online.metric_names)
    rows = {"Baseline": run.baseline, "Online LogN": online.baseline, f"Post-hoc ({focus.name})": focus}
    return OnlineComparison(metrics, {name: tuple(row[metric] for metric in metrics) for name, row in rows.items()})
