"""OperatingPoints: one threshold per class with how sure it is, what it gives, and the map that folds it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.evaluate.operating.measured import METRICS, Estimate, Estimates
from logn.files import require_file, write_text
from logn.logits.arrays import FloatArray
from logn.statistics.metadata import StatisticsMetadata
from logn.strict_json import number_or_nan, parse_json, plain_values

FILE_FORMAT = "logn.operating_points"
FILE_SCHEMA = 1
# Settings of the decoder that the points depend on, and remember.
DECODED = ("nms", "nms_iou", "multi_label", "max_detections", "min_box_size")
DETECTION, TOP_1, MULTI_LABEL = "detection", "top-1", "multi-label"


@dataclass(frozen=True)
class ClassPoint:
    """The threshold of one class, and what it gives on the images that it was chosen on.

    Args:
        name: Of the class.
        threshold: A detection is kept at or above it.
        low: Lower end of its interval; NaN without draws.
        high: Upper end.
        own: The threshold before it was shrunk; NaN for a class without one of its own.
        weight: Of the own threshold against the common one, in logits: 1 is not shrunk, 0 is the common one.
        objects: Objects of the class.
        found: Those that are found.
        false_alarms: Wrong detections that are kept.
    """

    name: str
    threshold: float
    low: float
    high: float
    own: float
    weight: float
    objects: int
    found: int
    false_alarms: int

    @property
    def precision(self) -> float:
        """Of what is kept, the share that is right; NaN where nothing is kept."""
        kept = self.found + self.false_alarms
        return self.found / kept if kept else math.nan

    @property
    def recall(self) -> float:
        """Of the objects, the share that is found; NaN where there are none."""
        return self.found / self.objects if self.objects else math.nan

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; NaN where there is nothing to find and nothing kept."""
        whole = self.found + self.false_alarms + self.objects
        return 2 * self.found / whole if whole else math.nan


@dataclass(frozen=True)
class Measured:
    """What thresholds give on images that they were not chosen on.

    Args:
        on: Which images.
        values: With a threshold per class.
        common: With the common threshold.
    """

    on: str
    values: Estimates
    common: Estimates


