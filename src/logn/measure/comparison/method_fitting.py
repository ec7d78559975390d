"""From the methods that a user names to maps of the logits of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import foreground_columns
from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.measure.comparison.comparison import CompareSettings
from logn.methods.affine import ClassAffine
from logn.methods.catalog import checked_inputs, fit, needs, parse, with_threshold
from logn.methods.provenance import LogitFacts, with_background_name
from logn.methods.recommend import RECOMMENDED
from logn.methods.sampled_scores import threshold_after
from logn.predictions.store import StoreHeader
from logn.statistics.moments import ClassMoments

# A map of logits: a ClassAffine, any callable from logits to logits, or None for no change.
LogitMap = Any
# What a comparison takes: specifications, or specifications and maps by name.
Methods = Sequence[str] | Mapping[str, str | LogitMap]
# What is compared where nothing is named.
DEFAULT_METHODS = (RECOMMENDED, "logn")
# The uncorrected model: always the first method.
BASELINE = "none"
# Of the recommended correction, beside its own.
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def named_methods(methods: Methods) -> dict[str, str | LogitMap]:
    """Methods by name, the uncorrected model first.

    Args:
        methods: A list of specifications, or specifications and maps by name.

    Example:
        >>> named_methods(["logn", "none"])
        {'none': None, 'logn': 'logn'}
    """
    if isinstance(methods, str):
        raise InputError(f"Expected `methods` to be a list of specifications, but got the text {methods!r}.")
    named = dict(methods) if isinstance(methods, Mapping) else {spec: spec for spec in methods}
    named.pop(BASELINE, None)
    return {BASELINE: None, **named}


@dataclass(frozen=True)
class FittedMethods:
    """The maps of a comparison.

    Args:
        maps: Of each method by name, the uncorrected model first.
        strengths: The recommended correction at several strengths, each with its specification.
        estimates: Of each method the score threshold to use instead of the user's, as `logn correct` prints it; None
            where training statistics give none.
    """

    maps: Mapping[str, LogitMap]
    strengths: Mapping[float, tuple[str, ClassAffine]]
    estimates: Sequence[float | None]

    @property
    def others(self) -> list[ClassAffine]:
        """The maps of strengths that no method has."""
        maps = self.maps.values()
        return [affine for _, affine in self.strengths.values() if not any(is_same_map(affine, own) for own in maps)]

    @property
    def transforms(self) -> list[LogitMap]:
        """All maps, those of the methods first."""
        return [*self.maps.values(), *self.others]


def fit_methods(
    methods: Mapping[str, str | LogitMap], header: StoreHeader, inputs: Mapping[str, Any], settings: CompareSettings
) -> FittedMethods:
    """Fit named methods for the logits of a store, with the user's score threshold where they take one."""
    allow_mismatch = settings.allow_mismatch
    maps = {
        name: map_for_store(
            name,
            with_threshold(method, settings.at) if isinstance(method, str) else method,
            header,
            inputs,
            allow_mismatch=allow_mismatch,
        )
        for name, method in methods.items()
    }
    strengths = strength_maps(methods, header, inputs, at=settings.at, allow_mismatch=allow_mismatch)
    estimates = [
        _estimated_threshold(transform, header, inputs.get("moments"), settings.at) for transform in maps.values()
    ]
    return FittedMethods(maps, strengths, estimates)


def _estimated_threshold(
    transform: LogitMap, header: StoreHeader, moments: ClassMoments | None, at: float
) -> float | None:
    if moments is None or not isinstance(transform, ClassAffine):
        return None
    estimate = threshold_after(transform, moments, at, activation=header.activation)
    return None if estimate is None else estimate.use


def map_for_store(
    name: str,
    method: str | LogitMap,
    header: StoreHeader,
    inputs: Mapping[str, Any] | None = None,
    *,
    allow_mismatch: bool = False,
) -> LogitMap:
    """The map of a method: fitted where it is a specification, checked where it was made elsewhere.

    Args:
        name: What to call it in messages.
        method: A specification, a ClassAffine, any function of logits, or None.
        header: What the store says of its logits.
        inputs: What specifications are fitted from: the keyword arguments of `logn.methods.fit`.
        allow_mismatch: Only warn where a map or the statistics are of other classes, another activation or other
            weights.

    Example:
        >>> other = ClassAffine([1.0, 1.0, 2.0], [0.0, 0.0, 0.0], background=-1)
        >>> map_for_store("other", other, StoreHeader(num_columns=3, background=0))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: The background differs: last in `other`, first in the predictions.
    """
    if isinstance(method, str):
        return fit_for_store(method, header, allow_mismatch=allow_mismatch, **(inputs or {}))
    if isinstance(method, ClassAffine):
        method.check_fits(_logits_of(header), what=f"`{name}`", allow_mismatch=allow_mismatch)
    return method


def strength_maps(
    methods: Mapping[str, str | LogitMap],
    header: StoreHeader,
    inputs: Mapping[str, Any],
    *,
    at: float,
    allow_mismatch: bool,
) -> dict[float, tuple[str, ClassAffine]]:
    """The recommended correction at several strengths, each with its specification; none where it is not compared.

    Where the recommendation is to do nothing, it is forced.
    """
    if RECOMMENDED not in [method.partition(":")[0] for method in methods.values() if isinstance(method, str)]:
        return {}

    def fitted(spec: str) -> ClassAffine:
        affine: ClassAffine = fit_for_store(spec, header, allow_mismatch=allow_mismatch, **inputs)
        return affine

    force = ",force=true" if is_same_map(fitted(f"{RECOMMENDED}:strength=1"), None) else ""
    specs = {strength: f"{RECOMMENDED}:strength={strength:g}{force}" for strength in STRENGTHS}
    return {strength: (spec, fitted(with_threshold(spec, at))) for strength, spec in specs.items()}


