"""A sentence for those who are about to use a map that moves the scores of their model far."""

from __future__ import annotations

import numpy as np

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.form_preview import (
    CONFIDENCE,
    DEFAULT_THRESHOLD,
    FOREGROUND_MASS,
    FormEffect,
    check_threshold,
    map_effects,
    quantity_of,
)
from logn.calibrators.known_activation import assumed_activation, known_activation
from logn.statistics.moments import ClassMoments

# The foreground against the background is what the detector learnt best; a map that moves it further than this, either
# way, changes more than what differs between classes.
MASS_FACTOR = 2.0
# Spreading the same mass over more classes lowers single scores without harm; a tenth of the detections is a collapse.
DETECTIONS_FACTOR = 10.0


def form_warning(affine: ClassAffine, moments: ClassMoments, *, threshold: float = DEFAULT_THRESHOLD) -> str | None:
    """Say in one sentence that `affine` moves the scores far, or None when it does not or nobody can tell.

    Args:
        affine: The map that is about to be used.
        moments: Statistics of the same logits; without a row sample nothing can be told.
        threshold: The score above which the user counts a detection.

    Example:
        >>> from logn.statistics.metadata import StatisticsMetadata
        >>> moments = ClassMoments(3, sample_rows=100, metadata=StatisticsMetadata(background=0))
        >>> moments.update(np.random.default_rng(0).standard_normal((100, 3)) + [1.0, 0.0, 0.0])
        >>> form_warning(ClassAffine([1, 1, 1], [0, 0.1, 0.1], background=0), moments) is None
        True
        >>> print(form_warning(ClassAffine([1, 1, 1], [0, -4, -4], background=0), moments)[:66])
        This map lowers the foreground mass of the sampled rows from 0.497
    """
    rows = moments.sample.astype(np.float64)
    if len(rows) == 0 or affine.num_classes != moments.num_classes:
        return None
    made_for = None if affine.source is None else affine.source.activation
    known = known_activation(made_for or moments.metadata.activation, affine.background)
    activation = assumed_activation(known)
    check_threshold(threshold)
    before, (after,) = map_effects(rows, {"this": affine}, threshold, activation)
    quantity = quantity_of(affine.background, activation)
    change = change_in_words(before, after, quantity, threshold, balanced=_is_balanced(affine))
    subject = "If sigmoids follow the logits, this map" if known is None else "This map"
    return f"{subject} {change}" if change else None


def change_in_words(
    before: FormEffect, after: FormEffect, quantity: str, threshold: float, *, balanced: bool = False
) -> str:
    """The rest of a sentence whose subject is the map; empty when the change is small.

    With `balanced` the map is the balanced form already, which is then no way out.

    Example:
        >>> before, after = FormEffect("none", "", 0.2, 400.0, 0.0), FormEffect("logn", "", 0.01, 90.0, 0.4)
        >>> print(change_in_words(before, after, "foreground mass", 0.05)[:76])
        lowers the foreground mass of the sampled rows from 0.200 to 0.010: choose t
    """
    parts = []
    if _far(before.mass, after.mass, MASS_FACTOR):
        name = quantity if quantity == FOREGROUND_MASS else f"mean {quantity}"
        parts.append((after.mass < before.mass, f"the {name} of the sampled rows", _pair(before.mass, after.mass, 3)))
    # Scores above a threshold are no detections where every image has exactly one class.
    if quantity != CONFIDENCE and _far(before.detections, after.detections, DETECTIONS_FACTOR):
        lower = after.detections < before.detections
        numbers = _pair(before.detections, after.detections, 0) + " per 1,000 rows"
        parts.append((lower, f"the scores above {threshold:g}", numbers))
    if not parts:
        return ""
    told, previous = [], None
    for lower, what, numbers in parts:
        verb = "" if lower == previous else ("lowers " if lower else "raises ")
        told.append(f"{verb}{what} {numbers}")
        previous = lower
    return " and ".join(told) + _remedy(quantity, balanced)


def _far(before: float, after: float, factor: float) -> bool:
    """Whether the two differ by more than the factor; from nothing to nothing is no change."""
    return after * factor < before or before * factor < after


def _pair(before: float, after: float, digits: int) -> str:
    return f"from {before:.{digits}f} to {after:.{digits}f}"


def _is_balanced(affine: ClassAffine) -> bool:
    return affine.settings.get("margin") == "balance" and affine.settings.get("relative_std") is True


def _remedy(quantity: str, balanced: bool) -> str:
    if quantity == CONFIDENCE and balanced:
        return ": do not read its scores as probabilities, or keep the confidence on images that it was not trained on."
    if balanced:
        return ": choose the score threshold anew."
    if quantity == CONFIDENCE:
        return ": do not read its scores as probabilities, or use logn:balanced, which keeps the model's common scale."
    return ": choose the score threshold anew, or use logn:balanced, which keeps that mass."