@dataclass(frozen=True, eq=False)
class OperatingPoints:
    """A threshold for each class of a model, chosen for a target.

    `print(points)` gives a table, `points.thresholds` the numbers, `points.affine(at=0.25)` the map after which the one
    threshold 0.25 acts as all of them.

    Args:
        target: What they were chosen for.
        points: One per foreground class.
        common: One threshold for all classes, for the same target.
        task: "detection", "top-1" (a classifier that may reject) or "multi-label".
        activation: "softmax" or "sigmoid".
        background: Place of the background column: None, 0 or -1.
        method: The correction before them, in words; "none" without.
        correction: Its map; None without one, or where it is not affine.
        source: What is known of the model.
        expected: What to expect on as many new images, from draws that choose on some and measure on others.
        expected_common: The same with the common threshold.
        measured: On images that they were not chosen on; None where there are none.
        stability: The share of decisions that stay when thresholds are chosen on another draw of the images.
        settings: How they were chosen: overlap, decoding, draws and so on.
        notes: What to know about them.

    Example:
        >>> import logn
        >>> labels = np.repeat([[1, 0], [0, 1]], 50, axis=0)
        >>> logits = 4 * labels - [2.0, 4.0]
        >>> points = logn.operating_points(logits, labels, "f1", num_bootstrap=0)
        >>> bool(((points.affine(at=0.5)(logits) >= 0) == labels).all())
        True
    """

    target: str
    points: tuple[ClassPoint, ...]
    common: float
    task: str = DETECTION
    activation: str = "sigmoid"
    background: int | None = None
    method: str = "none"
    correction: ClassAffine | None = None
    source: StatisticsMetadata | None = None
    expected: Estimates = field(default_factory=dict)
    expected_common: Estimates = field(default_factory=dict)
    measured: Measured | None = None
    stability: float = math.nan
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def thresholds(self) -> FloatArray:
        """`(F,)` one per foreground class."""
        return np.array([point.threshold for point in self.points])

    @property
    def class_names(self) -> tuple[str, ...]:
        """`(F,)` names."""
        return tuple(point.name for point in self.points)

    def __str__(self) -> str:
        from logn.evaluate.operating.tables import write_points

        return write_points(self)

    def affine(self, at: float = 0.25, predictions: Any = None, *, at_least: float | None = None) -> ClassAffine:
        """The map after which the one threshold `at` keeps what the thresholds per class keep, the correction included.

        Args:
            at: The threshold that the model will be used with.
            predictions: The store or the logits that the points were chosen on. Sigmoids do without: there the map is
                exact. For a softmax, for sigmoids with an objectness and where a box may be of one class only, it is
                solved on them.
            at_least: Refuse where a smaller share of the detections stays; by default as many as stay when the points
                are chosen on another draw of the images.
        """
        affine: ClassAffine = self.fold(at, predictions, at_least=at_least).affine
        return affine

    def fold(self, at: float = 0.25, predictions: Any = None, *, at_least: float | None = None) -> Any:
        """What `affine` gives, with the shares of detections that stay (`logn.evaluate.operating.folding.Folded`)."""
        from logn.evaluate.operating.folding import fold_points

        return fold_points(self, at, predictions, at_least=at_least)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        content |= {
            "points": [asdict(point) for point in self.points],
            "correction": None if self.correction is None else _map_values(self.correction),
            "source": None if self.source is None else asdict(self.source),
            "expected": _listed(self.expected),
            "expected_common": _listed(self.expected_common),
            "measured": None
            if self.measured is None
            else {
                "on": self.measured.on,
                "values": _listed(self.measured.values),
                "common": _listed(self.measured.common),
            },
        }
        plain: dict[str, Any] = plain_values({"format": FILE_FORMAT, "schema": FILE_SCHEMA, **content})
        return plain

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the points as JSON, in one atomic step."""
        write_text(path, json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> OperatingPoints:
        """Read what `save` or `logn thresholds -o` wrote; whatever is wrong with the file is said in one sentence."""
        require_file(path)
        with open(path, "rb") as file:
            data = file.read()
        try:
            content = parse_json(data)
        except ValueError as error:
            raise InputError(f"Expected `{path}` to be what `logn thresholds` wrote, but it is no JSON.") from error
        if not isinstance(content, dict) or content.get("format") != FILE_FORMAT:
            raise InputError(f"Expected `{path}` to be what `logn thresholds` wrote, but it is another file.")
        if content.get("schema") != FILE_SCHEMA:
            raise InputError(
                f"Expected `{path}` to have schema {FILE_SCHEMA}, but it has {content.get('schema')!r}; update LogN."
            )
        try:
            return cls.from_dict(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"Expected `{path}` to hold operating points, but it is damaged: {error}.") from error

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> OperatingPoints:
        """Read what `to_dict` gave."""
        source, measured = content["source"], content["measured"]
        return cls(
            target=str(content["target"]),
            points=tuple(_point(values) for values in content["points"]),
            common=float(content["common"]),
            task=str(content["task"]),
            activation=str(content["activation"]),
            background=content["background"],
            method=str(content["method"]),
            correction=None if content["correction"] is None else _map_of(content["correction"]),
            source=None if source is None else StatisticsMetadata.from_values(source),
            expected=_estimates(content["expected"]),
            expected_common=_estimates(content["expected_common"]),
            measured=None
            if measured is None
            else Measured(measured["on"], _estimates(measured["values"]), _estimates(measured["common"])),
            stability=number_or_nan(content["stability"]),
            settings=dict(content["settings"]),
            notes=tuple(content["notes"]),
        )

    def with_measured(self, measured: Measured | None) -> OperatingPoints:
        """The same points with what they give on other images."""
        return replace(self, measured=measured)


def _point(values: Mapping[str, Any]) -> ClassPoint:
    threshold, low, high, own, weight = (
        number_or_nan(values[name]) for name in ("threshold", "low", "high", "own", "weight")
    )
    objects, found, false_alarms = (int(values[name]) for name in ("objects", "found", "false_alarms"))
    return ClassPoint(str(values["name"]), threshold, low, high, own, weight, objects, found, false_alarms)


def _listed(estimates: Estimates) -> dict[str, list[float]]:
    return {name: estimate.to_list() for name, estimate in estimates.items()}


def _estimates(content: Mapping[str, Any]) -> dict[str, Estimate]:
    return {name: Estimate.from_list(content[name]) for name in METRICS if name in content}


def _map_values(affine: ClassAffine) -> dict[str, Any]:
    return {
        "scale": affine.scale,
        "shift": affine.shift,
        "background": affine.background,
        "method": affine.method,
        "settings": dict(affine.settings),
        "source": None if affine.source is None else asdict(affine.source),
    }


def _map_of(values: Mapping[str, Any]) -> ClassAffine:
    source = values["source"]
    return ClassAffine(
        values["scale"],
        values["shift"],
        values["background"],
        values["method"],
        values["settings"],
        None if source is None else StatisticsMetadata.from_values(source),
    )
