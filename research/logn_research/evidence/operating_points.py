"""The table of what thresholds per class bought, from what an earlier version measured (version 0.2)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: How a correction goes on.
WAYS = {"common": "one threshold", "values": "a threshold per class"}


def results(known: Sequence[Mapping[str, Any]]) -> str:
    """The part of the page that the data make."""
    lines = [
        "Means in points; in brackets the change against one threshold without a correction, and on how many of the",
        "models it is a gain. Thresholds were chosen on dev images, all numbers are of test images. In the columns",
        "at a fixed precision or number of false alarms, thresholds are moved together until test meets the target.",
    ]
    for group in dict.fromkeys(_group(one) for one in known):
        members = [one for one in known if _group(one) == group]
        lines += [
            "",
            f"**{group}** ({', '.join(one['name'].rpartition('/')[2] for one in members)}):",
            "",
            *_table(members),
        ]
    return "\n".join(lines) + "\n"


def _group(one: Mapping[str, Any]) -> str:
    return str(one["name"].rpartition("/")[0])


def _table(members: Sequence[Mapping[str, Any]]) -> list[str]:
    methods = members[0]["methods"]
    titles = list(methods["no correction"]["common"])
    lines = [f"| correction | threshold | {' | '.join(titles)} |", f"|:--|:--|{'--:|' * len(titles)}"]
    for method, (way, words) in itertools.product(methods, WAYS.items()):
        cells = [_cell(members, method, way, title) for title in titles]
        lines.append(f"| {method} | {words} | {' | '.join(cells)} |")
    return lines


def _cell(members: Sequence[Mapping[str, Any]], method: str, way: str, title: str) -> str:
    values, first = (
        100 * np.array([one["methods"][correction][threshold][title] for one in members])
        for correction, threshold in ((method, way), ("no correction", "common"))
    )
    change = values - first
    if (method, way) == ("no correction", "common"):
        return f"{values.mean():.1f}"
    return f"{values.mean():.1f} ({change.mean():+.1f}; {int((change > 0).sum())} of {len(change)})"
