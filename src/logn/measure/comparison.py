"""The result of a comparison, of a detector or a classifier: settings, one row per method, a verdict in words."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from logn import __version__
from logn.base.arrays import DEFAULT_AT, FloatArray
from logn.base.checks import Between, OneOf, Whole, checked
from logn.base.files import check_new, put_files, staging_folder
from logn.base.strict_json import parse_json, plain_values, typed_values
from logn.errors import InputError, warn
from logn.measure.classification.accuracy import ConfusedPair, Reliability
from logn.measure.detection.bootstrap import Interval
from logn.measure.detection.example_images import GalleryImage
from logn.measure.detection.metrics import EvaluationProtocol, RecallAtCount
from logn.measure.detection.threshold_curve import ThresholdCurve
from logn.measure.detection.tide import ERROR_TYPES, SPECIAL_ERRORS, ErrorTypes
from logn.methods.affine import ClassAffine
from logn.predictions.detections import DecodeSettings
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

DETECTION: str = "detection"
CLASSIFICATION: str = "classification"
FORMAT, SCHEMA = "logn.comparison", 6
DOCUMENT, TABLES = "comparison.json", "comparison.md"
PACKAGES = ("numpy", "hotcoco", "torch", "torchvision")


@dataclass(frozen=True)
@checked
class CompareSettings:
    """What is measured, and how.

    Args:
        style: "lvis" or "coco"; "auto" for what the annotations are. For detectors.
        decode: Threshold, suppression and limits of the decoder. For detectors.
        num_bootstrap: How many bootstrap samples of the images or rows the intervals come from; 0 for no intervals.
        confidence: Of the intervals.
        seed: Of the bootstrap.
        errors: Also find the kinds of error (TIDE) over all images. For detectors.
        bounds: The last rare and the last common training count, when groups come from counts; by default 10 and 100
            for detectors. For classifiers the last few-shot and the last medium-shot count, by default 19 and 100.
        only_predicted: Evaluate only the predicted images when the annotations have more. For detectors.
        allow_missing_classes: Leave out objects of classes that the model does not have, instead of refusing them. For
            detectors.
        allow_mismatch: Only warn of maps and statistics of another model.
        report_images: How many images the report looks at closely, evenly spaced, for kinds of error and pictures; 0
            for none. For detectors.
        at: The score threshold that the model is used with, for the verdict and the report. For detectors.

    Example:
        >>> CompareSettings(num_bootstrap=0).at
        0.25
    """

    style: Annotated[str, OneOf("auto", "lvis", "coco")] = "auto"
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    num_bootstrap: Annotated[int, Whole(0)] = 1000
    confidence: Annotated[float, Between(0, 1, above=True)] = 0.95
    seed: int = 0
    errors: bool = False
    bounds: tuple[int, int] | None = None
    only_predicted: bool = False
    allow_missing_classes: bool = False
    allow_mismatch: bool = False
    report_images: Annotated[int, Whole(0)] = 500
    at: Annotated[float, Between(0, 1)] = DEFAULT_AT


@dataclass(frozen=True)
class Provenance:
    """What is needed to check or repeat the numbers.

    Args:
        created: Date and time, UTC.
        versions: Version of each package by name, LogN and Python included.
        command: The words of the command line; empty for a comparison that was made from Python.
        inputs: What is known of the inputs, as plain values: "predictions", "annotations", "statistics" and so on.
    """

    created: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def now(cls, inputs: Mapping[str, Any]) -> Provenance:
        """Of a comparison that is made now."""
        versions = {"logn": __version__}
        for package in PACKAGES:
            try:
                versions[package] = version(package)
            except PackageNotFoundError:
                continue
        versions["Python"] = platform.python_version()
        return cls(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", versions, (), inputs)


def describe_statistics(moments: ClassMoments | None) -> dict[str, Any] | None:
    """What statistics say of themselves, as plain values.

    Example:
        >>> describe_statistics(ClassMoments(2))["logits"]
        0
    """
    if moments is None:
        return None
    names = ("layer", "population", "activation", "source")
    return {"logits": int(moments.count.max()), **{name: getattr(moments.head, name) for name in names}}


@dataclass(frozen=True)
class EvaluatedClass:
    """A class, with its numbers in the training and in the evaluated data.

    Args:
        id: Its id in the annotations; of a classifier its column.
        name: Its name.
        group: "r", "c" or "f"; of a classifier "many", "medium" or "few"; None when unknown.
        examples: Boxes in the evaluated images, or evaluated rows.
        train_count: Training images; None when unknown.
        mean: Mean logit over the training data; None where no value was seen, or without statistics.
        std: Its standard deviation; None where fewer than two values were seen, or without statistics.
    """

    id: int
    name: str
    group: str | None
    examples: int
    train_count: float | None = None
    mean: float | None = None
    std: float | None = None


def with_training(
    classes: Sequence[EvaluatedClass], train_counts: FloatArray | None, moments: ClassMoments | None
) -> tuple[EvaluatedClass, ...]:
    """The classes with what is known from training."""
    if train_counts is not None:
        classes = [replace(entry, train_count=float(n)) for entry, n in zip(classes, train_counts, strict=True)]
    if moments is None:
        return tuple(classes)
    foreground = moments.head.foreground
    mean = np.where(moments.count[foreground] > 0, moments.mean[foreground], np.nan)
    if len(mean) != len(classes):
        return tuple(classes)
    columns = zip(classes, plain_values(mean), plain_values(moments.std[foreground]), strict=True)
    return tuple(replace(entry, mean=middle, std=spread) for entry, middle, spread in columns)


@dataclass(frozen=True, eq=False)
class ReportDetails:
    """Pictures and kinds of error of some images, before and after a correction.

    Args:
        images: How many images were looked at.
        of_images: Of how many evaluated ones.
        gallery: The images to show, with their boxes.
        errors: Kinds of error over these images; None where they were found over all of them.
    """

    images: int
    of_images: int
    gallery: tuple[GalleryImage, ...]
    errors: ErrorTypes | None = None


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What one method reaches on the evaluated images or rows; all values but NLL and numbers lie between 0 and 1.

    Args:
        name: The method as it was asked for.
        values: All metrics by name.
        per_class: `(F,)` AP or accuracy of each class; NaN for a class without examples.
        differences: Of each metric to the uncorrected model, with an interval where draws were made.
        transform: The map of logits that was measured: a `ClassAffine`, a callable, or None for no change.
        seconds: Time for this method's metrics, and its share of decoding.
        recall: Of detectors what is found with as many detections as the uncorrected model has, by the threshold that
            it has so many above: 0.5, 0.25, 0.05 and the user's.
        thresholds: Of detectors what is found at each score threshold.
        errors: Of detectors the kinds of error and what they cost, where they were asked for.
        details: Of detectors what the report shows in addition to the metrics.
        predictions_per_class: Of classifiers how often each class was predicted.
        confused: Of classifiers how often the pairs are confused that the uncorrected model confuses most.
        reliability: Of classifiers the accuracy by confidence.
    """

    name: str
    values: Mapping[str, float]
    per_class: npt.NDArray[np.float64]
    differences: Mapping[str, Interval] = field(default_factory=dict)
    transform: Any = None
    seconds: float = 0.0
    recall: Mapping[float, RecallAtCount] = field(default_factory=dict)
    thresholds: ThresholdCurve | None = None
    errors: ErrorTypes | None = None
    details: ReportDetails | None = None
    predictions_per_class: npt.NDArray[np.int64] | None = None
    confused: tuple[ConfusedPair, ...] = ()
    reliability: Reliability | None = None

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def check(self, baseline: MethodResult, num_classes: int) -> None:
        """Raise ValueError for curves of unequal lengths, other kinds of error and labels of unknown classes."""
        curve = self.thresholds
        if curve and not len(curve.thresholds) == len(curve.found) == len(curve.false_alarms):
            raise ValueError(f"the curve of {self.name!r:.40} has unequal lengths")
        if self.tide and not {*ERROR_TYPES, *SPECIAL_ERRORS} <= {*self.tide}:
            raise ValueError(f"{self.name!r:.40} lacks a kind of error")
        labels = [label for pair in self.confused for label in (pair.label, pair.predicted)]
        if self.details:
            labels += [mark.label for image in self.details.gallery for mark in (*image.before, *image.after)]
        if len(self.confused) != len(baseline.confused) or not all(0 <= label < num_classes for label in labels):
            raise ValueError(f"{self.name!r:.40} has pairs or boxes of other classes")

    @property
    def settings(self) -> Mapping[str, Any]:
        """Parameters of the method."""
        return getattr(self.transform, "settings", {})

    @property
    def tide(self) -> dict[str, float] | None:
        """AP50 and what repairing each kind of error would add: over all images, or those that were looked at."""
        errors = self.errors or (self.details and self.details.errors)
        return {"AP50": errors.base, **errors.gains} if errors else None


