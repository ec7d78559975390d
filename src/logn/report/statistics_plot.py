"""Draw the mean and the standard deviation of every class's logit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from logn.base.files import atomic_path
from logn.errors import InputError, MissingExtraError
from logn.statistics.summary import GROUP_NAMES, Diagnosis

# Okabe and Ito's colours, which people with any colour vision tell apart; the shapes differ too.
GROUP_STYLES = {"f": ("#0072B2", "o"), "c": ("#E69F00", "s"), "r": ("#D55E00", "^")}
PLAIN_COLOUR = "#0072B2"
FORMATS = (".png", ".svg", ".pdf")


def plot_statistics(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Write a figure of two panels, mean and standard deviation, classes from the most frequent to the rarest.

    Args:
        diagnosis: What `diagnose` gave.
        path: A `.png`, `.svg` or `.pdf` file.
    """
    if Path(path).suffix not in FORMATS:
        raise InputError(f"Expected `{Path(path).name}` to end in one of {', '.join(FORMATS)}.")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib", extra="report") from error
    figure = Figure(figsize=(9, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    _draw_panel(upper, diagnosis, diagnosis.mean, "Mean logit", diagnosis.mean_with_count)
    _draw_panel(lower, diagnosis, diagnosis.std, "Standard deviation", diagnosis.std_with_count)
    handles, labels = upper.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, frameon=False, ncols=4, markerscale=2, loc="outside upper right")
    if diagnosis.background_mean is not None:
        # A line would squeeze the classes, since the background's mean is far above theirs.
        upper.set_title(f"background: {diagnosis.background_mean:.2f}", fontsize=10, loc="right")
    has_counts = diagnosis.image_counts is not None
    order = "from the most to the fewest training images" if has_counts else "from the highest to the lowest mean"
    lower.set_xlabel(f"Classes, {order}")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _draw_panel(axes: Any, diagnosis: Diagnosis, values: Any, label: str, link: float | None) -> None:
    order = diagnosis.order()
    position = np.empty(len(order), dtype=np.intp)
    position[order] = np.arange(len(order))
    size = float(np.clip(2000 / max(len(order), 1), 6, 40))
    for name, colour, marker, chosen in _groups(diagnosis):
        chosen = chosen & np.isfinite(values)
        if chosen.any():
            axes.scatter(position[chosen], values[chosen], s=size, c=colour, marker=marker, linewidths=0, label=name)
    axes.set_ylabel(label)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if link is not None:
        axes.set_title(f"rank correlation with log count {link:+.2f}", fontsize=10, loc="left")


def _groups(diagnosis: Diagnosis) -> list[tuple[str, str, str, Any]]:
    """Label, colour, marker and members of each series; dead classes are a series of their own."""
    alive = diagnosis.alive
    if diagnosis.groups is None:
        series = [("classes", PLAIN_COLOUR, "o", alive)]
    else:
        series = [
            (GROUP_NAMES[group], colour, marker, alive & (diagnosis.groups == group))
            for group, (colour, marker) in GROUP_STYLES.items()
        ]
    return [*series, ("dead", "#000000", "X", ~alive)]
