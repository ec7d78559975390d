"""Choose operating points: the predictions of a detector or a classifier with labels in, a threshold per class out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.method_spec import FitInputs
from logn.calibrators.provenance import with_background_name
from logn.errors import InputError
from logn.evaluate.comparison.method_fitting import LogitMap, map_for_store
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.comparison.sweep import choosing_half
from logn.evaluate.decode.decoder import DecodeSettings, decode_many
from logn.evaluate.detection.protocol import SCORE_THRESHOLD
from logn.evaluate.detection.task import read_truth
from logn.evaluate.operating.choice import Draws
from logn.evaluate.operating.choose_points import (
    Bootstrap,
    ChosenPoints,
    choose_points,
    measured_with_intervals,
)
from logn.evaluate.operating.classifier_outcomes import classifier_outcomes
from logn.evaluate.operating.measured import kept_counts
from logn.evaluate.operating.notes import notes_on
from logn.evaluate.operating.points import DECODED, DETECTION, ClassPoint, Measured, OperatingPoints
from logn.evaluate.operating.scored_outcomes import ScoredOutcomes, detection_outcomes
from logn.evaluate.operating.target import KEEP_COUNTS, Target
from logn.evaluate.store.store import PredictionStore, is_store
from logn.statistics.metadata import StatisticsMetadata


@dataclass(frozen=True, eq=False)
class ReadOutcomes:
    """Outcomes of a model under a correction, with what the points have to remember.

    Args:
        outcomes: With the correction.
        reference: Without it, where the target asks for that.
        ids: Of the images or rows: they say to which half a unit belongs.
        facts: Fields of the points: task, activation, background, source, correction and settings.
    """

    outcomes: ScoredOutcomes
    reference: ScoredOutcomes | None
    ids: npt.NDArray[np.int64]
    facts: dict[str, Any]


def operating_points(
    store: Any,
    annotations: Any,
    target: str | Target = "f1",
    affine: ClassAffine | str | Callable[[Any], Any] | None = None,
    *,
    split: bool = False,
    test: tuple[Any, Any] | None = None,
    iou: float = 0.5,
    style: str = "auto",
    decode: DecodeSettings | None = None,
    only_predicted: bool = False,
    allow_missing_classes: bool = False,
    num_bootstrap: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    class_names: Sequence[str] | None = None,
    allow_mismatch: bool = False,
    progress: Callable[[int], object] | None = None,
    inputs: FitInputs | None = None,
    **fit_inputs: Any,
) -> OperatingPoints:
    """Choose a score threshold for each class.

    Args:
        store: The proposals of a detector (`logn.PredictionStore`), or the path of their store. Or the logits of a
            classifier: an array `(rows, classes)` or the path of a file.
        annotations: LVIS or COCO ground truth of the same images. For a classifier the class of each row, or for a
            multi-label one a matrix `(rows, classes)` of 1, 0, and -1 where it is not known.
        target: "f1", "f-beta=2", "precision=0.9", "recall=0.8" or "keep-counts=0.5" of each class; "fppi=1" (false
            alarms per image) or "total-precision=0.9" of all classes together.
        affine: A correction before the thresholds: a map, or a specification such as "recommended" that is fitted
            from `moments`, `counts` and so on.
        split: Choose on one half of the images or rows, and report on the other.
        test: Predictions and annotations of other images, to report on.
        iou: A detection is right from this overlap with a box of its class on.
        style: "lvis" for federated labels, "coco" where every class is annotated in every image; by default what the
            labels are, as `logn.compare` sees it.
        decode: Suppression and limits of the decoder.
        only_predicted: Leave out annotated images that were not predicted.
        allow_missing_classes: Leave out objects of classes that the model does not have.
        num_bootstrap: Draws of images for intervals and for shrinking; 0 for neither.
        confidence: Of the intervals.
        seed: Of the draws.
        class_names: Names of a classifier's classes.
        allow_mismatch: Only warn of a correction of another model.
        progress: Called with the number of images that were decoded since the last call.
        inputs: What a specification is fitted from.
        fit_inputs: Or its fields by name: `moments`, `counts`, `dimensions` and so on.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = (rng.random((500, 2)) < [0.5, 0.1]).astype(int)
        >>> logits = 3 * labels + rng.normal([-2.0, -4.0], 1, (500, 2))
        >>> points = operating_points(logits, labels, "f1")
        >>> points.thresholds.round(1).tolist()
        [0.4, 0.1]
        >>> bool((points.affine(at=0.5)(logits) >= 0).sum() == (1 / (1 + np.exp(-logits)) >= points.thresholds).sum())
        True
    """
    wanted = target if isinstance(target, Target) else Target.parse(target)
    if not 0 < iou <= 1:
        raise InputError(f"Expected `iou` to be above 0 and at most 1, but got {iou:g}.")
    if split and test is not None:
        raise InputError("Expected one of `split` and `test`, but got both.")
    bootstrap = _checked_bootstrap(num_bootstrap, confidence, seed)
    fitted_from = FitInputs.of(inputs, fit_inputs)

    def read(predictions: Any, labels: Any, method: LogitMap) -> ReadOutcomes:
        if not is_store(predictions):
            found = classifier_outcomes(
                predictions, labels, method, fitted_from, class_names, allow_mismatch=allow_mismatch
            )
            return ReadOutcomes(*found)
        settings = CompareSettings(
            style=style,
            decode=decode or DecodeSettings(),
            only_predicted=only_predicted,
            allow_missing_classes=allow_missing_classes,
        )
        return _detector(predictions, labels, method, wanted, iou, settings, fitted_from, allow_mismatch, progress)

    found = read(store, annotations, affine)
    if wanted.kind == KEEP_COUNTS and found.reference is None:
        raise InputError("Expected `target` keep-counts only with the predictions of a detector, but got a classifier.")
    dev, reference, held_out, on = found.outcomes, found.reference, None, ""
    if split:
        half = choosing_half(found.ids, dev.unit)
        dev, held_out, on = dev.part(half), dev.part(~half), f"the other half of the {dev.unit}"
        reference = None if reference is None else reference.part(half)
    elif test is not None:
        other = read(*test, found.facts["transform"])
        held_out, on = other.outcomes, f"the {other.outcomes.num_units:,} {dev.unit} of the test set"
        _check_same_classes(dev, held_out)
    chosen = choose_points(dev, wanted, bootstrap, reference=reference)
    measured = None
    if held_out is not None:
        values = measured_with_intervals(held_out, chosen.thresholds, bootstrap)
        measured = Measured(on, values, measured_with_intervals(held_out, chosen.common, bootstrap))
    return _points(found, dev, wanted, chosen, bootstrap, affine).with_measured(measured)


def _checked_bootstrap(num_bootstrap: int, confidence: float, seed: int) -> Bootstrap:
    if num_bootstrap < 0:
        raise InputError(f"Expected `num_bootstrap` to be at least 0, but got {num_bootstrap}.")
    if not 0 < confidence < 1:
        raise InputError(f"Expected `confidence` to lie between 0 and 1, but got {confidence:g}.")
    return Bootstrap(num_bootstrap, confidence, seed)


def _check_same_classes(dev: ScoredOutcomes, test: ScoredOutcomes) -> None:
    if dev.class_names != test.class_names:
        raise InputError(
            f"Expected `test` to have the {dev.num_classes} classes that the points are chosen for, but its classes "
            "are others."
        )


def _detector(
    source: Any,
    annotations: Any,
    method: LogitMap,
    target: Target,
    iou: float,
    settings: CompareSettings,
    inputs: FitInputs,
    allow_mismatch: bool,
    progress: Callable[[int], object] | None,
) -> ReadOutcomes:
    store = source if isinstance(source, PredictionStore) else PredictionStore(source)
    truth = read_truth(store, annotations, settings, masks=False)
    transform = map_for_store("affine", method, store.header, inputs, allow_mismatch=allow_mismatch)
    limits = replace(settings.decode, score_threshold=min(settings.decode.score_threshold, SCORE_THRESHOLD))
    limits = limits.resolved(store.header)
    transforms = [transform, None] if target.kind == KEEP_COUNTS else [transform]
    decoded = decode_many(store, transforms, limits, progress=progress)
    sides = [detection_outcomes(found, truth, iou=iou, floor=limits.score_threshold) for found in decoded]
    header = store.header
    # A model may know more classes than the labels: then the names of its columns are not known.
    names = with_background_name(truth.class_names, header.background) if header.class_columns is None else None
    source_of = StatisticsMetadata(
        class_names=names,
        background=header.background,
        activation=header.activation,
        fingerprint=header.metadata.get("fingerprint"),
    )
    facts = {
        "task": DETECTION,
        "activation": header.activation,
        "background": header.background,
        "source": source_of,
        "transform": transform,
        "settings": {
            "iou": iou,
            "labels": truth.style,
            **{name: getattr(limits, name) for name in DECODED},
            "score_power": 1.0 if header.postprocessing is None else header.postprocessing.score_power,
            "objectness": header.objectness,
            "columns": header.columns.tolist(),
            "num_columns": header.num_columns,
        },
    }
    return ReadOutcomes(sides[0], sides[1] if len(sides) > 1 else None, truth.image_ids, facts)


def _points(
    found: ReadOutcomes,
    dev: ScoredOutcomes,
    target: Target,
    chosen: ChosenPoints,
    bootstrap: Bootstrap,
    method: LogitMap,
) -> OperatingPoints:
    facts = dict(found.facts)
    transform, settings = facts.pop("transform"), facts.pop("settings")
    hits, alarms = kept_counts(Draws.once(dev), chosen.thresholds[:, None])
    rows = zip(
        dev.class_names,
        chosen.thresholds.tolist(),
        *chosen.ends.T.tolist(),
        chosen.own.tolist(),
        chosen.weights.tolist(),
        dev.objects_per_class.tolist(),
        hits[:, 0].tolist(),
        alarms[:, 0].tolist(),
        strict=True,
    )
    points = tuple(ClassPoint(*row) for row in rows)
    return OperatingPoints(
        target=str(target),
        points=points,
        common=chosen.common,
        method=_name_of(method, transform),
        correction=transform if isinstance(transform, ClassAffine) else None,
        expected=chosen.expected,
        expected_common=chosen.expected_common,
        stability=chosen.stability,
        settings={
            **settings,
            dev.unit: dev.num_units,
            "num_bootstrap": bootstrap.num_bootstrap,
            "confidence": bootstrap.confidence,
            "seed": bootstrap.seed,
            "between": chosen.between,
            **_held_out(chosen),
        },
        notes=notes_on(dev, target, points, chosen, settings.get("labels") == "lvis", bootstrap.num_bootstrap),
        **facts,
    )


def _held_out(chosen: ChosenPoints) -> dict[str, Any]:
    """The F-score on held-out folds: with the common threshold, then with the chosen ones."""
    if chosen.held_out is None:
        return {}
    return {"held_out": {"overall": list(chosen.held_out.overall), "class mean": list(chosen.held_out.class_mean)}}


def _name_of(method: LogitMap, transform: LogitMap) -> str:
    """What to call the correction; "none" where it changes nothing."""
    if transform is None:
        return "none"
    if isinstance(method, str):
        return method
    return getattr(transform, "method", "") or "a map made elsewhere"
