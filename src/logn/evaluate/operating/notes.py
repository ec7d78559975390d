"""What to know about operating points: classes without a threshold of their own, and what was not counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from logn.evaluate.operating.choose_points import ChosenPoints
from logn.evaluate.operating.points import ClassPoint
from logn.evaluate.operating.scored_outcomes import ScoredOutcomes
from logn.evaluate.operating.shrinkage import FEWEST
from logn.evaluate.operating.target import F_BETA, FALSE_ALARMS, PRECISION, RECALL, Target

_NAMED = 3


def notes_on(
    outcomes: ScoredOutcomes,
    target: Target,
    points: Sequence[ClassPoint],
    chosen: ChosenPoints,
    is_federated: bool,
    num_bootstrap: int,
) -> tuple[str, ...]:
    """One sentence for each thing to know."""
    notes = list(_classes_without(outcomes, target, points, chosen.common))
    if chosen.held_out is not None and chosen.held_out.is_lower:
        before, after = chosen.held_out.overall
        notes.append(
            f"Overall {str(target).upper()} on held-out {outcomes.unit} is lower with these thresholds ({after:.3f}) "
            f"than with the common one ({before:.3f}): classes with many objects pay for the class mean."
        )
    if is_federated:
        more = ", so there are more of them per image than is said here" if target.kind == FALSE_ALARMS else ""
        notes.append(f"False alarms count only in images where the class was looked for{more}.")
    if not num_bootstrap:
        notes.append("Without draws of images there are no intervals, and no threshold is shrunk.")
    return tuple(notes)


def _classes_without(
    outcomes: ScoredOutcomes, target: Target, points: Sequence[ClassPoint], common: float
) -> list[str]:
    without = [place for place, point in enumerate(points) if math.isnan(point.own)]
    lacking = [place for place in without if not points[place].objects]
    wrong = [place for place in without if points[place].objects and not len(outcomes.by_class[place].hits)]
    others = [place for place in without if place not in lacking and place not in wrong]
    # Those that have one of their own, but do not use it.
    unused = [place for place, point in enumerate(points) if point.weight == 0 and not math.isnan(point.own)]
    by_hits = target.kind in (F_BETA, PRECISION, RECALL)
    few = [place for place in unused if by_hits and len(outcomes.by_class[place].hits) < FEWEST]
    no_better = [place for place in unused if target.kind == F_BETA and place not in few]
    reasons = (
        (lacking, "no object in the", "to choose by"),
        (wrong, "objects but no right detection in the", "to choose by"),
        (others, "no threshold that reaches the target in the", f"({target})"),
        (few, f"fewer than {FEWEST} right detections in the", "to choose by"),
        (no_better, "no threshold that is better on held-out", "than the common one"),
    )
    return [
        f"{_named(points, places)} {'has' if len(places) == 1 else 'have'} {what} {outcomes.unit} {end}, so "
        f"{'it has' if len(places) == 1 else 'they have'} the common threshold, {common:.3f}."
        for places, what, end in reasons
        if places
    ]


def _named(points: Sequence[ClassPoint], places: Sequence[int]) -> str:
    names = ", ".join(points[place].name for place in places[:_NAMED])
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f"{len(places)} {'class' if len(places) == 1 else 'classes'} ({names}{more})"
