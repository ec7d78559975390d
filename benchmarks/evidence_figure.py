"""The evidence as a picture: a dot for every detector, a row for every method."""

from __future__ import annotations

import os
from collections.abc import Sequence

from evidence import Evidence
from evidence_tables import changes

from logn.report.figure_style import BLUE, GREEN, GREY, ORANGE, PAGE, PURPLE, paper_style, save_figure

ROWS = (
    "LogN balanced",
    "mean, mass kept",
    "LogN, margin 0",
    "LogN (paper)",
    "NorCal, tuned",
    "NorCal",
    "FRACAL",
    "LogA, raw counts",
    "LogA",
)
PANELS = (
    ("AP", "federated", "AP, federated labels"),
    ("APr", "federated", "APr, federated labels"),
    ("AP", "exhaustive", "AP, exhaustive labels"),
)
HEADS = {"linear": BLUE, "cosine 20": ORANGE, "cosine 10": GREEN, "one stage, sigmoid": PURPLE}


def head_of(one: Evidence) -> str:
    """The kind of classifier, as the legend names it.

    Example:
        >>> head_of(Evidence("a", {"model": "small", "classifier": "cosine", "temperature": 10.0}, {}, {}, {}, {}, {}))
        'cosine 10'
    """
    if one.settings["model"] != "small":
        return "one stage, sigmoid"
    if one.settings["classifier"] == "linear":
        return "linear"
    return f"cosine {one.settings['temperature']:g}"


def draw_evidence(evidence: Sequence[Evidence], path: str | os.PathLike[str]) -> None:
    """Draw the change of AP and APr by each method, one dot per detector, coloured by its head."""
    kinds = {head: [one for one in evidence if head_of(one) == head] for head in HEADS}
    with paper_style() as make:
        figure = make(PAGE, 3.0)
        axes = figure.subplots(1, len(PANELS), sharey=True)
        for axis, (metric, protocol, title) in zip(axes, PANELS, strict=True):
            axis.axvline(0, color=GREY, linewidth=0.8)
            axis.grid(axis="y")
            for offset, (head, members) in enumerate(kinds.items()):
                for row, method in enumerate(reversed(ROWS)):
                    found = changes(members, method, metric, protocol=protocol)
                    height = row + 0.12 * (1.5 - offset)
                    axis.scatter(
                        found,
                        [height] * len(found),
                        s=9,
                        color=HEADS[head],
                        linewidths=0,
                        alpha=0.8,
                        label=head if row == 0 and found else None,
                    )
            axis.set_title(title)
            axis.set_xlabel("change against no correction")
        axes[0].set_yticks(range(len(ROWS)), reversed(ROWS))
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(HEADS))
        save_figure(figure, path)
