"""The rule by which the recommended form follows from dev sets, written down before any test set was looked at.

Under a label protocol, a candidate is a form at a common shift (or a method by name) that needs no labels. It is
*admissible* if it lowers no detector's AP on dev beyond noise: no 95 % interval of the change, over draws of the dev
images, lies below 0. Of the admissible ones the best has the highest mean change of AP, the mean over photographs and
the mean over drawn scenes weighing the same. Where no candidate is admissible, none is recommended for everybody, and
the advice has to choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Methods that need class counts: measured, but no candidates for a default without labels.
NEED_COUNTS = ("norcal:gamma=0.6", "loga")
KINDS = ("photographs", "drawn")
BOTH = "both"


@dataclass(frozen=True)
class Verdict:
    """What a candidate does on the dev (or test) sets.

    Args:
        name: Of the candidate.
        mean: Mean change of AP in points, the kinds of data weighing the same.
        by_kind: Mean change by kind.
        worst: The smallest change.
        harmed: Detectors whose AP it lowers beyond noise.
        count: How many detectors there are.
    """

    name: str
    mean: float
    by_kind: Mapping[str, float]
    worst: float
    harmed: tuple[str, ...]
    count: int


def judge(
    records: Sequence[Mapping[str, Any]], protocol: str, split: str = "dev", *, intervals: bool = True
) -> list[Verdict]:
    """Every candidate under a protocol, the admissible ones first, the best first.

    Args:
        records: Of the detectors, as `real_images.py` writes them.
        protocol: "federated", "exhaustive", or "both": each detector counts twice.
        split: "dev" for choices, "test" for numbers.
        intervals: Only candidates whose noise is known; without them nobody is known to be harmed.

    Example:
        >>> one = {"name": "a", "kind": "drawn", "dev": {"federated": {
        ...     "none": [5.0, 0, 0, 0, 0, 0, 0], "prior -2": [6.0, 0, 0, 0, 0, 0.5, 1.5],
        ...     "logn": [4.0, 0, 0, 0, 0, -1.5, -0.5]}}}
        >>> [(found.name, found.mean, found.harmed) for found in judge([one], "federated")]
        [('prior -2', 1.0, ()), ('none', 0.0, ()), ('logn', -1.0, ('a',))]
    """
    protocols = ("federated", "exhaustive") if protocol == BOTH else (protocol,)
    detectors = [one for one in records if one["kind"] in KINDS]
    tables = [one[split][labels] for one in detectors for labels in protocols]
    # What has no interval was swept to look at, not as a candidate.
    judged = [{name for name, values in table.items() if len(values) == 7 or not intervals} for table in tables]
    names = [name for name in tables[0] if name not in NEED_COUNTS and all(name in some for some in judged)]
    verdicts = []
    for name in names:
        changes: dict[str, list[float]] = {}
        harmed = []
        for one in detectors:
            for labels in protocols:
                table = one[split][labels]
                changes.setdefault(one["kind"], []).append(table[name][0] - table["none"][0])
                if intervals and table[name][6] < 0:
                    harmed.append(one["name"])
        by_kind = {kind: float(np.mean(values)) for kind, values in changes.items()}
        everything = [value for values in changes.values() for value in values]
        verdicts.append(
            Verdict(
                name,
                float(np.mean(list(by_kind.values()))),
                by_kind,
                min(everything),
                tuple(harmed),
                len(everything),
            )
        )
    return sorted(verdicts, key=lambda found: (len(found.harmed) > 0, -found.mean))


def chosen(records: Sequence[Mapping[str, Any]], protocol: str) -> Verdict | None:
    """The candidate that the rule recommends under a protocol; None where all harm somebody ("none" never does)."""
    best = judge(records, protocol)[0]
    return None if best.harmed or best.name == "none" else best