@dataclass(frozen=True)
class StrengthPoint:
    """What the recommended correction reaches at one strength.

    Args:
        strength: From 0, for detectors with a background the margin alone, to 1, the whole prior.
        method: The specification of that method.
        values: Metrics by name: of detectors those at an equal number of detections at the user's threshold, of
            classifiers "balanced", "top-1", "few" and, where training counts are known, "long-tailed": the accuracy on
            rows with the class mix of the training.
        threshold: Of detectors the score threshold that keeps as many detections.
    """

    strength: float
    method: str
    values: Mapping[str, float]
    threshold: float | None = None


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods measured on the same data, of a detector or of a classifier; the first row is the uncorrected model.

    `print(comparison)` gives the table, `comparison["logn"]` a row, `comparison.verdict("logn")` a sentence.

    Args:
        rows: One per method.
        task: What was compared: "detection" or "classification".
        description: What was measured on what, in one line.
        classes: In the order of `per_class` of each row.
        protocols: Of a detector's metrics: "AP", and "mask" where masks were measured.
        settings: What was measured, and how.
        seconds: Time by step.
        notes: What to know before reading the numbers.
        provenance: How it was made.
        strengths: The recommended correction at several strengths, where it is one of the methods.

    Example:
        >>> import logn, tempfile
        >>> labels = np.repeat([0, 1, 2], 20)
        >>> logits = 2 * np.eye(3)[labels] + [3.0, 1.0, 0.0]
        >>> settings = CompareSettings(num_bootstrap=0)
        >>> comparison = logn.compare(logits, labels, ["logn"], train_logits=logits, settings=settings)
        >>> [(row.name, round(row["top-1"], 2)) for row in comparison.rows]
        [('none', 0.33), ('logn', 1.0)]
        >>> folder = tempfile.mkdtemp()
        >>> comparison.save(folder)
        >>> logn.Comparison.load(folder) == comparison
        True
    """

    rows: tuple[MethodResult, ...]
    task: str
    description: str
    _: KW_ONLY
    classes: tuple[EvaluatedClass, ...] = ()
    protocols: Mapping[str, EvaluationProtocol] = field(default_factory=dict)
    settings: CompareSettings = field(default_factory=CompareSettings)
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    strengths: tuple[StrengthPoint, ...] = ()

    def __getitem__(self, name: str) -> MethodResult:
        return self._row("name", name)

    def _row(self, parameter: str, name: str) -> MethodResult:
        for row in self.rows:
            if row.name == name:
                return row
        names = ", ".join(row.name for row in self.rows)
        raise InputError(f"Expected `{parameter}` to be one of {names}, but got {name!r}.")

    def __str__(self) -> str:
        from logn.measure.tables import write_comparison

        return write_comparison(self)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same content: everything that `save` keeps."""
        return isinstance(other, Comparison) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @property
    def protocol(self) -> EvaluationProtocol:
        """The protocol of a detector's AP."""
        if "AP" not in self.protocols:
            raise InputError("This comparison is of a classifier; only detectors have a protocol of AP.")
        return self.protocols["AP"]

    @property
    def baseline(self) -> MethodResult:
        """The uncorrected model."""
        return self.rows[0]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All metrics that were measured, in the order of a table."""
        return tuple(self.rows[0].values)

    def focus(self, method: str | None = None) -> MethodResult:
        """The method to look at closely: the named one, or the first after the uncorrected model."""
        if method is not None:
            return self._row("method", method)
        if len(self.rows) < 2:
            raise InputError("The comparison has no method other than `none`. Compare again, with `methods`.")
        return self.rows[1]

    def verdict(self, name: str | None = None) -> str:
        """Summarise in a sentence or two what a method changes; by default the first after the uncorrected model."""
        from logn.measure.tables import describe_method

        if len(self.rows) == 1:
            return f"Nothing was compared: {self.rows[0].name} is the only row."
        return describe_method(self, self.focus(name))

    def made_by(self, command: tuple[str, ...]) -> Comparison:
        """The same comparison with the command that made it."""
        return replace(self, provenance=replace(self.provenance, command=command))

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON; verdicts in words in addition."""
        verdicts = {row.name: self.verdict(row.name) for row in self.rows[1:]}
        rows = [_values(row) | {"transform": _encode_map(row.transform)} for row in self.rows]
        head = {"format": FORMAT, "schema": SCHEMA, "verdict": self.verdict(), "verdicts": verdicts}
        return dict(plain_values(head | _values(self) | {"rows": rows}))

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write `comparison.json`, which has everything, and `comparison.md`, the tables: both or neither."""
        from logn.measure.tables import write_comparison

        unsaved = [row.name for row in self.rows if (_encode_map(row.transform) or {}).get("kind") == "unsaved"]
        if unsaved:
            names = ", ".join(unsaved)
            warn(f"The map of {names} is a Python function, which cannot be saved. Only its numbers are.")
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        texts = {TABLES: write_comparison(self, "markdown"), DOCUMENT: json.dumps(self.to_dict(), ensure_ascii=False)}
        with staging_folder(root / DOCUMENT) as staging:
            for name, text in texts.items():
                (staging / name).write_text(text + "\n", encoding="utf-8", errors="backslashreplace", newline="")
            put_files({staging / name: root / name for name in texts}, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Comparison:
        """Read what `save` or `logn compare -o` wrote."""
        path = Path(folder) / DOCUMENT
        if not path.is_file():
            raise InputError(f"`{folder}` has no `{DOCUMENT}`. Pass a folder that `logn compare -o` wrote.")
        try:
            content = parse_json(path.read_bytes())
            if (content["format"], content["schema"]) != (FORMAT, SCHEMA):
                raise ValueError(f"{content['format']} of schema {content['schema']}, not {FORMAT} of schema {SCHEMA}")
            names = {field.name for field in fields(cls)}
            comparison: Comparison = typed_values(cls, {name: content[name] for name in names}, _DECODERS)
            comparison._check_rows()
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError) as error:
            raise InputError(
                f"`{path}` is not as `logn compare -o` writes it ({type(error).__name__}: {error}). Compare again."
            ) from error
        return comparison

    def _check_rows(self) -> None:
        """Refuse rows of other metrics or classes than the first, which would fail where they are shown."""
        if self.task not in (DETECTION, CLASSIFICATION) or not self.rows:
            raise ValueError(f"`task` is {self.task!r:.40}, and there are {len(self.rows)} methods")
        metrics, width = set(self.metric_names), len(self.classes)
        for row in self.rows:
            predicted = row.per_class if row.predictions_per_class is None else row.predictions_per_class
            lengths = {len(row.per_class), len(predicted)}
            if set(row.values) != metrics or not set(row.differences) <= metrics or lengths != {width}:
                raise ValueError(f"{row.name!r:.40} has other metrics or classes than the first row")
            row.check(self.baseline, width)
        if len({frozenset(point.values) for point in self.strengths}) > 1:
            raise ValueError("`strengths` have different metrics")


@dataclass(frozen=True)
class UnsavedMap:
    """Stands for a map of logits that a saved comparison could not hold: only its numbers were kept.

    Example:
        >>> UnsavedMap()(np.zeros(2))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: This map could not be saved with its comparison. Compare again to use it.
    """

    def __call__(self, logits: Any) -> Any:
        """Refuse: there is nothing to map with."""
        raise InputError("This map could not be saved with its comparison. Compare again to use it.")


def _values(result: Comparison | MethodResult) -> dict[str, Any]:
    return {field.name: getattr(result, field.name) for field in fields(result)}


def _encode_map(transform: Any) -> dict[str, Any] | None:
    """A fitted map; of a Python function only the kind."""
    if isinstance(transform, ClassAffine):
        names = ("scale", "shift", "head", "method", "settings")
        return {"kind": "affine", **{name: getattr(transform, name) for name in names}}
    return None if transform is None else {"kind": "unsaved"}


def _decode_map(content: Mapping[str, Any] | None) -> Any:
    if content is None:
        return None
    if content["kind"] == "affine":
        head = None if content["head"] is None else Head.of_values(content["head"])
        return ClassAffine(content["scale"], content["shift"], head, content["method"], content["settings"])
    return UnsavedMap()


_DECODERS = {"transform": _decode_map}


def check_comparison_folder(folder: str | os.PathLike[str], *, overwrite: bool = True) -> list[Path]:
    """Raise InputError if `Comparison.save` would replace a file that it did not write, or that is to stay.

    Example:
        >>> [path.name for path in check_comparison_folder("no such folder")]
        ['comparison.json', 'comparison.md']
    """
    paths = [Path(folder) / name for name in (DOCUMENT, TABLES)]
    present = [path for path in paths if path.exists()]
    if present and not _is_comparison(paths[0]):
        raise InputError(
            f"`{present[0]}` would be overwritten, but `logn compare -o` did not write it. Use another folder."
        )
    check_new(*paths, overwrite=overwrite)
    return paths


def _is_comparison(path: Path) -> bool:
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT
