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
# Axes whose settings have an order, and so a scale of colours.
ORDERED = ("negatives", "clutter", "classes", "look-alikes")
LIMITS = (-9, 11)  # of the AP axis; what lies below is far up, where nobody would put a margin
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
        figure.legend(handles=_legend(), loc="outside lower center", ncols=4)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=150)
            with Image.open(temporary) as picture:
                small = picture.convert("RGB").quantize(96, dither=Image.Dither.NONE)
            small.save(temporary, optimize=True)


def _draw_axis(panel: Any, axis: str, rows: Sequence[dict[str, Any]]) -> None:
    import matplotlib as mpl

    labels = list(dict.fromkeys(row["label"] for row in rows))
    ordered = axis.split(",")[0].split(" of ")[0] in ORDERED
    shades = mpl.colormaps["viridis"](np.linspace(0, 0.9, len(labels))) if ordered else COLOURS
    panel.axhline(0, color=GREY, linewidth=0.7)
    panel.axvline(0, color=GREY, linewidth=0.7, linestyle=":")
    for row in rows:
        first = row["seed"] == 0
        style = {"color": shades[labels.index(row["label"])], "alpha": 1.0 if first else 0.6}
        plain = row["methods"]["none"]["AP"]
        form = "none" if axis == MARGIN_ALONE else "paper"
        heights = [100 * (value - plain) for value in row["curves"][form]]
        label = row["label"] if first else None
        panel.plot(row["shifts"], heights, linewidth=1.2, linestyle="-" if first else "--", label=label, **style)
        if form == "none":
            continue
        paper, balanced = (100 * (row["methods"][name]["AP"] - plain) for name in ("logn", "logn:balanced"))
        marker = {**style, "markeredgecolor": "black"}
        panel.plot(row["places"]["logn"], paper, "v", markersize=6, clip_on=False, **marker)
        panel.plot(0, balanced, "o", markersize=4.5, zorder=3, **marker)
    panel.set_title(TITLES[axis])
    panel.grid(axis="y")
    panel.legend(loc="upper right", ncols=2 if len(labels) > 4 else 1, handlelength=1.2, columnspacing=0.8)


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color="black", linewidth=1.2, label="the paper's form, all margins"),
        Line2D([], [], color="black", linewidth=1.2, linestyle="--", alpha=0.6, label="the same, second seed"),
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
    """AP without correction, and what every method changes; under exhaustive labels the two forms of LogN."""
    exhaustive = {"logn": "paper, exhaustive", "logn:balanced": "balanced, exhaustive"}
    changes = {name: title for name, title in METHODS.items() if name != "none"}
    lines = [["varied", "setting", "none", *changes.values(), *exhaustive.values()]]
    for (axis, label), rows in _by_setting(results).items():
        plain = [row["methods"]["none"]["AP"] for row in rows]
        cells = [axis, label, _seeds([f"{100 * value:.1f}" for value in plain])]
        for method in changes:
            gains = [row["methods"][method]["AP"] - value for row, value in zip(rows, plain, strict=True)]
            cells.append(_seeds([f"{100 * gain:+.1f}" for gain in gains]))
        for method in exhaustive:
            gains = [row["exhaustive"][method] - row["exhaustive"]["none"] for row in rows]
            cells.append(_seeds([f"{100 * gain:+.1f}" for gain in gains]))
        lines.append(cells)
    return _table(lines)


def _margins_table(results: dict[str, Any]) -> str:
    """Where the best margin lies, and where the paper's does."""
    lines = [
        [
            *(
                "varied",
                "setting",
                "foreground mass",
                "paper's mass",
                "margin that keeps the mass",
                "paper's margin at",
            ),
            *(
                "best shift, paper's form",
                "best shift, balanced form",
                "best AP, paper's form",
                "best AP, balanced form",
            ),
        ]
    ]
    for (axis, label), rows in _by_setting(results).items():
        lines.append(
            [
                axis,
                label,
                *(_seeds([f"{row['methods'][name]['mass']:.3f}" for row in rows]) for name in ("none", "logn")),
                _seeds([f"{row['places']['margin that keeps the mass']:+.1f}" for row in rows]),
                _seeds([f"{row['places']['logn']:+.1f}" for row in rows]),
                *(_seeds([_place(row["best"][form]) for row in rows]) for form in ("paper", "balanced")),
                *(
                    _seeds([f"{100 * row['best'][form]['value']:.1f}" for row in rows])
                    for form in ("paper", "balanced")
                ),
            ]
        )
    return _table(lines)


def _by_setting(results: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of each setting, one for each seed."""
    settings: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in results["rows"]:
        settings.setdefault((row["axis"], row["label"]), []).append(row)
    return settings


def _seeds(cells: Sequence[str]) -> str:
    return " / ".join(cells)


def _table(lines: Sequence[Sequence[str]]) -> str:
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _place(best: dict[str, float]) -> str:
    return f"{best['best']:+.0f} ({best['low']:+.1f} to {best['high']:+.1f})"
