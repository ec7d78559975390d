"""Everything that is measured about one method of a detector, from its detections."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.comparison.method_fitting import LogitMap
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.bootstrap import bootstrap_metrics
from logn.evaluate.detection.class_groups import Groups
from logn.evaluate.detection.fixed_and_pool import average_precision_pool
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.matching import MatchedDetections, match_detections
from logn.evaluate.detection.metrics import calibration_error, evaluate_detections, rows_within_limits
from logn.evaluate.detection.protocol import EvaluationProtocol
from logn.evaluate.detection.recall_at_count import NONE_UNVERIFIED, UnverifiedScores, counts_above, recall_at_count
from logn.evaluate.detection.threshold_curve import ThresholdCurve
from logn.evaluate.detection.tide import error_types
from logn.evaluate.thresholds.points import DEFAULT_AT

# Matched detections by the suffix of the metrics they give: "" for boxes, "-mask" for masks; and the right ones among
# those that are kept at an equal count, by the metric that they give.
Matched = Mapping[str, MatchedDetections]


@dataclass(frozen=True, eq=False)
class MethodDetections:
    """One method's detections.

    Args:
        name: The method as it was asked for.
        capped: Under the limit per image.
        fixed: Under the limit per class, for AP-Fixed.
        masks: Of `capped`, for mask AP.
        looked_at: All detections of the images that the report looks at, those of unverified classes too.
        transform: The map of logits that made them.
        notes: What to know before reading the numbers.
        unverified: Detections of classes that were not looked for, unless `capped` has them.
    """

    name: str
    capped: Detections
    fixed: Detections | None = None
    masks: Sequence[Any] | None = None
    looked_at: Detections | None = None
    transform: LogitMap = None
    notes: tuple[str, ...] = ()
    unverified: UnverifiedScores = NONE_UNVERIFIED

    def part(self, images: npt.NDArray[np.bool_]) -> MethodDetections:
        """Keep the images that the mask `(I,)` names; they are renumbered."""
        rows = np.flatnonzero(images[self.capped.image_index])
        masks = None if self.masks is None else [self.masks[row] for row in rows.tolist()]
        fixed, looked_at = (
            None if found is None else renumbered(found, images) for found in (self.fixed, self.looked_at)
        )
        unverified = self.unverified.take(images[self.unverified.image_index])
        position = (np.cumsum(images) - 1).astype(np.int32)
        return replace(
            self,
            capped=renumbered(self.capped, images),
            fixed=fixed,
            masks=masks,
            looked_at=looked_at,
            unverified=replace(unverified, image_index=position[unverified.image_index]),
        )


def renumbered(detections: Detections, images: npt.NDArray[np.bool_]) -> Detections:
    """The detections of the images that the mask `(I,)` names; those images are renumbered."""
    kept = detections.take(images[detections.image_index])
    position = (np.cumsum(images) - 1).astype(np.int32)
    return replace(kept, image_index=position[kept.image_index])


@dataclass(frozen=True, eq=False)
class Measurement:
    """How methods are measured: ground truth, protocols and groups, the same for all of them.

    Args:
        truth: The ground truth.
        protocol: Of AP, boxes.
        fixed_protocol: Of AP-Fixed.
        groups: `(F,)` "r", "c" or "f"; None when unknown.
        errors: Whether to find the kinds of error.
        at: The score threshold that the model is used with.
        mask_errors: Whether these are found by the overlap of masks instead of boxes.
    """

    truth: GroundTruth
    protocol: EvaluationProtocol
    fixed_protocol: EvaluationProtocol
    groups: Groups | None
    errors: bool = False
    at: float = DEFAULT_AT
    mask_errors: bool = False

    def counts(self, baseline: MethodDetections) -> dict[float, int]:
        """How many detections the uncorrected model has above each threshold."""
        rows = rows_within_limits(baseline.capped, self.protocol)
        return counts_above(np.concatenate([baseline.capped.scores[rows], baseline.unverified.scores]))

    def measure(
        self, method: MethodDetections, counts: Mapping[float, int] | None = None
    ) -> tuple[MethodResult, Matched]:
        """Compute all metrics of one method; what was matched, boxes and masks, is kept for the bootstrap.

        Args:
            method: Its detections.
            counts: How many detections the uncorrected model has above each threshold; by default `method` is that.
        """
        started = time.perf_counter()
        counts = self.counts(method) if counts is None else counts
        metrics = evaluate_detections(method.capped, self.truth, self.protocol, groups=self.groups)
        matched = self._matched(method.capped, self.protocol)
        recall, hits = recall_at_count(matched, self._unverified(method), counts, self.truth, self.groups)
        others = {
            **self._mask_metrics(method),
            **self._fixed_metrics(method.fixed),
            **self._pool_metrics(method.fixed, matched),
            **calibration_error(matched, groups=self.groups),
            **{name: value for point in recall.values() for name, value in point.values.items()},
        }
        errors = None
        if self.errors:
            masks = self._masks_for_errors(method)
            errors = error_types(method.capped, self.truth, self.protocol, groups=self.groups, masks=masks)
        seconds = time.perf_counter() - started
        settings = getattr(method.transform, "settings", {})
        result = MethodResult(
            method.name,
            metrics,
            others,
            {},
            errors,
            seconds,
            method.notes,
            settings,
            transform=method.transform,
            thresholds=ThresholdCurve.of(matched, self.truth, self.at),
            recall=recall,
        )
        together = {"": matched, **hits}
        if method.masks is not None:
            together["-mask"] = self._matched(method.capped, self.protocol, method.masks)
        return result, together

    def _masks_for_errors(self, method: MethodDetections) -> Sequence[Any] | None:
        if self.mask_errors and method.masks is None:
            raise InputError(
                "Expected `mask_errors` only where the detections have masks, but there are boxes only; give the"
                " detector (`--detector`), or a result file with segmentations."
            )
        return method.masks if self.mask_errors else None

    def _matched(
        self, detections: Detections, protocol: EvaluationProtocol, masks: Sequence[Any] | None = None
    ) -> MatchedDetections:
        rows = rows_within_limits(detections, protocol)
        kept = None if masks is None else [masks[row] for row in rows.tolist()]
        return match_detections(detections.take(rows), self.truth, masks=kept)

    def _unverified(self, method: MethodDetections) -> UnverifiedScores:
        """All detections of classes that were not looked for."""
        if self.truth.verified is None:
            return method.unverified
        capped = method.capped.take(rows_within_limits(method.capped, self.protocol))
        others = capped.take(~self.truth.verified[capped.image_index, capped.labels])
        return UnverifiedScores.concatenate(method.unverified, UnverifiedScores(others.image_index, others.scores))

    def _mask_metrics(self, method: MethodDetections) -> dict[str, float]:
        if method.masks is None:
            return {}
        protocol = replace(self.protocol, iou_type="segm")
        metrics = evaluate_detections(method.capped, self.truth, protocol, groups=self.groups, masks=method.masks)
        return {f"{name}-mask": value for name, value in metrics.values.items()}

    def _fixed_metrics(self, fixed: Detections | None) -> dict[str, float]:
        if fixed is None:
            return {}
        metrics = evaluate_detections(fixed, self.truth, self.fixed_protocol, groups=self.groups)
        names = ["AP", *(f"AP{group}" for group in "rcf" if self.groups is not None)]
        return {f"{name}-Fixed": metrics[name] for name in names}

    def _pool_metrics(self, fixed: Detections | None, matched: MatchedDetections) -> dict[str, float]:
        """AP-Pool is over the detections of AP-Fixed where they are there, as its authors define it."""
        if fixed is not None:
            matched = self._matched(fixed, self.fixed_protocol)
        return average_precision_pool(matched, self.truth, groups=self.groups)

    def draw(self, matched: Matched, weights: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[np.float64]]:
        """AP over draws of images, of boxes and, where there are any, of masks; and recall at an equal count."""
        hits = {name: found for name, found in matched.items() if name not in ("", "-mask")}
        return {
            f"{name}{suffix}": values
            for suffix in [name for name in matched if name not in hits]
            for name, values in bootstrap_metrics(
                matched[suffix], self.truth, weights, groups=self.groups, hits={} if suffix else hits
            ).items()
        }

    def protocols(self, *, masks: bool, fixed: bool) -> dict[str, EvaluationProtocol]:
        """Give the protocols of the metrics that have one of their own."""
        own = {"AP-Pool": self.fixed_protocol if fixed else self.protocol}
        if fixed:
            own["AP-Fixed"] = self.fixed_protocol
        if masks:
            own["mask"] = replace(self.protocol, iou_type="segm")
        return own
