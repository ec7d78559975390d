"""Folding thresholds: what one threshold needs to act as one per class, and what that changes.

For sigmoids it is a shift of each logit, with an objectness in an ONNX file a factor of each class score at the output;
both are exact. For a softmax the shifts are solved on predictions: the score of a class grows with its own shift, so
every row has a critical shift per class, at which it begins to be kept, and given the shifts of the others the best one
of a class is found by sorting. This is repeated until nothing moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.affine import ClassAffine
from logn.errors import InputError
from logn.evaluate.decode.decoder import DecodeSettings, decode
from logn.evaluate.store.store import PredictionStore
from logn.evaluate.thresholds.points import OperatingPoints, check_threshold
from logn.logits.arrays import FloatArray, sigmoid, softmax
from logn.statistics.moments import StatisticsMetadata

Bools = npt.NDArray[np.bool_]
# Settings of the decoder that the points depend on.
DECODED = ("nms", "nms_iou", "multi_label", "max_detections", "min_box_size")
MOST_SWEEPS = 12
# Numbers in the rows that shifts are solved on.
MOST_NUMBERS = 30_000_000
# Rows whose scores come within this factor of a threshold may change sides while shifts are solved.
_NEAR = 0.25


@dataclass(frozen=True, eq=False)
class FoldedPoints:
    """A map, with the share of what thresholds per class keep that one threshold keeps too; NaN where not measured.

    Args:
        affine: The correction, then the shifts.
        at: The one threshold.
        kept: Of the detections that either keeps, those that both keep, with NMS within classes and no cap.
        capped: The same with the cap per image that the points were chosen with.
        agnostic: The same with class-agnostic NMS.
        is_exact: Whether the fold is exact by construction.
        factors: `(F,)` of the class scores at the output of a model with an objectness; None where the shifts do it.
    """

    affine: ClassAffine
    at: float
    kept: float = math.nan
    capped: float = math.nan
    agnostic: float = math.nan
    is_exact: bool = True
    factors: FloatArray | None = None

    def describe(self) -> str:
        """What stays and what changes."""
        if self.is_exact:
            text = f"One threshold, {self.at:g}, acts exactly as the thresholds per class."
        else:
            text = f"One threshold, {self.at:g}, keeps {100 * self.kept:.1f} % of what the thresholds per class keep."
        if self.factors is not None:
            text += " Since the model has an objectness, its class scores are scaled at the output"
            text += " and may exceed 1." if self.factors.max() > 1 else "."
        if self.is_exact and self.kept < 1:
            text += f" With one class per box {100 * self.kept:.1f} % stays."
        if math.isnan(self.capped):
            return f"{text} Class-agnostic NMS and a cap per image compare classes, so they may choose differently."
        shares = f"{100 * self.capped:.1f} % stays, with class-agnostic NMS {100 * self.agnostic:.1f} %"
        return f"{text} With the cap per image {shares}."


def fold_points(
    points: OperatingPoints, at: float, predictions: Any, at_least: float, *, at_output: bool = False
) -> FoldedPoints:
    """What `OperatingPoints.fold` gives; `at_output` scales the class scores at the output, beside an objectness."""
    check_threshold("threshold `at`", at)
    store = _opened(points, predictions)
    thresholds = points.thresholds
    shifts = _log_odds(at) - _log_odds(thresholds)
    is_softmax = points.activation == "softmax"
    if at_output:
        folded = FoldedPoints(_whole_map(points, 0 * shifts, at), at, factors=at / thresholds)
    elif points.settings.get("objectness"):
        raise InputError(
            "No shift of the logits acts as thresholds on scores that an objectness multiplies. Save the thresholds "
            "and fold them into an ONNX file: `logn fold MODEL.onnx --thresholds FILE`."
        )
    elif not is_softmax:
        folded = FoldedPoints(_whole_map(points, shifts, at), at)
    elif store is None:
        raise InputError("Thresholds for a softmax are folded with predictions to solve the shifts on: pass a store.")
    else:
        solved = _solved(points, store, at, thresholds, shifts)
        folded = FoldedPoints(_whole_map(points, solved, at), at, is_exact=False)
    if store is not None:
        folded = measure_folded(points, store, folded)
    if is_softmax and folded.kept < at_least:
        nearer = "" if points.common is None else f" (`at`) nearer to the common one, {points.common:.3g}"
        raise InputError(
            f"With a softmax, one threshold of {at:g} keeps {100 * folded.kept:.1f} % of what the thresholds per class "
            f"keep, less than {100 * at_least:.0f} %: choose a threshold{nearer}, or apply the thresholds per class to "
            "the detections."
        )
    return folded


def _log_odds(probability: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(probability) - np.log1p(-probability)


def _opened(points: OperatingPoints, predictions: Any) -> PredictionStore | None:
    """The store, whose classes must be those of the points."""
    if predictions is None:
        return None
    store = predictions if isinstance(predictions, PredictionStore) else PredictionStore(predictions)
    names = store.header.class_names
    if store.num_classes != len(points.points) or (names is not None and names != points.class_names):
        raise InputError(f"The predictions in `{store.path}` and the thresholds are of different classes.")
    return store


def _columns(points: OperatingPoints) -> list[int]:
    """The column of the logits of each class."""
    return list(points.settings.get("columns", range(len(points.points))))


def _whole_map(points: OperatingPoints, shifts: FloatArray, at: float) -> ClassAffine:
    whole = np.zeros(points.settings.get("num_columns", len(shifts)))
    whole[_columns(points)] = shifts
    source = points.source or StatisticsMetadata(points.class_names, activation=points.activation)
    settings = {"goal": points.goal, "at": at}
    after = ClassAffine(np.ones(len(whole)), whole, source.background, "thresholds", settings, source)
    return after if points.correction is None else points.correction.then(after)


def _solved(
    points: OperatingPoints, store: PredictionStore, at: float, thresholds: FloatArray, start: FloatArray
) -> FloatArray:
    """Shifts `(F,)`, solved on rows near a threshold, now or after the first shifts; of very many, on some images."""
    columns, parts, size = _columns(points), [np.empty((0, store.num_columns))], 0
    for index in np.random.default_rng(0).permutation(len(store)).tolist():
        logits = np.asarray(store[index].logits, np.float64)
        logits = logits if points.correction is None else points.correction(logits)
        near = (shifted_scores(logits, columns, 0.0) >= _NEAR * thresholds) | (
            shifted_scores(logits, columns, start) >= _NEAR * at
        )
        parts.append(logits[near.any(axis=1)])
        size += parts[-1].size
        if size > MOST_NUMBERS:
            break
    rows = np.concatenate(parts)
    wanted = shifted_scores(rows, columns, 0.0) >= thresholds
    # Beside a background the formula for sigmoids is nearly right; without one a common shift does nothing.
    solved = [solve_shifts(rows, columns, wanted, at, first) for first in (start, np.zeros_like(start))]
    return max(solved, key=lambda shifts: agreement(wanted, shifted_scores(rows, columns, shifts) >= at))


def measure_folded(points: OperatingPoints, store: PredictionStore, folded: FoldedPoints) -> FoldedPoints:
    """The fold with the shares that stay, on these predictions."""
    settings = DecodeSettings(**{name: points.settings[name] for name in DECODED if name in points.settings})
    uncapped = replace(settings, max_detections=None)
    ways = (uncapped, settings, replace(uncapped, nms="class-agnostic"))
    kept, capped, agnostic = (_share(points, store, folded, way) for way in ways)
    return replace(folded, kept=kept, capped=capped, agnostic=agnostic)


def _share(points: OperatingPoints, store: PredictionStore, folded: FoldedPoints, settings: DecodeSettings) -> float:
    """Of the detections that either way keeps, those that both keep."""
    floor = float(points.thresholds.min()) * (1 - 1e-6)
    plain = decode(store, points.correction, replace(settings, score_threshold=floor))
    plain = plain.take(plain.scores.astype(np.float64) >= points.thresholds[plain.labels])
    # A common factor changes no decision, and keeps the scores below 1.
    factors = np.ones(1) if folded.factors is None else folded.factors
    limits = replace(settings, score_threshold=folded.at / float(factors.max()))

    def scaled(logits: Any) -> Any:
        mapped = folded.affine(logits)
        mapped[:, _columns(points)] = _log_odds(sigmoid(mapped[:, _columns(points)]) * factors / factors.max())
        return mapped

    one = decode(store, folded.affine if folded.factors is None else scaled, limits)
    left, right = (
        set(zip(kept.image_index.tolist(), kept.proposal.tolist(), kept.labels.tolist(), strict=True))
        for kept in (plain, one)
    )
    return len(left & right) / len(left | right) if left or right else 1.0


def shifted_scores(logits: FloatArray, columns: list[int], shifts: FloatArray | float) -> FloatArray:
    """`(R, F)` softmax scores of the classes in these columns, with these shifts."""
    moved = logits.copy()
    moved[:, columns] += shifts
    return softmax(moved)[:, columns]


def agreement(left: Bools, right: Bools) -> float:
    """Of what either keeps, the share that both keep; 1 where neither keeps anything.

    Example:
        >>> agreement(np.array([True, True, False]), np.array([True, False, False]))
        0.5
    """
    either = int((left | right).sum())
    return int((left & right).sum()) / either if either else 1.0


def solve_shifts(logits: FloatArray, columns: list[int], wanted: Bools, at: float, start: FloatArray) -> FloatArray:
    """Shifts `(F,)` with which the threshold `at` keeps as much as possible of what is wanted, and little else.

    Args:
        logits: `(R, C)` with the background, where there is one.
        columns: `(F,)` the column of each class.
        wanted: `(R, F)` what is to be kept.
        at: The one threshold.
        start: `(F,)` shifts to start from; the result is never worse.
    """
    shifts = best = start.copy()
    share = agreement(wanted, shifted_scores(logits, columns, start) >= at)
    for _ in range(MOST_SWEEPS):
        moved = _sweep(logits, columns, wanted, at, shifts)
        reached = agreement(wanted, shifted_scores(logits, columns, moved) >= at)
        if reached > share:
            share, best = reached, moved
        if share == 1.0 or np.array_equal(moved, shifts):
            break
        shifts = moved
    return best


def _sweep(logits: FloatArray, columns: list[int], wanted: Bools, at: float, shifts: FloatArray) -> FloatArray:
    """Each class once, given all others."""
    moved, shifted = shifts.copy(), logits.copy()
    shifted[:, columns] += shifts
    peak = shifted.max(axis=1)
    exponentials = np.exp(shifted - peak[:, None])
    total = exponentials.sum(axis=1)
    for label, column in enumerate(columns):
        others = np.maximum(total - exponentials[:, column], 1e-300)
        critical = _log_odds(at) - logits[:, column] + np.log(others) + peak
        moved[label] = best_cut(critical, wanted[:, label], float(shifts[label]))
        exponentials[:, column] = np.exp(logits[:, column] + moved[label] - peak)
        total = others + exponentials[:, column]
    return moved


def best_cut(critical: FloatArray, wanted: Bools, now: float) -> float:
    """The shift that keeps the wanted rows and drops the others, with the fewest mistakes.

    A row is kept from its critical shift on. Ties go to the shift nearest to `now`, in the middle of its gap unless
    `now` lies in the gap.

    Example:
        >>> best_cut(np.array([1.0, 2.0, 5.0]), np.array([True, True, False]), 9.0)
        3.5
        >>> best_cut(np.array([1.0, 2.0, 5.0]), np.array([True, True, False]), 3.0)
        3.0
    """
    if not len(critical):
        return now
    order = np.argsort(critical, kind="stable")
    values, flags = critical[order], wanted[order]
    # After the first k rows: those of them that are unwanted are mistakes, and so are the wanted ones behind them.
    mistakes = np.concatenate([[0], np.cumsum(~flags)]) + flags.sum() - np.concatenate([[0], np.cumsum(flags)])
    low = np.concatenate([[values[0] - 2.0], values])
    high = np.concatenate([values, [values[-1] + 2.0]])
    candidates = np.flatnonzero((mistakes == mistakes[high > low].min()) & (high > low))
    if ((low[candidates] < now) & (now < high[candidates])).any():
        return now
    middle = (low[candidates] + high[candidates]) / 2
    return float(middle[np.abs(middle - now).argmin()])
