"""From scored outcomes to one threshold per class: chosen, shrunk, with intervals from draws of images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.detection.bootstrap import draw_weights
from logn.evaluate.operating.choice import Choice, Draws, choose, shrunk
from logn.evaluate.operating.class_levels import above, logit
from logn.evaluate.operating.cross_fit import HeldOut, cross_fit
from logn.evaluate.operating.measured import METRICS, Estimate, Estimates, interval, measure
from logn.evaluate.operating.scored_outcomes import ScoredOutcomes
from logn.evaluate.operating.shrinkage import Trust
from logn.evaluate.operating.target import F_BETA, PRECISION, RECALL, Target
from logn.logits.arrays import FloatArray

Ints = npt.NDArray[np.int64]
# Numbers in the running sums of one chunk of draws.
NUMBERS_AT_ONCE = 20_000_000
# The share of the images that a draw with repetition leaves out.
_LEFT_OUT = float(np.exp(-1))


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """How thresholds are drawn again.

    Args:
        num_bootstrap: How many draws of images; 0 for none, and then nothing is shrunk.
        confidence: Of the intervals.
        seed: Of the draws.
    """

    num_bootstrap: int = 200
    confidence: float = 0.95
    seed: int = 0

    def chunks(self, outcomes: ScoredOutcomes, reference: ScoredOutcomes | None) -> Iterator[Draws]:
        """The draws, as many at a time as fit into memory."""
        weights = draw_weights(outcomes.num_units, self.num_bootstrap, self.seed).T
        at_once = max(1, NUMBERS_AT_ONCE // (2 * len(outcomes.labels) + outcomes.num_units + 1))
        for first in range(0, self.num_bootstrap, at_once):
            yield Draws(outcomes, np.ascontiguousarray(weights[:, first : first + at_once]), reference)


@dataclass(frozen=True, eq=False)
class ChosenPoints:
    """Thresholds that were chosen on some outcomes.

    Args:
        thresholds: `(F,)` one per class.
        ends: `(F, 2)` of their intervals; NaN without draws.
        own: `(F,)` before they were shrunk; NaN for a class without one of its own.
        weights: `(F,)` of the own threshold against the common one.
        common: One threshold for all classes.
        between: Variance of the true thresholds, in logits, around the common one.
        expected: What to expect on as many new images, by draws that choose on some images and measure on others.
        expected_common: The same with the common threshold.
        stability: The share of decisions that stay when thresholds are chosen on another draw; NaN without draws.
        held_out: The F-score on held-out folds; None for other targets, and for a single image.
    """

    thresholds: FloatArray
    ends: FloatArray
    own: FloatArray
    weights: FloatArray
    common: float
    between: float
    expected: Estimates
    expected_common: Estimates
    stability: float
    held_out: HeldOut | None


def choose_points(
    outcomes: ScoredOutcomes,
    target: Target,
    bootstrap: Bootstrap | None = None,
    *,
    reference: ScoredOutcomes | None = None,
) -> ChosenPoints:
    """Choose a threshold per class.

    For an F-score a class keeps the common threshold unless its own, shrunk, has a higher F-score on held-out folds.

    Args:
        outcomes: What can be kept, and what is right.
        target: What is wanted.
        bootstrap: Draws of images for intervals and for shrinking.
        reference: Outcomes of the uncorrected model, for `keep-counts`.
    """
    bootstrap = bootstrap or Bootstrap()
    if not len(outcomes.object_labels):
        raise InputError(f"Expected objects in the {outcomes.unit} that thresholds are chosen on, but there are none.")
    once = Draws.once(outcomes, reference)
    choice = choose(once, target)
    drawn = [choose(draws, target) for draws in bootstrap.chunks(outcomes, reference)]
    trust = _trust(outcomes, target, float(choice.common[0]), drawn)
    weights, between = trust.weights(logit(choice.own[:, 0]), float(logit(choice.common[0])))
    folds = cross_fit(outcomes, target, trust, bootstrap.seed) if target.kind == F_BETA else None
    if folds is not None:
        weights = np.where(folds.better(), weights, 0.0)
    wanted = shrunk(choice, weights, once, target)[:, 0]
    scores = outcomes.by_class
    final = np.array([one.settled(float(value)) for one, value in zip(scores, wanted, strict=True)])
    common = float(outcomes.pooled.settled(float(choice.common[0])))
    empty = ChosenPoints(
        final,
        np.full((len(final), 2), np.nan),
        choice.own[:, 0],
        weights,
        common,
        between,
        {},
        {},
        float("nan"),
        None if folds is None else folds.held_out(weights > 0),
    )
    return _with_draws(empty, outcomes, target, bootstrap, drawn, reference) if drawn else empty


def _trust(outcomes: ScoredOutcomes, target: Target, common: float, drawn: list[Choice]) -> Trust:
    """How far own thresholds are to be trusted: by their spread over draws, and by the decisions they are chosen by."""
    hits = np.array([len(one.hits) for one in outcomes.by_class])
    if target.kind in (F_BETA, PRECISION, RECALL):
        return Trust(_spread(drawn), hits)
    # False alarms count too: they are allotted, or only their number matters.
    return Trust(_spread(drawn), hits + [int(above(one.alarms, common)) for one in outcomes.by_class], fewest=0)


def _spread(drawn: list[Choice]) -> FloatArray | None:
    """`(F,)` variance of each own logit over the draws; NaN for a class with fewer than two."""
    if not drawn:
        return None
    values = logit(np.concatenate([one.own for one in drawn], axis=1))
    known = np.isfinite(values)
    count = np.maximum(known.sum(axis=1), 1)
    mean = np.where(known, values, 0.0).sum(axis=1) / count
    spread = np.where(known, (values - mean[:, None]) ** 2, 0.0).sum(axis=1) / count
    return np.where(known.sum(axis=1) > 1, spread, np.nan)


def _with_draws(
    chosen: ChosenPoints,
    outcomes: ScoredOutcomes,
    target: Target,
    bootstrap: Bootstrap,
    drawn: list[Choice],
    reference: ScoredOutcomes | None,
) -> ChosenPoints:
    """Add what draws say: choose on the drawn images, measure on those that were left out."""
    thresholds, found, found_common, fixed, fixed_common = [], [], [], [], []
    for draws, choice in zip(bootstrap.chunks(outcomes, reference), drawn, strict=True):
        shape = (outcomes.num_classes, draws.weights.shape[1])
        own, common = shrunk(choice, chosen.weights, draws, target), np.broadcast_to(choice.common, shape)
        left_out = Draws(outcomes, (draws.weights == 0).astype(np.int32))
        thresholds.append(own)
        found.append(measure(left_out, own))
        found_common.append(measure(left_out, common))
        fixed.append(measure(draws, np.broadcast_to(chosen.thresholds[:, None], shape)))
        fixed_common.append(measure(draws, np.full(shape, chosen.common)))
    every = np.concatenate(thresholds, axis=1)
    ends = np.array([interval(row, bootstrap.confidence) for row in every]).reshape(-1, 2)
    # The threshold itself was moved to where no rounding matters, its ends were not.
    ends[:, 0], ends[:, 1] = np.minimum(ends[:, 0], chosen.thresholds), np.maximum(ends[:, 1], chosen.thresholds)
    return ChosenPoints(
        chosen.thresholds,
        ends,
        chosen.own,
        chosen.weights,
        chosen.common,
        chosen.between,
        _expected(_joined(found), _joined(fixed), bootstrap.confidence),
        _expected(_joined(found_common), _joined(fixed_common), bootstrap.confidence),
        _stability(outcomes, chosen.thresholds, every),
        chosen.held_out,
    )


def _joined(parts: list[dict[str, FloatArray]]) -> dict[str, FloatArray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in METRICS}


def _expected(left_out: dict[str, FloatArray], fixed: dict[str, FloatArray], confidence: float) -> dict[str, Estimate]:
    """Mean over the images that were left out, with an interval for the number that as many new images will give.

    That number differs from the mean by the choice of thresholds, by these images and by the new ones. What is left out
    of a draw is only about 37 % of the images, whose numbers vary more than those of two whole sets do: the part of the
    variance that is of images, and not of the choice, is put right.
    """
    found = {}
    for name, values in left_out.items():
        known = values[~np.isnan(values)]
        if len(known) < 2:
            found[name] = Estimate(float(known.mean()) if len(known) else float("nan"))
            continue
        total, images = float(known.var()), float(np.nanvar(fixed[name]))
        wanted = max(total - images / _LEFT_OUT, 0.0) + 2 * images
        factor = float(np.sqrt(wanted / total)) if total > 0 else 1.0
        middle = float(known.mean())
        low, high = (middle + factor * (end - middle) for end in interval(known, confidence))
        found[name] = Estimate(middle, max(float(low), 0.0), float(high))
    return found


def _stability(outcomes: ScoredOutcomes, thresholds: FloatArray, drawn: FloatArray) -> float:
    """Of the decisions that either set of thresholds keeps, the share that both keep; the mean over draws."""
    shared, either = np.zeros(drawn.shape[1]), np.zeros(drawn.shape[1])
    for one, threshold, others in zip(outcomes.by_class, thresholds, drawn, strict=True):
        kept, again = int(above(one.scores, threshold)), above(one.scores, others)
        shared += np.minimum(kept, again)
        either += np.maximum(kept, again)
    return float(np.where(either > 0, shared / np.maximum(either, 1), 1.0).mean())


def measured_with_intervals(
    outcomes: ScoredOutcomes, thresholds: npt.ArrayLike, bootstrap: Bootstrap
) -> dict[str, Estimate]:
    """The metrics at given thresholds, with intervals over draws of images: for images that nothing was chosen on."""
    column = np.broadcast_to(np.asarray(thresholds, np.float64), outcomes.num_classes)[:, None]
    values = measure(Draws.once(outcomes), column)
    parts = [
        measure(draws, np.broadcast_to(column, (len(column), draws.weights.shape[1])))
        for draws in bootstrap.chunks(outcomes, None)
    ]
    drawn = _joined(parts) if parts else {}
    return {
        name: Estimate(float(value[0]), *interval(drawn.get(name, np.empty(0)), bootstrap.confidence))
        for name, value in values.items()
    }
