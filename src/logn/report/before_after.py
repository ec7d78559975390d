"""The detections of a run before and after a correction, and what they say about scores and thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.evaluate.class_groups import Groups
from logn.evaluate.decode import DecodeSettings, decode_many
from logn.evaluate.detections import Detections
from logn.evaluate.ground_truth import GroundTruth, load_ground_truth
from logn.evaluate.method_maps import fit_for_store
from logn.evaluate.score_scale import advise_thresholds
from logn.report.outcomes import Outcomes, outcomes
from logn.report.run_folder import Run

# More images make the page slower, not clearer.
MOST_IMAGES = 500
OLD_THRESHOLDS = (0.05, 0.3, 0.5, 0.7)


@dataclass(frozen=True, eq=False)
class BeforeAfter:
    """Detections of the same images without and with a correction.

    Args:
        truth: Annotated boxes of the images.
        before: Detections of the uncorrected model.
        after: Detections of the corrected one.
        groups: `(F,)` "r", "c" or "f"; None when unknown.
        of_images: How many images the run has; those looked at here may be fewer.
    """

    truth: GroundTruth
    before: Detections
    after: Detections
    groups: Groups | None
    of_images: int

    @cached_property
    def fates(self) -> tuple[Outcomes, Outcomes]:
        """What became of the detections, before and after."""
        return outcomes(self.before, self.truth), outcomes(self.after, self.truth)

    @property
    def rare(self) -> npt.NDArray[np.bool_]:
        """`(F,)` the rare classes; all of them where the groups are unknown or none is rare."""
        if self.groups is None or not (self.groups == "r").any():
            return np.ones(self.truth.num_classes, bool)
        rare: npt.NDArray[np.bool_] = self.groups == "r"
        return rare


def load_before_after(run: Run, method: str, *, most_images: int = MOST_IMAGES) -> BeforeAfter:
    """Decode predictions under no correction and under `method`; evenly spaced images where there are very many."""
    comparison, store = run.comparison, run.store
    comparison[method]
    images = len(store)
    if images > most_images:
        store = store.part(np.linspace(0, images - 1, most_images).round().astype(np.intp))
    truth = load_ground_truth(
        run.path("annotations"),
        style=comparison.protocol["style"],
        image_ids=store.image_ids.tolist(),
        category_ids=store.header.category_ids,
        class_names=store.header.class_names,
        num_classes=store.num_classes,
        only_predicted=True,
    )
    before, after = decode_many(store, [None, method_map(run, method)], decode_settings(run))
    known = [entry.group for entry in comparison.classes]
    groups = np.array(known, np.str_) if known and all(known) else None
    return BeforeAfter(truth, before, after, groups, images)


def decode_settings(run: Run) -> DecodeSettings:
    """Threshold, suppression and limit of the comparison."""
    protocol = run.comparison.protocol
    known = {name: protocol[name] for name in ("score_threshold", "nms_iou") if protocol.get(name) is not None}
    limit = protocol["max_detections"] if protocol["style"] == "lvis" else None
    return DecodeSettings(**known, max_detections=limit)


def method_map(run: Run, method: str) -> Any:
    """The map of logits that a row of the comparison stands for: fitted again, or read from its file."""
    if method.endswith(".safetensors"):
        if not Path(method).is_file():
            raise InputError(f"Expected `{method}` to be a correction, as in the comparison, but there is none.")
        return ClassAffine.load(method)
    return fit_for_store(method, run.store.header, **run.fit_inputs())


@dataclass(frozen=True, eq=False)
class ScoreHistogram:
    """How many detections have which score, before and after; the bins are evenly spaced in the logarithm."""

    edges: npt.NDArray[np.float64]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]


def score_histogram(
    before: npt.ArrayLike, after: npt.ArrayLike, *, lowest: float = 1e-4, bins: int = 32
) -> ScoreHistogram:
    """Count scores in bins from `lowest` to 1; lower ones go to the first bin.

    Example:
        >>> counts = score_histogram([0.005, 0.5, 0.9], [0.05, 0.06], lowest=1e-2, bins=2)
        >>> counts.edges.round(2).tolist(), counts.before.tolist(), counts.after.tolist()
        ([0.01, 0.1, 1.0], [1, 2], [2, 0])
    """
    edges = np.geomspace(lowest, 1.0, bins + 1)
    edges[-1] = 1.0
    counted = [
        np.histogram(np.clip(np.asarray(scores, np.float64), lowest, 1.0), edges)[0] for scores in (before, after)
    ]
    return ScoreHistogram(edges, counted[0].astype(np.int64), counted[1].astype(np.int64))


@dataclass(frozen=True)
class OperatingPoint:
    """One score threshold before, and the one after that keeps as many detections in all.

    Args:
        old: The threshold of the uncorrected model.
        new: The threshold of the corrected model.
        kept: Detections at or above it, before and after.
        hits: Objects found, before and after.
        false_alarms: Detections that are wrong, before and after.
        rare_hits: Objects of rare classes found, before and after.
    """

    old: float
    new: float
    kept: tuple[int, int]
    hits: tuple[int, int]
    false_alarms: tuple[int, int]
    rare_hits: tuple[int, int]


def operating_points(pair: BeforeAfter, thresholds: Sequence[float] = OLD_THRESHOLDS) -> list[OperatingPoint]:
    """Say for each old threshold which new one keeps as many detections, and what the two find."""
    return [operating_point(pair, threshold) for threshold in thresholds]


def operating_point(pair: BeforeAfter, threshold: float) -> OperatingPoint:
    """Say which new threshold keeps as many detections as the old one, and what the two find."""
    new = advise_thresholds(pair.before, pair.after, threshold, pair.truth.num_classes).overall
    kept = [fate.above(limit) for fate, limit in zip(pair.fates, (threshold, new), strict=True)]
    found = [fate.found(len(pair.truth.labels)) for fate in kept]
    rare = pair.rare[pair.truth.labels]
    return OperatingPoint(
        old=threshold,
        new=new,
        kept=_two(len(fate.detections) for fate in kept),
        hits=_two(int(boxes.sum()) for boxes in found),
        false_alarms=_two(int(fate.is_false_alarm.sum()) for fate in kept),
        rare_hits=_two(int(boxes[rare].sum()) for boxes in found),
    )


def _two(values: Any) -> tuple[int, int]:
    first, second = values
    return first, second
