"""Choosing a threshold per class for a goal: the predictions of a detector with labels in, operating points out.

Each class's own threshold is shrunk towards the common one by as much as it is uncertain, and kept only where it is
better than the common one on held-out folds of the images.
"""

from __future__ import annotations

import itertools
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import DEFAULT_AT, FloatArray, sigmoid
from logn.errors import InputError, warn
from logn.matching.ground_truth import GroundTruth, other_images, truth_of_predictions
from logn.matching.match import match_detections
from logn.matching.results import read_results
from logn.methods.affine import ClassAffine
from logn.models.proposals import Postprocessing
from logn.predictions.decoder import DecodeSettings, decode
from logn.predictions.store import Predictions, is_store
from logn.thresholds.given import check_threshold
from logn.thresholds.points import ClassPoint, OperatingPoints
from logn.thresholds.scored_detections import (
    Bools,
    DrawnDetections,
    Ints,
    ScoredDetections,
    TriedThresholds,
    clipped_logit,
    measure,
    shares,
)

F1, PRECISION, RECALL, FALSE_ALARMS = "f1", "precision", "recall", "fppi"
GOALS = "f1, precision=0.9, recall=0.8 or fppi=1 (false alarms per image)"
# Right detections that a class must have for a threshold of its own.
FEWEST = 5
# Right detections that a class must have for its spread over draws to inform the spread of others.
ENOUGH = 10
FOLDS = 5
# The images are divided into folds this often: one partition of few images is noisy.
REPEATS = 4
# Results whose lowest score is above this look cut: detectors that users ship at 0.25 give many lower ones, and tools
# that cut do so at 0.05 or below.
HIGH_FLOOR = 0.06
# Why a class has the common threshold.
NO_OBJECTS, TOO_FEW = "no objects in these images", f"fewer than {FEWEST} right detections"
UNREACHED, NO_BETTER = "no threshold that reaches the goal", "no better threshold on held-out images"
# What a false alarm may cost in objects found, in logarithms; beyond it nothing changes any more.
_PRICES = (-16.0, 16.0)
# How far thresholds move together to meet a goal, in logits.
_MOVES = (-8.0, 32.0)
_HALVINGS = 30