def is_same_map(affine: ClassAffine, other: LogitMap) -> bool:
    """Whether another map does the same, None for no change.

    Example:
        >>> affine = ClassAffine([1.0, 1.0], [0.5, 0.0])
        >>> is_same_map(affine, affine), is_same_map(affine, None), is_same_map(ClassAffine.identity(2), None)
        (True, False, True)
    """
    if other is None:
        other = ClassAffine.identity(affine.num_columns, background=affine.background)
    return isinstance(other, ClassAffine) and all(
        np.array_equal(getattr(affine, name), getattr(other, name)) for name in ("scale", "shift")
    )


def fit_for_store(spec: str, header: StoreHeader, *, allow_mismatch: bool = False, **inputs: Any) -> LogitMap:
    """Fit the method that `spec` names for the logits of a store.

    Args:
        spec: Such as "logn:margin=0" or "norcal", as `logn.methods.fit` reads it.
        header: What the store says of its logits: columns, background, activation, class names.
        allow_mismatch: Only warn where the statistics are of other classes, another activation or other weights.
        inputs: What it is fitted from: the keyword arguments of `logn.methods.fit`. Counts are put in the order of the
            store's classes where both have names.

    Example:
        >>> header = StoreHeader(num_columns=3, activation="sigmoid")
        >>> fit_for_store("norcal:gamma=1", header, counts=[100, 10, 1]).shift.round(3)
        array([-4.605, -2.303, -0.   ])
    """
    inputs = checked_inputs(inputs)
    name, _ = parse(spec)
    moments, counts = inputs.pop("moments", None), inputs.pop("counts", None)
    if moments is not None:
        _check_statistics(moments, _logits_of(header), allow_mismatch)
    table = None if counts is None else aligned_counts(counts, header)
    if header.class_columns is not None and "counts" in needs(name):
        return _fit_for_labelled_columns(spec, header, counts=table, **inputs)
    if isinstance(inputs.get("target"), ClassCounts):
        inputs["target"] = inputs["target"].aligned_to(header.class_names).instance_counts
    recorded: dict[str, Any] = {name: getattr(header, name) for name in ("background", "activation", "num_columns")}
    table = None if header.class_columns is not None else table
    affine = fit(spec, _with_names(moments, header), table, **(recorded | inputs))
    if affine.num_columns != header.num_columns:
        raise InputError(
            f"The input of `{spec}` has {affine.num_columns} columns, but the predictions have {header.num_columns}. "
            "Pass that of the same model."
        )
    return affine


def _fit_for_labelled_columns(spec: str, header: StoreHeader, **inputs: Any) -> ClassAffine:
    """Fit a method of counts, which only the classes of the labels have: the other columns are left alone."""
    plain = replace(header, num_columns=header.num_classes + (header.background is not None), class_columns=None)
    small = fit_for_store(spec, plain, **{name: value for name, value in inputs.items() if name != "num_columns"})
    if not isinstance(small, ClassAffine):
        raise InputError(
            f"`{spec}` is not a scale and shift per class, so it cannot leave columns alone, but the predictions have "
            f"{header.num_columns} columns for {header.num_classes} classes. Use another method."
        )
    scale, shift = np.ones(header.num_columns), np.zeros(header.num_columns)
    chosen = foreground_columns(small.num_columns, small.background)
    scale[header.columns], shift[header.columns] = small.scale[chosen], small.shift[chosen]
    return ClassAffine(scale, shift, header.background, small.method, small.settings)


def _with_names(moments: ClassMoments | None, header: StoreHeader) -> ClassMoments | None:
    """The statistics with the class names of the store, to which counts have been matched, where they have none."""
    names = None if header.class_columns is not None else with_background_name(header.class_names, header.background)
    if moments is None or names is None or moments.metadata.class_names is not None:
        return moments
    named = copy(moments)
    named.metadata = moments.metadata.with_changes(class_names=names)
    return named


def _logits_of(header: StoreHeader) -> LogitFacts:
    return LogitFacts(
        "the predictions",
        num_columns=header.num_columns,
        background=header.background,
        class_names=header.class_names if header.class_columns is None else None,  # of all columns, or not at all
        activation=header.activation,
        fingerprint=header.metadata.get("fingerprint"),
    )


def _check_statistics(moments: ClassMoments, facts: LogitFacts, allow_mismatch: bool) -> None:
    """Refuse statistics of other logits than those of the store."""
    what, metadata = "the statistics", moments.metadata
    facts.check_width(what, moments.num_columns)
    # Moments are per column: those that name no background serve any, which a map that is fitted to one does not.
    if metadata.background is not None:
        facts.check_background(what, metadata.background)
    else:
        metadata = metadata.with_changes(background=facts.background)
    facts.check_source(what, metadata, allow_mismatch=allow_mismatch)


def aligned_counts(counts: ClassCounts | npt.ArrayLike, header: StoreHeader) -> ClassCounts:
    """Class counts in the order of the store's foreground classes."""
    table = ClassCounts.of(counts)
    table = table.aligned_to(header.class_names)
    if table.num_classes != header.num_classes:
        raise InputError(
            f"Expected `counts` to have the {header.num_classes} foreground classes of the predictions, "
            f"but got {table.num_classes}."
        )
    return table


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
