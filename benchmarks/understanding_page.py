"""The figure and the tables of `docs/understanding.md`, from the results of `benchmarks/understanding.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from logn.files import atomic_path
from logn.report.figure_style import BLUE, GREEN, GREY, ORANGE, PAGE, PURPLE, VERMILION, paper_style

TITLES = {
    "negatives": "Images verified absent per class",
    "negatives, linear head": "The same, linear head",
    "which negatives": "Which images are verified absent",
    "look-alikes": "Look-alikes: least similarity in a family",
    "clutter": "Clutter of the background",
    "classes": "Number of classes",
    "head": "Classifier",
    "training": "Training",
}
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
    """One panel per axis: AP of the paper's form over the shift of the foreground, and where its own margin lies."""
    drawn = [axis for axis in TITLES if any(row["axis"] == axis for row in results["rows"])]
    rows = -(-len(drawn) // 2)
    with paper_style() as make_figure:
        figure = make_figure(PAGE, 2.3 * rows + 0.5)
        panels = figure.subplots(rows, 2, sharex=True, squeeze=False).ravel()
        for panel, axis in zip(panels, drawn, strict=False):
            _draw_axis(panel, axis, [row for row in results["rows"] if row["axis"] == axis])
        for panel in panels[len(drawn) :]:
            panel.set_visible(False)
        for panel in panels[max(0, len(drawn) - 2) : len(drawn)]:
            panel.set_xlabel("Shift of the foreground against the background (logits)")
            panel.tick_params(labelbottom=True)
        for panel in panels[::2]:
            panel.set_ylabel("AP, difference to no correction")
        figure.legend(handles=_legend(), loc="lower center", ncols=3)
        figure.tight_layout(rect=(0, 0.25 / (2.3 * rows + 0.5), 1, 1))
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=160)


def _draw_axis(panel: Any, axis: str, rows: Sequence[dict[str, Any]]) -> None:
    import matplotlib as mpl

    shades = mpl.colormaps["viridis"](np.linspace(0, 0.9, len(rows)))
    panel.axhline(0, color=GREY, linewidth=0.7)
    panel.axvline(0, color=GREY, linewidth=0.7, linestyle=":")
    for place, row in enumerate(rows):
        colour = shades[place] if axis.startswith("negatives") or axis in ("classes", "clutter") else COLOURS[place]
        plain = row["methods"]["none"]["AP"]
        heights = [100 * (value - plain) for value in row["curves"]["paper"]]
        panel.plot(row["shifts"], heights, color=colour, linewidth=1.2, label=row["label"])
        paper = 100 * (row["methods"]["logn"]["AP"] - plain)
        panel.plot(
            row["places"]["logn"], paper, "v", color=colour, markersize=6, markeredgecolor="black", clip_on=False
        )
        balanced = 100 * (row["methods"]["logn:balanced"]["AP"] - plain)
        panel.plot(0, balanced, "o", color=colour, markersize=4.5, markeredgecolor="black", zorder=3)
    panel.set_title(TITLES[axis])
    panel.grid(axis="y")
    panel.legend(loc="best", ncols=2 if len(rows) > 4 else 1, handlelength=1.2, columnspacing=0.8)


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color="black", linewidth=1.2, label="the paper's form, margin swept"),
        Line2D([], [], color="white", marker="v", markeredgecolor="black", label="the paper's margin (smallest mean)"),
        Line2D([], [], color="white", marker="o", markeredgecolor="black", label="balanced"),
    ]


def write_page(results: dict[str, Any], path: Path) -> None:
    """Replace the tables of the page; its words are written by hand."""
    text = path.read_text(encoding="utf-8") if path.exists() else "<!-- methods -->\n\n<!-- margins -->\n"
    for name, table in (("methods", _methods_table(results)), ("margins", _margins_table(results))):
        pattern = re.compile(rf"<!-- {name} -->.*?(?:<!-- /{name} -->|(?=\n<!-- )|\Z)", re.DOTALL)
        text = pattern.sub(lambda _, n=name, t=table: f"<!-- {n} -->\n\n{t}\n\n<!-- /{n} -->", text, count=1)
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