@dataclass(frozen=True)
class Goal:
    """What thresholds are chosen for.

    In each class: `f1`, `precision=P` (as many objects as can be found at this precision), `recall=R` (the highest
    threshold that finds this share of the objects). Over all classes: `fppi=N` (as many objects as can be found with N
    false alarms per image).

    Args:
        kind: "f1", "precision", "recall" or "fppi".
        value: The number after the equals sign.

    Example:
        >>> Goal.parse("f1"), Goal.parse("fppi=0.5").is_joint
        (Goal(kind='f1', value=1.0), True)
        >>> Goal.parse("precision=90")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `goal` precision to be above 0 and at most 1, but got 90.
    """

    kind: str
    value: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Read a goal such as "recall=0.8"."""
        match = re.fullmatch(r"(f1)|(precision|recall|fppi)=(\d*\.?\d+)", str(text).strip())
        if match is None:
            raise InputError(f"Expected `goal` to be {GOALS}, but got {text!r}.")
        kind, value = match[1] or match[2], float(match[3] or 1)
        if not 0 < value <= (np.inf if kind == FALSE_ALARMS else 1):
            limit = "" if kind == FALSE_ALARMS else " and at most 1"
            raise InputError(f"Expected `goal` {kind} to be above 0{limit}, but got {value:g}.")
        return cls(kind, value)

    def __str__(self) -> str:
        return F1 if self.kind == F1 else f"{self.kind}={self.value:g}"

    def allows(self, alarms: Ints, images: Ints) -> Bools:
        """Whether as many false alarms are within `fppi`."""
        return np.asarray(alarms <= self.value * images + 1e-9)

    @property
    def is_joint(self) -> bool:
        """Whether it is over all classes together."""
        return self.kind == FALSE_ALARMS


@dataclass(frozen=True, eq=False)
class ChosenThresholds:
    """Thresholds that were chosen on some images.

    Args:
        thresholds: `(F,)` one per class.
        common: The one threshold for all classes, for the same goal.
        weights: `(F,)` of the own threshold against the common one, in logits; 0 is the common one.
        reasons: `(F,)` why a class has the common threshold; empty where it has its own.
    """

    thresholds: FloatArray
    common: float
    weights: FloatArray
    reasons: tuple[str, ...]


def operating_points(
    predictions: Any,
    labels: Any,
    goal: str = "f1",
    affine: ClassAffine | None = None,
    *,
    at: float = DEFAULT_AT,
    num_bootstrap: int = 200,
    **reading: Any,
) -> OperatingPoints:
    """Choose a score threshold for each class of a detector.

    Each class's own threshold is shrunk towards the common one by as much as it is uncertain. A class keeps the common
    threshold where it has too few objects, or where its own is no better on held-out images. The numbers of the result
    are held out too: those of each half of the images, with thresholds chosen on the other half.

    Args:
        predictions: What `logn predict` wrote (a path or a `logn.Predictions`), or a COCO results file of any tool.
        labels: Ground truth of the same images: COCO, LVIS or YOLO, or what was read of it.
        goal: "f1", "precision=0.9" or "recall=0.8" in each class; "fppi=1" (false alarms per image) over all classes.
        affine: A correction that comes before the thresholds; only with a store.
        at: The threshold that the model is used with, before and after.
        num_bootstrap: Draws of images for shrinking and for intervals; 0 for neither.
        reading: How detections are read, rarely needed: `iou` (0.5), from which overlap a detection is right; `style`,
            "lvis" for federated labels, "coco" where every class is annotated in every image, "auto" by default;
            `allow_missing_classes`, to leave out classes that the predictions do not have; `progress`, called with the
            number of images decoded.

    Example:
        >>> import json, tempfile
        >>> images = range(40)
        >>> labels = {"images": [{"id": n} for n in images], "categories": [{"id": 1, "name": "car"}],
        ...     "annotations": [{"id": n + 1, "image_id": n, "category_id": 1, "bbox": [0, 0, 9, 9]} for n in images]}
        >>> results = [{"image_id": n, "category_id": 1, "bbox": box, "score": score} for n in images
        ...     for box, score in (([0, 0, 9, 9], 0.2 + n / 100), ([20, 0, 9, 9], 0.05))]
        >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        ...     _ = file.write(json.dumps(results)), file.flush()
        ...     points = operating_points(file.name, labels)
        >>> bool(0.05 < points.thresholds[0] < 0.2), points.points[0].found_before, points.points[0].found
        (True, 35, 40)
    """
    wanted = Goal.parse(goal)
    check_threshold("threshold `at`", at)
    if num_bootstrap < 0:
        raise InputError(f"Expected `num_bootstrap` to be at least 0, but got {num_bootstrap}.")
    scored, how = read_detections(predictions, labels, affine, **reading)
    if not len(scored.labels):
        raise InputError("The predictions have no detections to choose thresholds on: predict again, at a lower score.")
    chosen = choose_thresholds(scored, wanted, num_bootstrap=num_bootstrap)
    single, per_class, note = _held_out(scored, chosen, wanted, num_bootstrap)
    levels = {f"{at:g} for all classes": np.array(at), "best single threshold": single, "per class": per_class}
    # Scores of 0 and 1: a threshold of one half keeps what these thresholds keep.
    kept = {name: replace(scored, scores=(scored.scores >= level).astype(np.float64)) for name, level in levels.items()}
    before, _, after = (DrawnDetections.once(decided).at(0.5)[:, :, 0] for decided in kept.values())
    columns = (chosen.thresholds, after[2], *after[:2], *before[:2])
    rows = zip(scored.class_names, *(column.tolist() for column in columns), chosen.reasons, strict=True)
    return replace(
        how,
        points=tuple(ClassPoint(*row) for row in rows),
        at=at,
        goal=str(wanted),
        common=chosen.common,
        summary={name: _summary(decided, num_bootstrap) for name, decided in kept.items()},
        notes=(note, *how.notes),
    )


def read_detections(
    predictions: Any,
    labels: Any,
    affine: ClassAffine | None = None,
    *,
    iou: float = 0.5,
    progress: Callable[[int], object] | None = None,
    **kinds: Any,
) -> tuple[ScoredDetections, OperatingPoints]:
    """The detections of a store or a results file with what is right, and how they were read, as points of no class.

    The arguments are those of `operating_points`.
    """
    if not 0 < iou <= 1:
        raise InputError(f"Expected `iou` to be above 0 and at most 1, but got {iou:g}.")
    head, settings = None, {}
    if isinstance(predictions, str | os.PathLike) and not os.path.exists(predictions):
        raise InputError(f"`{predictions}` does not exist.")
    if is_store(predictions):
        store = predictions if isinstance(predictions, Predictions) else Predictions(predictions)
        truth = labels if isinstance(labels, GroundTruth) else truth_of_predictions(labels, store, **kinds)
        if doubt := other_images(store, truth):
            warn(doubt)
        header, said = store.header, store.header.postprocessing or Postprocessing()
        head = replace(header.head, objectness=header.head.objectness and said.objectness != "added")
        if affine is not None:
            affine.check_fits(replace(head, source=None), "the predictions")
        limits = DecodeSettings().resolved(header)
        detections, floor = decode(store, affine, limits, progress=progress), limits.score_threshold
        settings = asdict(limits)
    elif affine is not None:
        raise InputError(f"`{predictions}` has no logits to correct: pass a folder of `logn predict`.")
    else:
        truth = truth_of_predictions(labels, **kinds)
        detections = read_results(predictions, truth)
        floor = float(detections.scores.min(initial=1.0))
        if len(detections.scores) and floor > HIGH_FLOOR:
            warn(
                f"The lowest score of `{predictions}` is {floor:.3g}, so no threshold below it can be chosen. Write "
                "the results anew, cut at a low score such as 0.01."
            )
    outcomes = match_detections(detections, truth, thresholds=np.array([iou]))
    settings |= {"labels": truth.style, "images": truth.num_images}
    federated = "False alarms count only in images where the labels say whether the class is there."
    notes = tuple(filter(None, (truth.note, federated if truth.style == "lvis" else "")))
    how = OperatingPoints((), correction=affine, head=head, settings=settings, notes=notes)
    return ScoredDetections.of(outcomes, truth, floor), how


def _held_out(
    scored: ScoredDetections, chosen: ChosenThresholds, goal: Goal, num_bootstrap: int
) -> tuple[FloatArray, FloatArray, str]:
    """For each detection the best single threshold and that of its class, chosen on the other half of the images."""
    half = np.random.default_rng(0).permutation(scored.num_images) % 2 == 0
    if len(np.unique(half[scored.object_images])) < 2:
        note = "Too few images to hold some out: the numbers are of the images that the thresholds were chosen on."
        return np.full(len(scored.labels), chosen.common), chosen.thresholds[scored.labels], note
    single, per_class = np.empty((2, len(scored.labels)))
    for part in (half, ~half):
        other = choose_thresholds(scored.part(~part), goal, num_bootstrap=num_bootstrap)
        inside = part[scored.images]
        single[inside], per_class[inside] = other.common, other.thresholds[scored.labels[inside]]
    note = (
        f"Numbers are held out: each half of the {scored.num_images:,} images with what was chosen on the other half. "
        "The thresholds themselves are chosen on all images."
    )
    return single, per_class, note


def _summary(decided: ScoredDetections, num_bootstrap: int) -> dict[str, list[float]]:
    """The metrics of the detections whose score is 1, with 95 % intervals over draws of images."""
    draws = itertools.chain([DrawnDetections.once(decided)], DrawnDetections.bootstrap(decided, num_bootstrap, 0))
    parts = [measure(draw, 0.5) for draw in draws]
    estimates = {}
    for name in parts[0]:
        values = np.concatenate([part[name] for part in parts])
        drawn = values[1:][~np.isnan(values[1:])]
        ends = np.quantile(drawn, [0.025, 0.975]).tolist() if len(drawn) > 1 else []
        estimates[name] = [float(values[0]), *ends]
    return estimates


def choose_thresholds(
    detections: ScoredDetections, goal: Goal, *, num_bootstrap: int = 200, seed: int = 0
) -> ChosenThresholds:
    """Choose a threshold per class.

    Args:
        detections: What can be kept, and what is right.
        goal: What is wanted.
        num_bootstrap: Draws of images that tell how uncertain each threshold is; 0 shrinks nothing.
        seed: Of the draws and folds.
    """
    if not len(detections.object_labels):
        raise InputError("The images have no objects to choose thresholds on.")
    once = DrawnDetections.once(detections)
    common, own = choose(once, goal)
    drawn = [choose(draws, goal)[1] for draws in DrawnDetections.bootstrap(detections, num_bootstrap, seed)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a class without a threshold in any draw
        spread = np.nanvar(clipped_logit(np.concatenate(drawn, axis=1)), axis=1) if drawn else None
    hits, _, objects = once.at(0.0)[:, :, 0]  # of all detections
    better = _better_on_held_out(detections, goal, spread, hits, seed)
    weights = np.where(better, _weights(common, own, spread, hits)[:, 0], 0.0)
    thresholds = shrunk(common, own, weights[:, None], once, goal)[:, 0]
    conditions = [weights > 0, objects == 0, hits < FEWEST, np.isnan(own[:, 0])]
    reasons = np.select(conditions, ["", NO_OBJECTS, TOO_FEW, UNREACHED], NO_BETTER).tolist()
    return ChosenThresholds(thresholds, float(common[0]), weights, tuple(reasons))


def choose(draws: DrawnDetections, goal: Goal) -> tuple[FloatArray, FloatArray]:
    """The common threshold `(B,)` and that of each class `(F, B)`, NaN where a class cannot meet the goal."""
    images, common = draws.images, choose_common(draws, goal)
    if goal.is_joint:
        return common, _allotted(draws.tried(), goal, images)
    own = [_of_one(tried, goal, images) for tried in draws.tried()]
    return common, np.array(own).reshape(len(own), len(images))


def choose_common(draws: DrawnDetections, goal: Goal) -> FloatArray:
    """The best single threshold `(B,)`."""
    (pooled,) = draws.pooled.tried()
    common = _of_one(pooled, goal, draws.images)
    return np.where(np.isnan(common), pooled.thresholds[-1 if goal.kind == RECALL else 0], common)


def _of_one(tried: TriedThresholds, goal: Goal, images: Ints) -> FloatArray:
    """The threshold `(B,)` of one class, or of all as one; NaN where the goal cannot be met."""
    hits, alarms, objects = tried.hits, tried.alarms, tried.objects
    if goal.kind == F1:
        value = hits / np.maximum(objects + hits + alarms, 1)
        met, place = value.max(axis=0) > 0, value.argmax(axis=0)
    elif goal.kind == RECALL:
        enough = (hits >= goal.value * objects - 1e-9) & (objects > 0)
        met, place = enough.any(axis=0), enough.argmax(axis=0)
    else:
        if goal.kind == PRECISION:
            allowed = (hits > 0) & (hits >= goal.value * (hits + alarms) - 1e-9)
        else:
            allowed = goal.allows(alarms, images)
        met, place = allowed.any(axis=0), len(allowed) - 1 - allowed[::-1].argmax(axis=0)  # the lowest that is allowed
    return np.where(met, tried.thresholds[place], np.nan)


def _allotted(classes: Sequence[TriedThresholds], goal: Goal, images: Ints) -> FloatArray:
    """Thresholds `(F, B)` that find most objects within the false alarms allowed over all classes.

    At a price of a false alarm in objects, each class takes the threshold with the most objects less the price of its
    false alarms: a corner of the concave hull of its curve. The lowest price that the goal allows is found by
    bisection.
    """
    columns = np.arange(len(images))

    def taken(price: FloatArray) -> list[Ints]:
        return [(tried.hits - np.exp(price) * tried.alarms).argmax(axis=0) for tried in classes]

    def allowed(price: FloatArray) -> Bools:
        alarms = [tried.alarms[place, columns] for tried, place in zip(classes, taken(price), strict=True)]
        return goal.allows(np.asarray(np.sum(alarms, axis=0, dtype=np.int64)), images)

    picked = zip(classes, taken(_least(_PRICES, len(images), allowed)), strict=True)
    return np.array([tried.thresholds[place] for tried, place in picked]).reshape(len(classes), len(images))


def shrunk(common: FloatArray, own: FloatArray, weights: FloatArray, draws: DrawnDetections, goal: Goal) -> FloatArray:
    """Thresholds `(F, B)` between those of the classes and the common one, in logits.

    With a goal over all classes, those with a threshold of their own then move together until it is met again.

    Args:
        common: `(B,)` common thresholds.
        own: `(F, B)` of each class; NaN takes the common one.
        weights: `(F, B)` or `(F, 1)` of the own threshold; 0 for the common one.
        draws: What they were chosen on.
        goal: The goal.
    """
    base = clipped_logit(common)
    mixed = base + np.where(np.isnan(own), 0.0, weights * (clipped_logit(np.nan_to_num(own, nan=0.5)) - base))
    if goal.is_joint and (weights < 1).any():
        moves = np.broadcast_to(weights > 0, mixed.shape)
        mixed = mixed + moves * offset_to_meet(mixed, moves, draws, goal)
    return sigmoid(mixed)


def offset_to_meet(logits: FloatArray, moves: Bools, draws: DrawnDetections, goal: Goal) -> FloatArray:
    """The least common move `(B,)` of some threshold logits `(F, B)` that meets the goal over all classes."""

    def allowed(move: FloatArray) -> Bools:
        return goal.allows(draws.at(sigmoid(logits + moves * move))[1].sum(axis=0), draws.images)

    return _least(_MOVES, draws.size, allowed)


def _least(ends: tuple[float, float], size: int, allowed: Callable[[FloatArray], Bools]) -> FloatArray:
    """The least value `(B,)` between the ends that is allowed, as all above it are; by bisection."""
    low, high = (np.full(size, end) for end in ends)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = allowed(middle)
        high, low = np.where(fits, middle, high), np.where(fits, low, middle)
    return high


def _better_on_held_out(
    detections: ScoredDetections, goal: Goal, spread: FloatArray | None, right: Ints, seed: int
) -> Bools:
    """`(F,)` the classes whose own threshold, chosen on other folds, is better on held-out images.

    For `f1` the F1 of the class decides, for `precision` and `recall` how near the goal it comes. For `fppi` all
    classes go together: they need to find more objects at the same number of false alarms.
    """
    count = min(FOLDS, detections.num_images)
    if count < 2:
        return np.zeros(detections.num_classes, bool)
    rng = np.random.default_rng(seed)
    folds = np.array([rng.permutation(detections.num_images) % count for _ in range(REPEATS)])
    totals = np.zeros((2, 3, detections.num_classes))  # common and own; hits, false alarms and objects
    for partition, fold in itertools.product(folds, range(count)):
        train, test = (DrawnDetections.once(detections.part((partition == fold) == side)) for side in (False, True))
        common, own = choose(train, goal)
        own = shrunk(common, own, _weights(common, own, spread, right), train, goal)
        for side, thresholds in enumerate((np.broadcast_to(common, own.shape), own)):
            logits = clipped_logit(thresholds)
            offset = offset_to_meet(logits, np.ones(own.shape, bool), test, goal) if goal.is_joint else 0.0
            totals[side] += test.at(sigmoid(logits + offset))[:, :, 0]
    gains = _score(goal, *totals[1]) - _score(goal, *totals[0])
    better: Bools = (gains.sum(keepdims=True) if goal.is_joint else gains) > 0
    return np.broadcast_to(better, gains.shape)


def _score(goal: Goal, hits: FloatArray, alarms: FloatArray, objects: FloatArray) -> FloatArray:
    """`(F,)` how good thresholds are; higher is better."""
    if goal.is_joint:
        return hits
    share = np.nan_to_num(shares(hits, alarms, objects)["F1" if goal.kind == F1 else goal.kind])
    return share if goal.kind == F1 else -np.abs(share - goal.value)


def _weights(common: FloatArray, own: FloatArray, spread: FloatArray | None, hits: Ints) -> FloatArray:
    """`(F, 1)` weight of each own threshold: 0 with too few right detections, 1 for the others without draws."""
    weights = np.where(np.isfinite(own), 1.0, 0.0)
    if spread is not None:
        weights = shrinkage_weights(clipped_logit(own[:, 0]), float(clipped_logit(common[0])), spread, hits)[0][:, None]
    return np.where((hits >= FEWEST)[:, None], weights, 0.0)


def shrinkage_weights(
    own: FloatArray, common: float, spread: FloatArray, decisions: npt.ArrayLike
) -> tuple[FloatArray, float]:
    """The weight of each class's own threshold against the common one, and the variance between classes.

    The own logit of a class is taken to be normal around its true one with a variance `v_c`, the true ones to be normal
    around the common one with a variance `t2`, and the weight is `t2 / (t2 + v_c)`. `v_c` is the variance over draws of
    images, but at least `s2 / n_c`, with n_c the decisions of the class and s2 the median of `n_c v_c` over classes
    with ten or more: all draws of a class with one object give the same threshold. `t2` is where the sum of
    `(own - common)^2 / (t2 + v_c)` is the number of classes (Paule and Mandel), over classes with ten or more.

    Args:
        own: `(F,)` logit of each class's own threshold; NaN for a class without one, which gets the weight 0.
        common: Logit of the common threshold.
        spread: `(F,)` variance of each over draws of images; NaN where it is unknown.
        decisions: `(F,)` how many decisions of the class there are to choose by.

    Example:
        >>> own, spread = np.array([2.0, -2.0, 2.0]), np.array([0.1, 0.1, 0.1])
        >>> weights, between = shrinkage_weights(own, 0.0, spread, [100, 100, 2])
        >>> weights.round(2).tolist(), round(between, 1)
        ([0.98, 0.98, 0.44], 3.9)
    """
    count = np.asarray(decisions, np.float64)
    present = np.isfinite(own) & (count > 0)
    sure = present & (count >= ENOUGH) & np.isfinite(spread)
    weights = np.zeros(len(own))
    if not sure.any():
        return weights, 0.0  # no class tells how much a threshold moves from draw to draw
    pooled = float(np.median((count * spread)[sure]))
    variance = np.maximum(np.nan_to_num(spread), pooled / np.maximum(count, 1))
    variance = np.maximum(variance, 1e-6)
    between = _between((own - common)[sure] ** 2, variance[sure])
    weights[present] = between / (between + variance[present])
    return weights, between


def _between(squares: FloatArray, variance: FloatArray) -> float:
    """The variance between classes: 0 where their spread is no larger than that of the draws."""
    if (squares / variance).sum() <= len(squares):
        return 0.0
    ends = 0.0, float(squares.sum()) + 1.0
    return float(
        _least(ends, 1, lambda between: (squares / (between + variance)).sum(keepdims=True) <= len(squares))[0]
    )
