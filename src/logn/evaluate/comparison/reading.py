"""From the content of `comparison.json` and the arrays next to it to the comparison that was saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.classification.metrics import ClassificationMetrics, Confusions
from logn.evaluate.classification.reliability import Reliability
from logn.evaluate.classification.truth import PAPER_BOUNDS, ClassificationTruth
from logn.evaluate.comparison.comparison import CLASSIFICATION, Comparison, DetectionScope, EvaluatedClass
from logn.evaluate.comparison.method_fitting import BASELINE, UnsavedMap, map_from_parts
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.provenance import Provenance
from logn.evaluate.comparison.report_details import ReportDetails
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.comparison.sweep import Curve
from logn.evaluate.decode.decoder import DecodeSettings
from logn.evaluate.detection.bootstrap import Interval
from logn.evaluate.detection.metrics import DetectionMetrics
from logn.evaluate.detection.protocol import EvaluationProtocol
from logn.evaluate.detection.recall_at_count import RecallAtCount
from logn.evaluate.detection.threshold_curve import ThresholdCurve
from logn.evaluate.detection.tide import ErrorTypes
from logn.strict_json import number_or_nan, numbers_or_nan

# The metrics of boxes that one evaluation gives; all others are measured separately.
BOX_METRICS = frozenset({"AP", "AP50", "AP75", *(f"AP{part}" for part in "smlrcf")})
Arrays = Mapping[str, npt.NDArray[Any]]
Entry = Mapping[str, Any]


def comparison_from_parts(content: Entry, arrays: Arrays | None) -> Comparison:
    """Make the comparison from what was written.

    Args:
        content: Of `comparison.json`, in this version or before there were arrays.
        arrays: Of `comparison.safetensors`; None where they are not there.
    """
    entries = content["methods"]
    if not entries:
        raise InputError("Expected the comparison to have a method, but it has none.")
    settings = _settings(content)
    scope = _truth(content, arrays) if content.get("task") == CLASSIFICATION else _protocols(content)
    rows = [_row(content, place, _arrays_of(place, arrays), settings, scope) for place in range(len(entries))]
    return Comparison(
        rows=tuple(rows),
        scope=scope,
        classes=tuple(_class(entry) for entry in content["classes"]),
        curves=tuple(Curve.from_dict(curve) for curve in content["curves"]),
        settings=settings,
        seconds=dict(content["seconds"]),
        notes=tuple(map(str, content["notes"])),
        provenance=Provenance.from_dict(content["provenance"]) if "provenance" in content else Provenance(),
    )


def _settings(content: Entry) -> CompareSettings:
    draws, confidence = int(content["draws"]), float(content["confidence"])
    if "settings" in content:
        return replace(CompareSettings.from_dict(content["settings"]), num_bootstrap=draws, confidence=confidence)
    if content.get("task") == CLASSIFICATION:
        return CompareSettings(num_bootstrap=draws, confidence=confidence)
    protocol = _protocols(content).protocol
    known = {name: getattr(protocol, name) for name in ("score_threshold", "nms_iou")}
    decode = DecodeSettings(
        **{name: value for name, value in known.items() if value is not None},
        max_detections=protocol.max_detections if protocol.style == "lvis" else None,
        # What there was no choice of when documents had no settings.
        nms="class-wise",
        multi_label=True,
        min_box_size=1e-2,
    )
    return CompareSettings(protocol.style, decode, draws, confidence)


def _arrays_of(place: int, arrays: Arrays | None) -> Arrays | None:
    """The arrays of one method; None where none were kept."""
    if arrays is None:
        return None
    start = f"{place}."
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def _under(name: str, arrays: Arrays | None) -> Arrays:
    start = f"{name}."
    return {key.removeprefix(start): array for key, array in (arrays or {}).items() if key.startswith(start)}


def _protocols(content: Entry) -> DetectionScope:
    own = content.get("protocols", {})
    return DetectionScope(
        EvaluationProtocol.from_dict(content["protocol"]),
        {name: EvaluationProtocol.from_dict(protocol) for name, protocol in own.items()},
    )


def _class(entry: Entry) -> EvaluatedClass:
    is_box = "boxes" in entry
    train_count, mean, std = (
        None if entry.get(name) is None else float(entry[name]) for name in ("train_count", "mean", "std")
    )
    return EvaluatedClass(
        id=int(entry["id"] if is_box else entry["class"]),
        name=str(entry["name"]),
        group=entry["group"],
        examples=int(entry["boxes"] if is_box else entry["rows"]),
        train_count=train_count,
        mean=mean,
        std=std,
    )


def _truth(content: Entry, arrays: Arrays | None) -> ClassificationTruth:
    entries, families = content["classes"], content.get("families")
    rows = np.array([entry["rows"] for entry in entries], np.int64)
    known = [entry["train_count"] for entry in entries]
    names = content.get("class_names")
    truth = ClassificationTruth(
        # Without the arrays only the number of rows of each class is known, which is all that a comparison needs.
        labels=np.repeat(np.arange(len(rows)), rows) if arrays is None else arrays["labels"],
        num_classes=len(rows),
        train_counts=None if None in known else np.array(known, np.float64),
        families=None if families is None else np.array(families, np.int64),
        class_names=None if names is None else tuple(map(str, names)),
        bounds=(int(content["bounds"][0]), int(content["bounds"][1])) if "bounds" in content else PAPER_BOUNDS,
    )
    if [truth.group_of(place) for place in range(len(rows))] != [entry["group"] for entry in entries]:
        raise InputError("Expected the groups of the classes to follow their counts, but they do not; compare again.")
    return truth


def _row(
    content: Entry,
    place: int,
    arrays: Arrays | None,
    settings: CompareSettings,
    scope: DetectionScope | ClassificationTruth,
) -> MethodResult:
    entry = content["methods"][place]
    name, values = str(entry["method"]), numbers_or_nan(entry["metrics"])
    metrics: DetectionMetrics | ClassificationMetrics
    others: dict[str, float] = {}
    if isinstance(scope, DetectionScope):
        per_class = _column(content["classes"], "AP", name)
        metrics = DetectionMetrics(
            {key: value for key, value in values.items() if key in BOX_METRICS}, per_class, scope.protocol
        )
        others = {key: value for key, value in values.items() if key not in BOX_METRICS}
    else:
        metrics = _classification(content["classes"], name, values, _under("confusions", arrays), scope)
    errors, details = entry.get("errors"), entry.get("details")
    reliability = _under("reliability", arrays)
    unsaved = None if name == BASELINE else UnsavedMap()
    return MethodResult(
        name=name,
        metrics=metrics,
        others=others,
        differences={
            key: Interval.from_dict(change, settings.confidence) for key, change in entry["differences"].items()
        },
        errors=None if errors is None else ErrorTypes.from_dict(errors),
        seconds=float(entry.get("seconds", 0.0)),
        notes=tuple(map(str, entry.get("notes", ()))),
        settings=dict(entry.get("settings", {})),
        transform=map_from_parts(entry["map"], _under("map", arrays)) if "map" in entry else unsaved,
        details=None if details is None or arrays is None else ReportDetails.from_parts(details, arrays),
        reliability=Reliability(**reliability) if reliability else None,
        thresholds=ThresholdCurve.from_dict(entry["thresholds"]) if entry.get("thresholds") else None,
        recall={point["at"]: RecallAtCount.from_dict(point) for point in entry.get("recall", ())},
    )


def _column(classes: Sequence[Entry], field: str, name: str) -> npt.NDArray[np.float64]:
    return np.array([number_or_nan(entry[field][name]) for entry in classes], np.float64)


def _classification(
    classes: Sequence[Entry], name: str, values: Mapping[str, float], confusions: Arrays, truth: ClassificationTruth
) -> ClassificationMetrics:
    nothing = {key: np.empty(0, np.int64) for key in ("label", "predicted", "errors")}
    return ClassificationMetrics(
        values=values,
        per_class=_column(classes, "accuracy", name),
        rows_per_class=truth.rows_per_class,
        predictions_per_class=np.array([entry["predicted"][name] for entry in classes], np.int64),
        # Some pairs alone would say of the others that they never occur.
        confusions=Confusions(**(confusions or {**nothing, "share": np.empty(0)})),
        truth=truth,
    )
