"""Folding operating points: the map after which one global threshold acts as all of them, and what it changes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.evaluate.classification.logits import open_logits
from logn.evaluate.decode.decoder import DecodeSettings, decode
from logn.evaluate.decode.detections import Detections
from logn.evaluate.operating.class_levels import logit
from logn.evaluate.operating.points import DECODED, DETECTION, TOP_1, OperatingPoints
from logn.evaluate.operating.shift_solver import FoldRows, agreement, solve_shifts
from logn.evaluate.store.store import PredictionStore
from logn.logits.arrays import FloatArray, sigmoid

METHOD = "operating points"
# Where there are no draws to say how many decisions are stable anyway.
LEAST_KEPT = 0.95
# Numbers of the rows that shifts are solved on.
MOST_NUMBERS = 30_000_000
# Rows whose scores come within this factor of a threshold can change sides while shifts are solved.
_NEAR = 0.25


@dataclass(frozen=True)
class Folded:
    """A map with the shares of what thresholds per class keep that one threshold keeps too; NaN where not measured.

    Args:
        affine: The correction, then the shifts.
        at: The one threshold.
        kept: Of the detections that either keeps, those that both keep, with suppression within classes and no limit.
        limited: The same under the limit per image that the points were chosen with.
        agnostic: The same with suppression across classes.
        is_exact: Whether nothing can change, by construction.
    """

    affine: ClassAffine
    at: float
    kept: float
    limited: float = math.nan
    agnostic: float = math.nan
    is_exact: bool = False

    def describe(self) -> str:
        """Say what stays and what changes."""
        if self.is_exact:
            text = f"One threshold, {self.at:g}, keeps exactly what the thresholds per class keep"
        else:
            text = f"One threshold, {self.at:g}, keeps {100 * self.kept:.1f} % of what the thresholds per class keep"
        if math.isnan(self.limited):
            return f"{text}."
        return (
            f"{text}; with the limit per image {100 * self.limited:.1f} % stays, with suppression across classes "
            f"{100 * self.agnostic:.1f} %, since both compare scores of different classes, which were shifted."
        )


def fold_points(points: OperatingPoints, at: float, predictions: Any, *, at_least: float | None) -> Folded:
    """Make the map of `OperatingPoints.affine`, and measure it where there are predictions to measure it on."""
    if not 0 < at < 1:
        raise InputError(f"Expected `at` to lie between 0 and 1, but got {at:g}.")
    if points.method != "none" and points.correction is None:
        raise InputError(
            f"Expected an affine correction before the points to fold them, but `{points.method}` is none: use the "
            "thresholds per class instead."
        )
    opened = _opened(points, predictions)
    power = float(points.settings.get("score_power", 1.0))
    # A score that is a power of the model's own is compared with the power of a threshold.
    start = logit(at ** (1 / power)) - logit(points.thresholds ** (1 / power))
    is_exact = why_inexact(points) == ""
    if is_exact:
        shifts = start
    elif opened is None:
        raise InputError(
            "Expected `predictions`, those that the points were chosen on, since the shifts of "
            f"{why_inexact(points)} have to be solved on them, but got none."
        )
    else:
        shifts = _solved(points, opened, at, start)
    affine = _whole_map(points, shifts, at)
    if opened is None:
        return Folded(affine, at, 1.0, is_exact=is_exact)
    folded = _measured(points, opened, affine, at)
    level = at_least if at_least is not None else _level(points)
    if is_exact:
        return replace(folded, is_exact=folded.kept == 1.0)
    if folded.kept < level:
        raise InputError(
            f"Expected one threshold to keep at least {100 * level:.1f} % of what the thresholds per class keep, but "
            f"with {why_inexact(points)} it keeps {100 * folded.kept:.1f} %: use the thresholds per class, a threshold "
            f"(`at`, `--threshold`) nearer to the common one, {points.common:.3f}, or a lower `at_least` "
            "(`--at-least`)."
        )
    return folded


def _level(points: OperatingPoints) -> float:
    """Below this a fold changes more than choosing the points on another draw of the same images does."""
    return LEAST_KEPT if math.isnan(points.stability) else points.stability


def why_inexact(points: OperatingPoints) -> str:
    """Why shifts alone cannot be exact; empty where they are."""
    if points.activation == "softmax":
        return "a softmax"
    if points.settings.get("objectness"):
        return "sigmoids with an objectness"
    # Shifts change which class of a box is the best.
    return "" if points.settings.get("multi_label", True) else "only the best class of a box"


def _opened(points: OperatingPoints, predictions: Any) -> PredictionStore | FloatArray | None:
    """The store or the logits, whose classes must be those of the points."""
    if predictions is None:
        return None
    if points.task != DETECTION:
        rows = np.concatenate([block for _, block in open_logits(predictions).blocks()])
        if rows.shape[1] != len(points.points):
            raise InputError(
                f"Expected `predictions` to have the {len(points.points)} classes of the points, but got "
                f"{rows.shape[1]}."
            )
        return rows
    store = PredictionStore(predictions) if isinstance(predictions, str | os.PathLike) else predictions
    names = store.header.class_names
    if store.num_classes != len(points.points) or (names is not None and names != points.class_names):
        raise InputError("Expected `predictions` to be of the classes of the points, but they are of others.")
    return store


def _whole_map(points: OperatingPoints, shifts: FloatArray, at: float) -> ClassAffine:
    settings = {"target": points.target, "at": at}
    whole = np.zeros(_num_columns(points))
    whole[_columns(points)] = shifts
    after = ClassAffine(np.ones_like(whole), whole, points.background, METHOD, settings, points.source)
    return after if points.correction is None else points.correction.then(after)


def _columns(points: OperatingPoints) -> list[int]:
    """The column of the logits of each class."""
    return list(points.settings.get("columns", range(len(points.points))))


def _num_columns(points: OperatingPoints) -> int:
    return int(points.settings.get("num_columns", len(points.points)))


def _solved(points: OperatingPoints, opened: PredictionStore | FloatArray, at: float, start: FloatArray) -> FloatArray:
    power = float(points.settings.get("score_power", 1.0))
    at, thresholds = at ** (1 / power), points.thresholds ** (1 / power)
    rows = _rows_to_solve(points, opened, at, thresholds, start)
    wanted = rows.scores() >= thresholds
    # Beside a background the formula for sigmoids is nearly right; without one a common shift does nothing.
    solved = [solve_shifts(rows, wanted, at, begin) for begin in (start, np.zeros_like(start))]
    return max(solved, key=lambda shifts: agreement(wanted, rows.scores(shifts) >= at))


def _rows_to_solve(
    points: OperatingPoints, opened: PredictionStore | FloatArray, at: float, thresholds: FloatArray, start: FloatArray
) -> FoldRows:
    """The rows that are near a threshold now or after the shifts to start from; of very many, those of some images."""
    found, objectness, numbers = [], [], 0
    only_best = points.task == TOP_1 or not points.settings.get("multi_label", True)
    columns = tuple(_columns(points))
    for logits, presence in _blocks(opened):
        mapped = logits if points.correction is None else np.asarray(points.correction(logits))
        rows = FoldRows(mapped, points.activation, columns, presence, only_best)
        near = (rows.scores() >= _NEAR * thresholds).any(axis=1)
        near |= (rows.scores(start) >= _NEAR * at).any(axis=1)
        found.append(mapped[near])
        objectness.append(None if presence is None else presence[near])
        numbers += found[-1].size
        if numbers > MOST_NUMBERS:
            break
    known = [part for part in objectness if part is not None]
    return FoldRows(
        np.concatenate(found), points.activation, columns, np.concatenate(known) if known else None, only_best
    )


def _blocks(
    opened: PredictionStore | FloatArray,
) -> Iterator[tuple[FloatArray, FloatArray | None]]:
    if isinstance(opened, np.ndarray):
        yield opened, None
        return
    # Images from all over, should there be too many rows.
    for index in np.random.default_rng(0).permutation(len(opened)).tolist():
        proposals = opened[index]
        presence = proposals.objectness
        yield (
            np.asarray(proposals.logits, np.float64),
            None if presence is None else sigmoid(presence),
        )


def _measured(points: OperatingPoints, opened: PredictionStore | FloatArray, affine: ClassAffine, at: float) -> Folded:
    if isinstance(opened, np.ndarray):
        before = opened if points.correction is None else np.asarray(points.correction(opened))
        columns, best = tuple(_columns(points)), points.task == TOP_1
        plain = FoldRows(before, points.activation, columns, None, best).scores() >= points.thresholds
        folded = FoldRows(np.asarray(affine(opened)), points.activation, columns, None, best).scores() >= at
        return Folded(affine, at, agreement(plain, folded))
    settings = DecodeSettings(**{name: points.settings[name] for name in DECODED if name in points.settings})
    unlimited = replace(settings, max_detections=None)
    return Folded(
        affine,
        at,
        kept=_share(points, opened, affine, at, unlimited),
        limited=_share(points, opened, affine, at, settings),
        agnostic=_share(points, opened, affine, at, replace(unlimited, nms="class-agnostic")),
    )


def _share(
    points: OperatingPoints, store: PredictionStore, affine: ClassAffine, at: float, settings: DecodeSettings
) -> float:
    """Of the detections that either way keeps, those that both keep."""
    floor = max(float(points.thresholds.min()) * (1 - 1e-6), 0.0)
    plain = decode(store, points.correction, replace(settings, score_threshold=floor))
    folded = decode(store, affine, replace(settings, score_threshold=at))
    plain = plain.take(plain.scores.astype(np.float64) >= points.thresholds[plain.labels])
    left, right = _names(plain, store), _names(folded, store)
    shared = len(np.intersect1d(left, right))
    either = len(left) + len(right) - shared
    return shared / either if either else 1.0


def _names(detections: Detections, store: PredictionStore) -> npt.NDArray[np.int64]:
    """A number for each detection, the same for the same proposal and class of an image."""
    places = detections.image_index.astype(np.int64) * (1 << 24) + detections.proposal
    numbers: npt.NDArray[np.int64] = places * store.num_classes + detections.labels
    return numbers
