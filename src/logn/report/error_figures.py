"""Fig. 4 and 5: kinds of error as a ring, which shows their shares, and bars, which show their size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from logn.evaluate.detection.tide import ERROR_TYPES, SPECIAL_ERRORS
from logn.report.figure_style import ERROR_COLOURS, GREY, PURPLE


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
