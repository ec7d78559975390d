"""Draw the mean and the standard deviation of every class's logit, as an SVG file."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

import numpy as np

from logn.base.arrays import FloatArray
from logn.base.files import write_text
from logn.errors import InputError
from logn.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, Axis, number, padded, symbol_path
from logn.statistics.summary import GROUP_NAMES, Diagnosis

# Okabe and Ito's colours, which people with any colour vision tell apart; the shapes differ too.
GROUP_STYLES = {"f": ("#0072B2", "circle"), "c": ("#E69F00", "square"), "r": ("#D55E00", "triangle")}
WIDTH = 720


def plot_statistics(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Write a figure of two panels, mean and standard deviation, classes from the most frequent to the rarest.

    Args:
        diagnosis: What `diagnose` gave.
        path: An `.svg` file.
    """
    if Path(path).suffix.lower() != ".svg":
        raise InputError(f"Expected `{Path(path).name}` to end in .svg.")
    panels = (("Mean logit", diagnosis.mean), ("Standard deviation", diagnosis.std))
    order = "by training images, most first" if diagnosis.image_counts is not None else "by mean logit, highest first"
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {2 * HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for place, (label, values) in enumerate(panels):
        text.append(f'<g transform="translate(0,{place * HEIGHT})">{_panel(diagnosis, label, values)}</g>')
    text.append(f'<text x="{LEFT}" y="{2 * HEIGHT - 8}">Classes {order}</text></svg>')
    write_text(path, "".join(text))


def _panel(diagnosis: Diagnosis, label: str, values: FloatArray) -> str:
    """One panel: grid, ticks and a series of symbols for each group of classes."""
    position = np.empty(len(values), dtype=np.intp)
    position[diagnosis.order()] = np.arange(len(values))
    finite = np.isfinite(values)
    across = Axis(-0.5, len(values) - 0.5, LEFT, WIDTH - RIGHT)
    upward = Axis(*padded(values[finite].tolist() or [0.0]), HEIGHT - BOTTOM, TOP + 16)
    parts = [f'<text x="{LEFT}" y="{TOP}">{escape(label)}</text>']
    for place, tick in upward.ticks:
        parts.append(
            f'<path d="M{LEFT},{number(place)}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{number(place + 4)}" text-anchor="end">{tick}</text>'
        )
    series = [("classes", "#0072B2", "circle", diagnosis.alive)]
    if diagnosis.groups is not None:
        styles = GROUP_STYLES.items()
        series = [(GROUP_NAMES[key], *style, diagnosis.alive & (diagnosis.groups == key)) for key, style in styles]
    series.append(("dead", "#000", "square", ~diagnosis.alive))
    shown = [entry for entry in series if (entry[3] & finite).any()]
    for index, (name, colour, shape, chosen) in enumerate(shown):
        points = [(across(position[at]), upward(values[at])) for at in np.flatnonzero(chosen & finite)]
        parts.append(f'<path d="{symbol_path(shape, points, 2.5)}" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT - 90 * (len(shown) - index)}" y="{TOP}" fill="{colour}">{name}</text>')
    return "".join(parts)
