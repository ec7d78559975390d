"""OperatingPoints: a score threshold per class, with what it finds, and the map that folds it into a model.

For sigmoids the map is a shift of each logit, with an objectness in an ONNX file a factor of each class score at the
output; both are exact. For a softmax the shifts are solved on predictions.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import DEFAULT_AT, FloatArray, logit, sigmoid
from logn.base.files import write_text
from logn.base.strict_json import plain_values, typed_values
from logn.base.text_table import USUAL, TextStyle, printable, write_table
from logn.data.class_names import listed, match_classes
from logn.errors import InputError, warn
from logn.methods.affine import ClassAffine
from logn.predictions.decoder import DecodeSettings, decode
from logn.predictions.store import Predictions
from logn.statistics.head import Head
from logn.thresholds.given import FORMULA, by_class, check_threshold, read_given
from logn.thresholds.solve import agreement, shifted_scores, solve_shifts

FILE_FORMAT = "logn.operating_points"
FILE_SCHEMA = 3
# Of the detections that thresholds per class keep, one threshold must keep this share.
LEAST_KEPT = 0.95
# Numbers in the rows that shifts are solved on.
MOST_NUMBERS = 30_000_000
# Rows whose scores come within this factor of a threshold may change sides while shifts are solved.
_NEAR = 0.25
_MOST_COLUMNS = 1_000_000
# More classes than this are shown by those whose threshold moved farthest.
MOST_ROWS = 20
PathLike = str | os.PathLike[str]
Names = Sequence[str] | None
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassPoint:
    """The threshold of one class, and what it finds on held-out images.

    Args:
        name: Of the class.
        threshold: A detection is kept at or above it.
        objects: Objects of the class.
        found: Objects found.
        false_alarms: Wrong detections kept.
        found_before: Objects found with the threshold that was used before.
        false_alarms_before: Wrong detections kept with it.
        reason: Why the class has the common threshold; empty where it has its own.
    """

    name: str
    threshold: float
    objects: int = 0
    found: int = 0
    false_alarms: int = 0
    found_before: int = 0
    false_alarms_before: int = 0
    reason: str = ""


@dataclass(frozen=True, eq=False)
class OperatingPoints:
    """A score threshold for each class of a model.

    `logn.operating_points` chooses them on labelled images, `OperatingPoints.from_thresholds` takes those you have.
    `points.affine(at=0.25)` is the map after which the one threshold 0.25 acts as all of them: exact for sigmoid heads.

    Args:
        points: One per class.
        at: The one threshold that will act as all of them.
        goal: What they were chosen for; "given" where they were not.
        common: The best single threshold for the same goal; None where they were given.
        correction: A map that comes before the thresholds; None for none.
        head: What the logits of the model are; None if unknown.
        summary: Metrics on held-out images with one threshold (`at`), with the best one and with these; each with the
            ends of its 95 % interval, where there is one.
        settings: How they were chosen: overlap, decoding, labels and so on.
        notes: What to know about them.

    Example:
        >>> points = OperatingPoints.from_thresholds({"car": 0.5}, class_names=["car", "person"])
        >>> points.thresholds.tolist()
        [0.5, 0.25]
        >>> points.affine().shift.round(4).tolist()
        [-1.0986, 0.0]
    """

    points: tuple[ClassPoint, ...]
    at: float = DEFAULT_AT
    goal: str = "given"
    common: float | None = None
    correction: ClassAffine | None = None
    head: Head | None = None
    summary: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_threshold("threshold `at`", self.at)
        for point in self.points:
            check_threshold(f"threshold of `{point.name}`", point.threshold)

    @classmethod
    def from_thresholds(
        cls, thresholds: Mapping[str, Any], at: float = DEFAULT_AT, class_names: Names = None
    ) -> OperatingPoints:
        """Take thresholds that exist already.

        Args:
            thresholds: Thresholds by class name, or what LibreYOLO (`best_conf_per_class`) and Roboflow
                (`per_class_confidence`, `class_thresholds`) give. Classes that are not named, or named with None,
                NaN or 0, have the common threshold: that of the key "default" or of the tool, else `at`. Classes that
                the model does not have are left out with a warning.
            at: The one threshold that will act as all of them.
            class_names: All classes of the model, in the order of its columns; None where `thresholds` has them so.

        Example:
            >>> points = OperatingPoints.from_thresholds({"car": 0.5, "bus": None}, class_names=["bus", "car", "cat"])
            >>> points.thresholds.tolist(), points.notes
            ([0.25, 0.5, 0.25], ('2 of 3 classes have no threshold of their own and keep 0.25: bus, cat.',))
        """
        named, common = by_class(thresholds, class_names or ())
        names = tuple(map(str, named if class_names is None else class_names))
        given = _of_model(named, names) if named else {}
        fallback = at if common is None else common
        kept = [name for name in names if given.get(name) is None]
        if len(kept) == len(names) and fallback == at:
            raise InputError("No class has a threshold of its own: name at least one.")
        share = f"{len(kept)} of {len(names)} classes have no threshold of their own and keep {fallback:g}"
        values = (given.get(name) for name in names)
        points = tuple(
            ClassPoint(name, fallback if value is None else value) for name, value in zip(names, values, strict=True)
        )
        return cls(points, at=at, notes=(f"{share}: {listed(kept)}.",) if kept else ())

    @property
    def thresholds(self) -> FloatArray:
        """`(F,)` one per class."""
        return np.array([point.threshold for point in self.points])

    @property
    def activation(self) -> str:
        """What the model applies to the logits: "sigmoid" where nothing says it is "softmax"."""
        return (self.head and self.head.activation) or "sigmoid"

    @property
    def class_names(self) -> tuple[str, ...]:
        """`(F,)` names."""
        return tuple(point.name for point in self.points)

    @property
    def columns(self) -> list[int]:
        """`(F,)` the column of the logits of each class."""
        return list(range(len(self.points))) if self.head is None else self.head.foreground.tolist()

    def affine(self, at: float | None = None, predictions: Any = None, *, at_least: float = LEAST_KEPT) -> ClassAffine:
        """The map after which the one threshold `at` keeps what the thresholds per class keep, the correction included.

        Args:
            at: The threshold that the model will be used with; by default that of the points.
            predictions: A prediction store. Sigmoids need none: their map is exact. For a softmax the map is solved on
                it.
            at_least: For a softmax: refuse a map that keeps a smaller share of the detections.
        """
        return self.fold(at, predictions, at_least=at_least).affine

    def fold(
        self, at: float | None = None, predictions: Any = None, *, at_least: float = LEAST_KEPT, at_output: bool = False
    ) -> FoldedPoints:
        """What `affine` gives, with the shares of detections that stay.

        `at_output` scales the class scores at the output of a model instead, which is exact beside an objectness.
        """
        at = check_threshold("threshold `at`", self.at if at is None else at)
        store = None if predictions is None else _opened(self, predictions)
        shifts, factors = logit(at) - logit(self.thresholds), None
        is_softmax = self.activation == "softmax"
        if at_output:
            shifts, factors = 0 * shifts, at / self.thresholds
        elif self.head is not None and self.head.objectness:
            raise InputError(
                "No shift of the logits acts as thresholds on scores that an objectness multiplies. Save the "
                "thresholds and fold them into an ONNX file: `logn fold MODEL.onnx --thresholds FILE`."
            )
        elif is_softmax:
            shifts = _solved(self, store, at, shifts)
        folded = FoldedPoints(self, _whole_map(self, shifts, at), at, at_output or not is_softmax, factors)
        if store is not None:
            folded = folded.measured(store)
        if is_softmax and folded.kept < at_least:
            nearer = "" if self.common is None else f" (`at`) nearer to the common one, {self.common:.3g}"
            raise InputError(
                f"With a softmax, one threshold of {at:g} keeps {100 * folded.kept:.1f} % of what the thresholds per "
                f"class keep, less than {100 * at_least:.0f} %: choose a threshold{nearer}, or apply the thresholds "
                "per class to the detections."
            )
        return folded

    def __str__(self) -> str:
        return write_points(self)

    def save(self, path: PathLike) -> None:
        """Write the points in one atomic step: everything as .json, classes and thresholds as .csv."""
        text = io.StringIO()
        if Path(path).suffix.lower() == ".csv":
            points = ((_as_cell(point.name), repr(point.threshold)) for point in self.points)
            rows = [("class", "threshold"), *points]
            csv.writer(text, lineterminator="\n").writerows(rows)
        else:
            text.write(json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        write_text(path, text.getvalue())

    @classmethod
    def load(
        cls, path: PathLike | Mapping[str, Any] | OperatingPoints, at: float | None = None, class_names: Names = None
    ) -> OperatingPoints:
        """Read points that `save` or `logn thresholds -o` wrote, or thresholds by class name as JSON or CSV.

        Args:
            path: A .json or .csv file, JSON text such as '{"car": 0.5}', what `from_thresholds` takes, or points.
            at: The one threshold that will act as all of them; by default what the file says, else 0.25.
            class_names: All classes of the model, in order; needed where the file names only some.
        """
        if isinstance(path, OperatingPoints):
            return path if at is None else replace(path, at=at)
        content = read_given(path)
        if content.get("format") != FILE_FORMAT:
            return cls.from_thresholds(content, DEFAULT_AT if at is None else at, class_names)
        if (schema := content.get("schema")) != FILE_SCHEMA:
            raise InputError(
                f"`{path}` has schema {schema!r}; this version reads {FILE_SCHEMA}. Choose the thresholds again."
            )
        try:
            values = {item.name: content[item.name] for item in fields(cls)}
            points: OperatingPoints = typed_values(cls, values, {"correction": _correction})
            _check_content(points)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            reason = str(error).rstrip(".")
            raise InputError(f"`{path}` is a damaged file of thresholds: {reason}.") from error
        points = points if at is None else replace(points, at=at)
        if class_names is None or points.head is not None:
            return points
        # Of a results file, whose labels may have other classes than the model.
        chosen = dict(zip(points.class_names, points.thresholds.tolist(), strict=True))
        return cls.from_thresholds(chosen, points.at, class_names)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return dict(plain_values({"format": FILE_FORMAT, "schema": FILE_SCHEMA, **asdict(self)}))


@dataclass(frozen=True, eq=False)
class FoldedPoints:
    """A map, with the share of what thresholds per class keep that one threshold keeps too; NaN where not measured.

    Args:
        points: The thresholds.
        affine: Their correction, then the shifts.
        at: The one threshold.
        is_exact: Whether the fold is exact by construction.
        factors: `(F,)` of the class scores at the output of a model with an objectness; None where the shifts do it.
        kept: Of the detections that either keeps, those that both keep, with NMS within classes and no cap.
        capped: The same with a cap of 300 per image, as the points were chosen with.
        agnostic: The same with class-agnostic NMS.
        uncorrected: Objects found and false alarms `(2, F)` at `at` without the correction; None where not counted.
    """

    points: OperatingPoints
    affine: ClassAffine
    at: float
    is_exact: bool
    factors: FloatArray | None = None
    kept: float = math.nan
    capped: float = math.nan
    agnostic: float = math.nan
    uncorrected: IntArray | None = None

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

    def measured(self, store: Predictions) -> FoldedPoints:
        """The same with the shares that stay on these predictions."""
        settings = DecodeSettings().resolved(store.header)
        uncapped = replace(settings, max_detections=None)
        ways = (uncapped, settings, replace(uncapped, nms="class-agnostic"))
        kept, capped, agnostic = (self._share(store, way) for way in ways)
        return replace(self, kept=kept, capped=capped, agnostic=agnostic)

    def _share(self, store: Predictions, settings: DecodeSettings) -> float:
        """Of the detections that either way keeps, those that both keep."""
        floor = float(self.points.thresholds.min()) * (1 - 1e-6)
        plain = decode(store, self.points.correction, replace(settings, score_threshold=floor))
        plain = plain.take(plain.scores.astype(np.float64) >= self.points.thresholds[plain.labels])
        columns = self.points.columns
        # A common factor changes no decision, and keeps the scores below 1.
        factors = np.ones(1) if self.factors is None else self.factors
        limits = replace(settings, score_threshold=self.at / float(factors.max()))

        def scaled(logits: Any) -> Any:
            mapped = self.affine(logits)
            mapped[:, columns] = logit(sigmoid(mapped[:, columns]) * factors / factors.max())
            return mapped

        one = decode(store, self.affine if self.factors is None else scaled, limits)
        left, right = (
            set(zip(kept.image_index.tolist(), kept.proposal.tolist(), kept.labels.tolist(), strict=True))
            for kept in (plain, one)
        )
        return len(left & right) / len(left | right) if left or right else 1.0


def _of_model(named: Mapping[str, float | None], names: Sequence[str]) -> dict[str, float | None]:
    """The thresholds by the names of the model; those of classes that it does not have are left out with a warning."""
    shown, own = {printable(name): name for name in names}, {*names}  # a .csv file has the names as they are printed
    named = {name if name in own else shown.get(name, name): value for name, value in named.items()}
    match = match_classes(names, [*named], "thresholds")
    if unknown := match.only_in_labels:
        (close, *_) = [*difflib.get_close_matches(unknown[0], names, 1), ""]
        hint = f" (did you mean {close}?)" if close else ""
        warn(f"The model does not have {len(unknown)} of the classes that have thresholds{hint}: {listed(unknown)}.")
    values = list(named.values())
    places = zip(names, match.label_of_model.tolist(), strict=True)
    return {name: values[place] for name, place in places if place >= 0}


def _opened(points: OperatingPoints, predictions: Any) -> Predictions:
    """The store, whose classes must be those of the points."""
    store = predictions if isinstance(predictions, Predictions) else Predictions(predictions)
    names = store.head.class_names
    if store.head.num_classes != len(points.points) or (names is not None and names != points.class_names):
        raise InputError(f"The predictions in `{store.path}` and the thresholds are of different classes.")
    return store


def _whole_map(points: OperatingPoints, shifts: FloatArray, at: float) -> ClassAffine:
    head = points.head or Head(names=points.class_names, activation=points.activation)
    whole = np.zeros(head.width)
    whole[points.columns] = shifts
    settings = {"goal": points.goal, "at": at}
    after = ClassAffine(np.ones(len(whole)), whole, head, method="thresholds", settings=settings)
    return after if points.correction is None else points.correction.then(after)


def _solved(points: OperatingPoints, store: Predictions | None, at: float, start: FloatArray) -> FloatArray:
    """Shifts `(F,)`, solved on rows near a threshold, now or after the first shifts; of very many, on some images."""
    if store is None:
        raise InputError("Thresholds for a softmax are folded with predictions to solve the shifts on: pass a store.")
    columns, thresholds = points.columns, points.thresholds
    parts, size = [np.empty((0, store.head.width))], 0
    for index in np.random.default_rng(0).permutation(len(store)).tolist():
        logits = np.asarray(store[index].logits, np.float64)
        logits = logits if points.correction is None else points.correction(logits)
        now, shifted = (shifted_scores(logits, columns, shifts) for shifts in (0.0, start))
        near = (now >= _NEAR * thresholds) | (shifted >= _NEAR * at)
        parts.append(logits[near.any(axis=1)])
        size += parts[-1].size
        if size > MOST_NUMBERS:
            break
    rows = np.concatenate(parts)
    wanted = shifted_scores(rows, columns, 0.0) >= thresholds
    # Beside a background the formula for sigmoids is nearly right; without one a common shift does nothing.
    solved = [solve_shifts(rows, columns, wanted, at, first) for first in (start, np.zeros_like(start))]
    return max(solved, key=lambda shifts: agreement(wanted, shifted_scores(rows, columns, shifts) >= at))


def _correction(values: Mapping[str, Any] | None) -> ClassAffine | None:
    return (
        None if values is None else ClassAffine(**{**values, "head": values["head"] and Head.of_values(values["head"])})
    )


def _check_content(points: OperatingPoints) -> None:
    """Refuse points of a file whose columns are not one per class or not those of its correction, or with gaps."""
    width = len(points.points) if points.head is None else points.head.width
    if width > _MOST_COLUMNS:  # beyond all memory, no number of a model
        raise ValueError(f"`head` has {width} columns")
    if len(points.columns) != len(points.points):
        raise ValueError(f"`head` has {len(points.columns)} classes, the thresholds {len(points.points)}")
    if points.correction is not None and points.correction.num_columns != width:
        raise ValueError(f"the correction has {points.correction.num_columns} columns, the thresholds {width}")
    _whole_map(points, np.zeros(len(points.points)), points.at)
    levels = list(points.summary.values())
    if points.goal != "given" and (points.common is None or not levels):
        raise ValueError("it has no `common` threshold or no `summary`")
    if any(level.keys() != levels[0].keys() or {*map(len, level.values())} - {1, 3} for level in levels):
        raise ValueError("`summary` must have the same metrics for all thresholds, each with one number or three")


def _as_cell(name: str) -> str:
    """A class name in a .csv file: an apostrophe keeps a spreadsheet from running it, control characters are shown."""
    return f"'{printable(name)}" if name[:1] in FORMULA else printable(name)


def write_points(points: OperatingPoints, style: TextStyle = USUAL, uncorrected: IntArray | None = None) -> str:
    """The classes with their thresholds, what they find on held-out images, and the notes, as text.

    Args:
        points: The thresholds.
        style: What the text must fit.
        uncorrected: Objects found and false alarms `(2, F)` of the model before its correction, to show too.
    """
    rows = points.points
    order = np.argsort(-np.abs(points.thresholds - (points.common or points.at)), kind="stable")
    shown = sorted(order[:MOST_ROWS].tolist())
    if points.goal == "given":
        given = [[rows[place].name, f"{rows[place].threshold:.3g}"] for place in shown]
        return "\n".join([write_table(["class", "threshold"], given, style), *map(style.wrap, points.notes)])
    before = "" if uncorrected is None else f"as it was with {points.at:g} -> corrected "
    states = f"{before}with {points.at:g} for all classes -> with these thresholds"
    parts = [style.wrap(f"Found and false alarms: {states}.")]
    table = [_row(points, [place], uncorrected) for place in shown] + [_row(points, [*range(len(rows))], uncorrected)]
    parts.append(write_table(["class", "objects", "threshold", "found", "false alarms"], table, style))
    if len(shown) < len(rows):
        parts.append(style.wrap(f"{len(rows) - len(shown)} more classes have thresholds near {points.common:.3f}."))
    for reason in sorted({row.reason for row in rows} - {""}):
        names = [row.name for row in rows if row.reason == reason]
        keep = f"keep the common {points.common:.3f} ({len(names)})"
        parts.append(style.wrap(f"* Classes with {reason} {keep}: {listed(names)}."))
    measured = list(points.summary.values())
    metrics = [[name, *(_in_words(*values[name]) for values in measured)] for name in measured[0]]
    parts += ["", write_table(["", *points.summary], metrics, style), *map(style.wrap, points.notes)]
    return "\n".join(parts)


def _row(points: OperatingPoints, places: Sequence[int], uncorrected: IntArray | None) -> list[str]:
    """A row of the table for one class, or for several together."""
    rows = [points.points[place] for place in places]
    first = [] if uncorrected is None else uncorrected[:, list(places)].sum(axis=1).tolist()
    cells = []
    for side, name in enumerate(("found", "false_alarms")):
        counts = first[side : side + 1] + [sum(getattr(row, each) for row in rows) for each in (f"{name}_before", name)]
        cells.append(" -> ".join(map(str, counts)))
    threshold = f"{rows[0].threshold:.3f}{' *' if rows[0].reason else ''}" if len(rows) == 1 else ""
    name = rows[0].name if len(rows) == 1 else "all classes"
    return [name, str(sum(row.objects for row in rows)), threshold, *cells]


def _in_words(value: float | None, *ends: float) -> str:
    """A number with its interval.

    Example:
        >>> _in_words(0.5, 0.25, 0.75), _in_words(None)
        ('0.500 [0.250, 0.750]', '–')
    """
    interval = " [{:.3f}, {:.3f}]".format(*ends) if ends else ""
    return "–" if value is None or math.isnan(value) else f"{value:.3f}{interval}"
