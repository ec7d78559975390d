"""A threshold per class behind a correction: chosen on labelled images, or given."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from logn.errors import InputError
from logn.matching.ground_truth import truth_of_predictions
from logn.methods.affine import ClassAffine
from logn.methods.recommend import NONE
from logn.models.opened import CorrectableModel
from logn.predictions.predict import predict
from logn.predictions.store import Predictions
from logn.statistics.moments import ClassMoments
from logn.thresholds.choose import Goal, operating_points, read_detections
from logn.thresholds.fold import points_for
from logn.thresholds.points import FoldedPoints, OperatingPoints
from logn.thresholds.scored_detections import DrawnDetections


def check_goal(thresholds: Any, labels: Any) -> None:
    """Refuse a goal that is none, or that has no labels to be chosen on, before the pass over the images."""
    if is_goal(thresholds):
        if labels is None:
            raise InputError("Thresholds are chosen on labelled images: pass `labels`.")
        Goal.parse(thresholds)


def is_goal(thresholds: Any) -> bool:
    """Whether `thresholds` say what to choose them for, rather than which they are.

    Example:
        >>> is_goal("precision=0.9"), is_goal({"car": 0.5})
        (True, False)
    """
    return isinstance(thresholds, str) and re.match(r"(f1|precision|recall|fppi)\b", thresholds) is not None


def with_thresholds(
    source: CorrectableModel,
    moments: Sequence[ClassMoments],
    fitted: ClassAffine,
    thresholds: Any,
    at: float,
    labels: Any,
    label_images: str | os.PathLike[str] | None,
) -> FoldedPoints:
    """The correction with a threshold per class behind it: chosen on labelled images, or given."""
    if len(moments) > 1:
        raise InputError(f"The model has {len(moments)} sets of class logits; thresholds fit a model with one.")
    correction = None if fitted.method == NONE else fitted
    at_output = source.scales_scores and moments[0].sample_objectness is not None
    if not is_goal(thresholds):
        points = _given_points(source, thresholds, correction, moments[0], at)
        return points.fold(at, at_output=at_output)
    with tempfile.TemporaryDirectory(prefix="logn-thresholds-") as folder:
        predict(source.detector, labels, folder, images=label_images)
        store = Predictions(folder)
        truth = truth_of_predictions(labels, store, allow_missing_classes=True)
        points = operating_points(store, truth, thresholds, correction, at=at)
        plain, _ = read_detections(store, truth)
        return replace(
            points.fold(at, store, at_output=at_output), uncorrected=DrawnDetections.once(plain).at(at)[:2, :, 0]
        )


def _given_points(
    source: CorrectableModel, thresholds: Any, correction: ClassAffine | None, moments: ClassMoments, at: float
) -> OperatingPoints:
    """Thresholds that exist; those of a file that has its own correction keep it."""
    points = points_for(thresholds, at, moments.head.class_names, source.name)
    if points.goal == "given":
        points = replace(points, correction=correction, head=moments.head)
    if source.scales_scores or points.head is None:
        return points
    return replace(points, head=replace(points.head, objectness=source.head.objectness))
