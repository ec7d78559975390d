"""The figure and the tables of `docs/understanding.md`, from the results of `benchmarks/understanding.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from logn.files import atomic_path
from logn.report.figure_style import BLUE, GREEN, GREY, ORANGE, PAGE, PURPLE, VERMILION, paper_style

MARGIN_ALONE = "negatives, margin alone"  # not an axis of its own: the first one, without mean and std
TITLES = {
    "negatives": "Images verified absent per class",
    MARGIN_ALONE: "The same, the margin alone",
    "negatives, linear head": "The same, linear head",
    "which negatives": "Which images are verified absent",
    "look-alikes": "Look-alikes: least similarity in a family",
    "clutter": "Clutter of the background",
    "clutter, linear head": "Clutter, linear head",
    "clutter of the test images": "Clutter of the test images only",
    "classes": "Number of classes",
    "classes, linear head": "Number of classes, linear head",
    "head": "Classifier",
    "training": "Training",
}
LIMITS = (-9, 9)  # of the AP axis; what lies below is far up, where nobody would put a margin
COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, GREY)
METHODS = {
    "none": "none",
    "logn": "paper",
    "logn:margin=0": "margin 0",
    "logn:balanced": "balanced",
    "norcal": "NorCal",
    "loga": "LogA",
}


def write_figure(results: dict[str, Any], path: Path) -> None:
    """One panel per axis: AP over the shift of the foreground, and where the paper's own margin lies."""
    by_axis = {axis: [row for row in results["rows"] if row["axis"] == axis] for axis in TITLES}
    by_axis[MARGIN_ALONE] = by_axis["negatives"]
    drawn = [axis for axis in TITLES if by_axis[axis]]
    height = -(-len(drawn) // 2)
    with paper_style() as make_figure:
        figure = make_figure(PAGE, 2.1 * height + 0.4)
        panels = figure.subplots(height, 2, sharex=True, sharey=True, squeeze=False).ravel()
        for panel, axis in zip(panels, drawn, strict=False):
            _draw_axis(panel, axis, by_axis[axis])
        for panel in panels[len(drawn) :]:
            panel.set_visible(False)
        for panel in panels[max(0, len(drawn) - 2) : len(drawn)]:
            panel.set_xlabel("Shift of the foreground against the background (logits)")
            panel.tick_params(labelbottom=True)
        for panel in panels[::2]:
            panel.set_ylabel("AP against no correction")
        panels[0].set_ylim(*LIMITS)
        figure.legend(handles=_legend(), loc="outside lower center", ncols=3)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=150)
            with Image.open(temporary) as picture:
                small = picture.convert("RGB").quantize(96, dither=Image.Dither.NONE)
            small.save(temporary, optimize=True)


def _draw_axis(panel: Any, axis: str, rows: Sequence[dict[str, Any]]) -> None:
    import matplotlib as mpl

    shades = mpl.colormaps["viridis"](np.linspace(0, 0.9, len(rows)))
    panel.axhline(0, color=GREY, linewidth=0.7)
    panel.axvline(0, color=GREY, linewidth=0.7, linestyle=":")
    for place, row in enumerate(rows):
        colour = (
            shades[place]
            if axis.startswith("negatives") or axis.startswith("clutter") or axis.startswith("classes")
            else COLOURS[place]
        )
        plain = row["methods"]["none"]["AP"]
        form = "none" if axis == MARGIN_ALONE else "paper"
        heights = [100 * (value - plain) for value in row["curves"][form]]
        panel.plot(row["shifts"], heights, color=colour, linewidth=1.2, label=row["label"])
        if form == "none":
            continue
        paper = 100 * (row["methods"]["logn"]["AP"] - plain)
        panel.plot(
            row["places"]["logn"], paper, "v", color=colour, markersize=6, markeredgecolor="black", clip_on=False
        )
        balanced = 100 * (row["methods"]["logn:balanced"]["AP"] - plain)
        panel.plot(0, balanced, "o", color=colour, markersize=4.5, markeredgecolor="black", zorder=3)
    panel.set_title(TITLES[axis])
    panel.grid(axis="y")
    panel.legend(loc="upper right", ncols=2 if len(rows) > 4 else 1, handlelength=1.2, columnspacing=0.8)


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color="black", linewidth=1.2, label="the paper's form, all margins"),
        Line2D([], [], color="white", marker="v", markeredgecolor="black", label="the paper's margin (smallest mean)"),
        Line2D([], [], color="white", marker="o", markeredgecolor="black", label="balanced"),
    ]


def write_page(results: dict[str, Any], path: Path) -> None:
    """Replace the tables of the page; its words are written by hand."""
    text = path.read_text(encoding="utf-8")
    for name, table in (("methods", _methods_table(results)), ("margins", _margins_table(results))):
        pattern = re.compile(rf"(<!-- {name} -->).*?(<!-- /{name} -->)", re.DOTALL)
        text = pattern.sub(rf"\1\n\n{table}\n\n\2", text)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _methods_table(results: dict[str, Any]) -> str:
    """AP of every method, with the groups of the three that matter most."""
    header = ["varied", "setting", "none (r/c/f)", "paper (r/c/f)", "margin 0", "balanced (r/c/f)", "NorCal", "LogA"]
    lines = [header, ["---"] * len(header)]
    for row in results["rows"]:
        cells = [row["axis"], row["label"]]
        for method in METHODS:
            values = row["methods"][method]
            groups = "/".join(f"{100 * values[group]:.0f}" for group in ("APr", "APc", "APf"))
            with_groups = method in ("none", "logn", "logn:balanced")
            cells.append(f"{100 * values['AP']:.1f}" + (f" ({groups})" if with_groups else ""))
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _margins_table(results: dict[str, Any]) -> str:
    """Where the best margin lies, and where the paper's does."""
    header = [
        *("varied", "setting", "foreground mass", "paper's mass", "paper's margin at", "best shift, paper's form"),
        *("best shift, balanced form", "best AP, paper's form", "best AP, balanced form"),
    ]
    lines = [header, ["---"] * len(header)]
    for row in results["rows"]:
        methods = row["methods"]
        lines.append(
            [
                row["axis"],
                row["label"],
                f"{methods['none']['mass']:.3f}",
                f"{methods['logn']['mass']:.3f}",
                f"{row['places']['logn']:+.1f}",
                _place(row["best"]["paper"]),
                _place(row["best"]["balanced"]),
                *(f"{100 * row['best'][form]['value']:.1f}" for form in ("paper", "balanced")),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _place(best: dict[str, float]) -> str:
    return f"{best['best']:+.0f} ({best['low']:+.1f} to {best['high']:+.1f})"
