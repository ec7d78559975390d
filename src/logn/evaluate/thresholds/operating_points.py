"""Choose operating points: the predictions of a detector with labels in, a threshold per class out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from logn.calibrators.affine import ClassAffine, LogitFacts, with_background_name
from logn.calibrators.recommend import DEFAULT_AT
from logn.errors import InputError
from logn.evaluate.decode.decoder import DecodeSettings, decode
from logn.evaluate.detection.ground_truth import GroundTruth, read_results, truth_of_predictions
from logn.evaluate.detection.matching import match_detections
from logn.evaluate.store.store import PredictionStore, is_store
from logn.evaluate.thresholds.choose import ChosenThresholds, Goal, choose_thresholds
from logn.evaluate.thresholds.fold import DECODED
from logn.evaluate.thresholds.points import ClassPoint, OperatingPoints, check_threshold
from logn.evaluate.thresholds.scores import Bools, Draws, Ints, ScoredDetections, measure
from logn.logits.arrays import FloatArray
from logn.logits.proposals import Postprocessing
from logn.statistics.moments import StatisticsMetadata

BEST_SINGLE, PER_CLASS = "best single threshold", "per class"


@dataclass(frozen=True, eq=False)
class ReadDetections:
    """Detections that were read with their labels.

    Args:
        scored: The detections, with what is right.
        truth: The labels.
        source: What is known of the model; None for a results file.
        settings: How the detections were made.
    """

    scored: ScoredDetections
    truth: GroundTruth
    source: StatisticsMetadata | None
    settings: dict[str, Any]


def operating_points(
    predictions: Any,
    labels: Any,
    goal: str | Goal = "f1",
    affine: ClassAffine | None = None,
    *,
    at: float = DEFAULT_AT,
    num_bootstrap: int = 200,
    seed: int = 0,
    **reading: Any,
) -> OperatingPoints:
    """Choose a score threshold for each class of a detector.

    Each class's own threshold is shrunk towards the common one by as much as it is uncertain. A class keeps the common
    threshold where it has too few objects, or where its own is no better on held-out images. The numbers of the result
    are held out too: those of each half of the images, with thresholds chosen on the other half.

    Args:
        predictions: What `logn predict` wrote (a path or a `logn.PredictionStore`), or a COCO results file of any tool.
        labels: Ground truth of the same images: COCO, LVIS, YOLO or VOC.
        goal: "f1", "precision=0.9" or "recall=0.8" in each class; "fppi=1" (false alarms per image) over all classes.
        affine: A correction that comes before the thresholds; only with a store.
        at: The threshold that the model is used with, before and after.
        num_bootstrap: Draws of images for shrinking and for intervals; 0 for neither.
        seed: Of the draws and folds.
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
        ...     for box, score in (([0, 0, 9, 9], 0.2 + n / 100), ([20, 0, 9, 9], 0.1))]
        >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        ...     _ = file.write(json.dumps(results)), file.flush()
        ...     points = operating_points(file.name, labels)
        >>> bool(0.1 < points.thresholds[0] < 0.2), points.points[0].found_before, points.points[0].found
        (True, 35, 40)
    """
    wanted = goal if isinstance(goal, Goal) else Goal.parse(goal)
    check_threshold("threshold `at`", at)
    if num_bootstrap < 0:
        raise InputError(f"Expected `num_bootstrap` to be at least 0, but got {num_bootstrap}.")
    read = read_detections(predictions, labels, affine, **reading)
    scored, truth = read.scored, read.truth
    chosen = choose_thresholds(scored, wanted, num_bootstrap=num_bootstrap, seed=seed)
    single, per_class, note = _held_out(scored, chosen, wanted, num_bootstrap, seed)
    levels = {f"{at:g} for all classes": np.full(len(single), at), BEST_SINGLE: single, PER_CLASS: per_class}
    kept = {name: scored.scores >= thresholds for name, thresholds in levels.items()}
    counts = [counts_per_class(scored, mask) for mask in (kept[PER_CLASS], next(iter(kept.values())))]
    columns = (chosen.thresholds, scored.objects_per_class, *counts[0], *counts[1])
    rows = zip(scored.class_names, *(column.tolist() for column in columns), chosen.reasons, strict=True)
    federated = "False alarms count only in images where the labels say whether the class is there."
    return OperatingPoints(
        points=tuple(ClassPoint(*row) for row in rows),
        at=at,
        goal=str(wanted),
        common=chosen.common,
        correction=affine,
        source=read.source,
        summary={name: _summary(scored, mask, num_bootstrap, seed) for name, mask in kept.items()},
        settings={**read.settings, "labels": truth.style, "images": truth.num_images},
        notes=tuple(filter(None, (note, truth.note, federated if truth.style == "lvis" else ""))),
    )


def read_detections(
    predictions: Any,
    labels: Any,
    affine: ClassAffine | None = None,
    *,
    iou: float = 0.5,
    progress: Callable[[int], object] | None = None,
    **kinds: Any,
) -> ReadDetections:
    """Read the detections of a store or a results file, and which of them are right; arguments as above."""
    if not 0 < iou <= 1:
        raise InputError(f"Expected `iou` to be above 0 and at most 1, but got {iou:g}.")
    overlap = np.array([iou])
    if not is_store(predictions):
        if affine is not None:
            raise InputError(f"`{predictions}` has no logits to correct: pass a folder of `logn predict`.")
        truth = truth_of_predictions(labels, **kinds)
        detections = read_results(predictions, truth)
        floor = float(detections.scores.min(initial=1.0))
        scored = ScoredDetections.of(match_detections(detections, truth, thresholds=overlap), truth, floor)
        return ReadDetections(scored, truth, None, {})
    store = predictions if isinstance(predictions, PredictionStore) else PredictionStore(predictions)
    header, said = store.header, store.header.postprocessing or Postprocessing()
    truth = truth_of_predictions(labels, store, **kinds)
    # A model may know more classes than the labels: then the names of its columns are unknown.
    names = with_background_name(truth.class_names, header.background) if header.class_columns is None else None
    fingerprint = header.metadata.get("fingerprint")
    source = StatisticsMetadata(names, header.background, header.activation, fingerprint=fingerprint)
    if affine is not None:
        facts = header.num_columns, header.background, header.class_names, header.activation
        affine.check_fits(LogitFacts("the predictions", *facts))
    limits = DecodeSettings().resolved(header)
    matched = match_detections(decode(store, affine, limits, progress=progress), truth, thresholds=overlap)
    settings = {name: getattr(limits, name) for name in DECODED} | {
        "objectness": header.objectness and said.objectness != "added",
        "columns": header.columns.tolist(),
        "num_columns": header.num_columns,
    }
    return ReadDetections(ScoredDetections.of(matched, truth, limits.score_threshold), truth, source, settings)


def _held_out(
    scored: ScoredDetections, chosen: ChosenThresholds, goal: Goal, num_bootstrap: int, seed: int
) -> tuple[FloatArray, FloatArray, str]:
    """For each detection the best single threshold and that of its class, chosen on the other half of the images."""
    half = np.random.default_rng(seed).permutation(scored.num_images) % 2 == 0
    if len(np.unique(half[scored.object_images])) < 2:
        note = "Too few images to hold some out: the numbers are of the images that the thresholds were chosen on."
        return np.full(len(scored.labels), chosen.common), chosen.thresholds[scored.labels], note
    single, per_class = np.empty((2, len(scored.labels)))
    for part in (half, ~half):
        other = choose_thresholds(scored.part(~part), goal, num_bootstrap=num_bootstrap, seed=seed)
        inside = part[scored.images]
        single[inside], per_class[inside] = other.common, other.thresholds[scored.labels[inside]]
    note = (
        f"Numbers are held out: each half of the {scored.num_images:,} images with what was chosen on the other half. "
        "The thresholds themselves are chosen on all images."
    )
    return single, per_class, note


def counts_per_class(scored: ScoredDetections, kept: Bools) -> tuple[Ints, Ints]:
    """Objects found and false alarms `(F,)` of each class among the detections in the mask."""
    sides = (scored.labels[kept & side] for side in (scored.right, scored.wrong))
    right, wrong = (np.bincount(labels, minlength=scored.num_classes).astype(np.int64) for labels in sides)
    return right, wrong


def _summary(scored: ScoredDetections, kept: Bools, num_bootstrap: int, seed: int) -> dict[str, list[float]]:
    """The metrics of the detections in the mask, with 95 % intervals over draws of images."""
    decided = replace(scored, scores=kept.astype(np.float64))  # a threshold of one half keeps the mask
    values = measure(Draws.once(decided), 0.5)
    parts = [measure(draws, 0.5) for draws in Draws.bootstrap(decided, num_bootstrap, seed)]
    estimates: dict[str, list[float]] = {}
    for name, value in values.items():
        drawn = np.concatenate([part[name] for part in parts]) if parts else np.empty(0)
        drawn = drawn[~np.isnan(drawn)]
        ends = np.quantile(drawn, [0.025, 0.975]).tolist() if len(drawn) > 1 else []
        estimates[name] = [float(value[0]), *ends]
    return estimates
