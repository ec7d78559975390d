"""The look of the paper's figures, and how each is drawn from what `logn_research.figures.data` computed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from logn.base.files import atomic_path
from logn.errors import InputError
from logn_research.figures.data import (
    ERROR_TYPES,
    SPECIAL_ERRORS,
    BackgroundRatio,
    LabelShift,
    LogitStatistics,
    MarginEffect,
    OnlineComparison,
)

FORMATS = (".svg", ".png", ".pdf")
# Inches: one column and the whole width of a two-column page.
COLUMN, PAGE = 3.4, 7.0
# Okabe and Ito's colours, told apart with any colour vision.
BLUE, SKY, GREEN, YELLOW, ORANGE, VERMILION, PURPLE, GREY = (
    *("#0072B2", "#56B4E9", "#009E73", "#F0E442", "#E69F00", "#D55E00", "#CC79A7", "#7A7F87"),
)
SERIES = (GREY, BLUE, ORANGE, GREEN, VERMILION, PURPLE)
ERROR_COLOURS = {"Cls": BLUE, "Loc": SKY, "Both": GREEN, "Dupe": YELLOW, "Bkg": ORANGE, "Miss": VERMILION}
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "grid.color": "#E0E0E0",
    "grid.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "logn",
}


def check_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file whose suffix names no format that we draw.

    Example:
        >>> check_format("figure.svg")
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"Expected `{path}` to end in one of {', '.join(FORMATS)}, but it does not.")


@contextlib.contextmanager
def paper_style() -> Iterator[Callable[..., Any]]:
    """Draw in the look of the figures; yields what makes an empty figure of a size in inches."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    def make(width: float, height: float) -> Any:
        return Figure(figsize=(width, height), layout="constrained")

    with mpl.rc_context(STYLE):
        yield make


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure in one step; the same figure gives the same bytes."""
    check_format(path)
    dateless = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(Path(path).suffix.lower())
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=200, metadata=dateless)


CLASSES_BY_COUNT = "Classes, from the most frequent to the rarest"


def draw_errors(panels: Mapping[str, Mapping[str, float]], make: Callable[..., Any]) -> Any:
    """One column per method: the ring above, the six kinds and the two sums below, all to one scale."""
    count = len(panels)
    figure = make(max(1.45 * count, 3.4), 3.3)
    grid = figure.subplots(2, count, squeeze=False, height_ratios=[1, 1.25])
    kinds = (*ERROR_TYPES, *SPECIAL_ERRORS)
    largest = 100 * max(errors[kind] for errors in panels.values() for kind in kinds)
    colours = [*(ERROR_COLOURS[kind] for kind in ERROR_TYPES), GREY, PURPLE]
    for column, (title, errors) in enumerate(panels.items()):
        ring, bars = grid[0, column], grid[1, column]
        values = [100 * max(errors[kind], 0.0) for kind in kinds]
        ring.pie(
            [max(value, 1e-9) for value in values[: len(ERROR_TYPES)]],
            colors=colours[: len(ERROR_TYPES)],
            startangle=90,
            counterclock=False,
            wedgeprops={"width": 0.42, "edgecolor": "white", "linewidth": 0.5},
        )
        ring.set_title(title)
        ring.text(0, 0, f"AP50\n{100 * errors['AP50']:.1f}", ha="center", va="center", fontsize=7)
        place = [*range(len(ERROR_TYPES)), *(len(ERROR_TYPES) + 0.5 + number for number in range(len(SPECIAL_ERRORS)))]
        drawn = bars.barh(place, values, color=colours, height=0.72)
        bars.bar_label(drawn, fmt="%.1f", fontsize=6, padding=1.5)
        bars.set_yticks(place, kinds if column == 0 else [""] * len(kinds))
        bars.invert_yaxis()
        bars.set_xlim(0, 1.22 * largest)
        bars.set_xlabel("ΔAP50")
    return figure


def draw_label_shift(shift: LabelShift, make: Callable[..., Any]) -> Any:
    """Fig. 1a: how far samplers move the label distribution from the prior."""
    figure = make(COLUMN, 2.6)
    axes = figure.subplots()
    place = np.arange(len(shift.order))
    axes.axhline(0, color=GREY, linewidth=0.8, label="prior")
    if shift.internal is not None:
        axes.plot(place, shift.internal, ".", color=BLUE, markersize=2.5, label="assigned proposals")
    if shift.both is not None:
        axes.plot(place, shift.both, "x", color=ORANGE, markersize=3, markeredgewidth=0.8, label="the same with RFS")
    axes.plot(place, shift.external, color=GREEN, linewidth=1.4, label=f"RFS alone (t = {shift.threshold:g})")
    axes.set_xlabel(CLASSES_BY_COUNT)
    axes.set_ylabel("log share − log prior share")
    axes.grid(axis="y")
    figure.legend(loc="outside upper center", ncols=2, handlelength=1.4)
    return figure


def draw_background_ratio(ratio: BackgroundRatio, make: Callable[..., Any]) -> Any:
    """Fig. 1b: foreground proposals for one background proposal, per class and cumulative."""
    figure = make(COLUMN, 2.3)
    axes = figure.subplots()
    place = np.arange(len(ratio.order))
    axes.plot(place, ratio.cumulative, color=ORANGE, linewidth=1.4, label="all classes up to this one")
    shown = ratio.ratio > 0
    axes.plot(place[shown], ratio.ratio[shown], ".", color=BLUE, markersize=3, label="each class")
    axes.set_yscale("log")
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xlabel("Classes, from the most proposals to the fewest")
    axes.set_ylabel("foreground : background")
    axes.grid(axis="y")
    axes.legend(loc="best", handlelength=1.4)
    return figure


def draw_logit_statistics(
    statistics: LogitStatistics, make: Callable[..., Any], samples: str, resampled: LogitStatistics | None = None
) -> Any:
    """Fig. 2 and 6: mean and variance of the logit next to the logarithm of the label distribution.

    Where there are statistics of the model that was trained with repeat factor sampling, they stand in the same panels.
    """
    figure = make(PAGE, 2.5 if resampled is None else 2.9)
    panels = (
        ("Mean logit", statistics.mean, statistics.mean_link, "o"),
        ("Variance of the logit", statistics.variance, statistics.variance_link, "s"),
    )
    again = () if resampled is None else (resampled.mean, resampled.variance)
    links = () if resampled is None else (resampled.mean_link, resampled.variance_link)
    place = np.arange(len(statistics.order))
    for number, (axes, (label, values, link, marker)) in enumerate(zip(figure.subplots(1, 2), panels, strict=True)):
        axes.plot(place, values, marker, color=BLUE, markersize=2.4, label=f"{label.lower()}, {samples}")
        axes.set_xlabel(CLASSES_BY_COUNT)
        axes.set_ylabel(label, color=BLUE)
        axes.grid(axis="y")
        other = axes.twinx()
        other.spines["right"].set_visible(True)
        other.plot(place, statistics.log_share, color=ORANGE, linewidth=1.3, label="label distribution")
        other.set_ylabel("log of the share of labels", color="#A86F00")
        title = f"rank correlation {link:+.2f}"
        if resampled is not None:
            axes.plot(place, again[number], "x", color=GREEN, markersize=2.6, markeredgewidth=0.7, label="with RFS")
            other.plot(place, resampled.log_share, color=PURPLE, linewidth=1.1, linestyle="--", label="labels with RFS")
            title += f", with RFS {links[number]:+.2f}"
            if number == 0:
                handles = [*axes.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
                figure.legend(handles=handles, loc="outside upper center", ncols=4, handlelength=1.4)
        axes.set_title(title, loc="left")
    return figure


def draw_online(data: OnlineComparison, make: Callable[..., Any]) -> Any:
    """Fig. 3: AP by group of the baseline, of online and of post-hoc LogN."""
    figure = make(1.25 * COLUMN, 2.4)
    axes = figure.subplots()
    width = 0.8 / len(data.series)
    hatches = ("", "//", "\\\\", "") if len(data.series) > 3 else ("", "//", "")
    for number, (name, values) in enumerate(data.series.items()):
        place = np.arange(len(values)) + (number - (len(data.series) - 1) / 2) * width
        bars = axes.bar(
            place, 100 * np.array(values), width, color=SERIES[number], label=name, hatch=hatches[number % len(hatches)]
        )
        axes.bar_label(bars, fmt="%.1f", fontsize=5.5, padding=1)
    axes.set_xticks(np.arange(len(data.metrics)), data.metrics)
    axes.set_ylabel("AP")
    axes.grid(axis="y")
    for columns in (3, 2, 1):  # the names are those of folders, and may be long
        legend = figure.legend(loc="outside upper center", ncols=columns, handlelength=1.2, columnspacing=1)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    return figure


def draw_margin_effect(effect: MarginEffect, make: Callable[..., Any]) -> Any:
    """Appendix: a negative margin makes the ranking depend more on the background score."""
    figure = make(PAGE, 2.4)
    left, right = figure.subplots(1, 2)
    styles = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
    for number, margin in enumerate(effect.margins):
        own = effect.own is not None and margin == effect.own
        look: dict[str, Any] = {"color": SERIES[number % len(SERIES)], "linestyle": styles[number % len(styles)]}
        look |= {"linewidth": 2.0 if own else 1.2, "label": f"β = {margin:.3g}" + (" (this run)" if own else "")}
        left.plot(effect.background, effect.foreground[number], **look)
        right.plot(effect.background, effect.steepness[number], **look)
    left.set_ylabel("what is left for the foreground")
    right.set_ylabel("|change of log score| per unit")
    right.set_yscale("log")
    for axes in (left, right):
        axes.set_xlabel("background score before the margin")
        axes.grid(axis="y")
        axes.set_xlim(0, 1)
    left.legend(handlelength=2.4)
    return figure
