"""From the methods that a user names to maps of the logits of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.measure.comparison import CompareSettings
from logn.methods.affine import ClassAffine
from logn.methods.catalog import Spec, checked_inputs, fit, needs, parse
from logn.methods.recommend import RECOMMENDED
from logn.methods.sampled_scores import threshold_after
from logn.statistics.head import Head, foreground_columns
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
        inputs: The names of what they were fitted from.
        strengths: The recommended correction at several strengths, each with its specification.
        estimates: Of each method the score threshold to use instead of the user's, as `logn correct` prints it; None
            where training statistics give none.
    """

    maps: Mapping[str, LogitMap]
    inputs: tuple[str, ...]
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
    methods: Mapping[str, str | LogitMap], head: Head, inputs: Mapping[str, Any], settings: CompareSettings
) -> FittedMethods:
    """Fit named methods for the logits of a store, with the user's score threshold where they take one."""
    specs = {name: parse(method) for name, method in methods.items() if isinstance(method, str | Spec)}

    def fitted(spec: Spec) -> ClassAffine:
        return fit_for_store(spec, head, allow_mismatch=settings.allow_mismatch, **inputs)

    maps: dict[str, LogitMap] = {}
    for name, method in methods.items():
        maps[name] = method
        if name in specs:
            maps[name] = fitted(specs[name].with_options(threshold=settings.at))
        elif isinstance(method, ClassAffine):
            method.check_fits(head, "the predictions", what=f"`{name}`", allow_mismatch=settings.allow_mismatch)
    strengths = {}
    if any(spec.name == RECOMMENDED for spec in specs.values()):
        # Where the recommendation is to do nothing, it is forced.
        force = {"force": True} if is_same_map(fitted(Spec(RECOMMENDED, {"strength": 1.0})), None) else {}
        for strength in STRENGTHS:
            spec = Spec(RECOMMENDED, {"strength": strength, **force})
            strengths[strength] = (str(spec), fitted(spec.with_options(threshold=settings.at)))
    estimates: list[float | None] = []
    for transform in maps.values():
        estimate = None
        if inputs.get("moments") is not None and isinstance(transform, ClassAffine):
            estimate = threshold_after(transform, inputs["moments"], settings.at, activation=str(head.activation))
        estimates.append(None if estimate is None else estimate.use)
    fitted_from = tuple(name for name, value in inputs.items() if value is not None)
    return FittedMethods(maps, fitted_from, strengths, estimates)


def is_same_map(affine: ClassAffine, other: LogitMap) -> bool:
    """Whether another map does the same, None for no change.

    Example:
        >>> affine = ClassAffine([1.0, 1.0], [0.5, 0.0])
        >>> is_same_map(affine, affine), is_same_map(affine, None), is_same_map(ClassAffine.identity(2), None)
        (True, False, True)
    """
    if other is None:
        other = ClassAffine.identity(affine.num_columns, Head(background=affine.background))
    return isinstance(other, ClassAffine) and all(
        np.array_equal(getattr(affine, name), getattr(other, name)) for name in ("scale", "shift")
    )


def fit_for_store(spec: str | Spec, head: Head, *, allow_mismatch: bool = False, **inputs: Any) -> ClassAffine:
    """Fit the method that `spec` names for the logits of a store.

    Args:
        spec: Such as "logn:margin=0" or "norcal", as `logn.methods.fit` reads it.
        head: What the logits are.
        allow_mismatch: Only warn where the statistics are of other classes, another activation or other weights.
        inputs: What it is fitted from: the keyword arguments of `logn.methods.fit`. Counts are put in the order of the
            store's classes where both have names.

    Example:
        >>> fit_for_store("norcal:gamma=1", Head(3, activation="sigmoid"), counts=[100, 10, 1]).shift.round(3)
        array([-4.605, -2.303, -0.   ])
    """
    inputs = checked_inputs(inputs)
    moments, counts = inputs.pop("moments", None), inputs.pop("counts", None)
    if moments is not None:
        _check_statistics(moments, head, allow_mismatch)
    table = None if counts is None else aligned_counts(counts, head)
    if head.unused and "counts" in needs(parse(spec).name):
        return _fit_for_labelled_columns(spec, head, counts=table, **inputs)
    if isinstance(inputs.get("target"), ClassCounts):
        inputs["target"] = inputs["target"].aligned_to(head.class_names).instance_counts
    recorded: dict[str, Any] = {name: getattr(head, name) for name in ("background", "activation", "num_columns")}
    affine = fit(spec, _with_names(moments, head), None if head.unused else table, **(recorded | inputs))
    if affine.num_columns != head.num_columns:
        raise InputError(
            f"The input of `{spec}` has {affine.num_columns} columns, but the predictions have {head.num_columns}. "
            "Pass that of the same model."
        )
    return affine


def _fit_for_labelled_columns(spec: str | Spec, head: Head, **inputs: Any) -> ClassAffine:
    """Fit a method of counts, which only the classes of the labels have: the other columns are left alone."""
    columns = head.num_classes + (head.background is not None)
    plain = Head.of_classes(head.class_names, columns, head.background, activation=head.activation)
    small = fit_for_store(spec, plain, **{name: value for name, value in inputs.items() if name != "num_columns"})
    scale, shift = np.ones(head.width), np.zeros(head.width)
    chosen = foreground_columns(small.num_columns, small.background)
    scale[head.foreground], shift[head.foreground] = small.scale[chosen], small.shift[chosen]
    return ClassAffine(scale, shift, head, small.method, small.settings)


def _with_names(moments: ClassMoments | None, head: Head) -> ClassMoments | None:
    """The statistics with the class names of the store, to which counts have been matched, where they have none."""
    if moments is None or head.names is None or head.unused or moments.head.names is not None:
        return moments
    named = copy(moments)
    named.head = replace(moments.head, names=head.names)
    return named


def _check_statistics(moments: ClassMoments, head: Head, allow_mismatch: bool) -> None:
    """Refuse statistics of other logits than those of the store."""
    recorded = moments.head
    # Moments are per column: those that name no background serve any, which a map that is fitted to one does not.
    if recorded.background is None:
        recorded = replace(recorded, background=head.background)
    recorded.check_fits(head, "the statistics", "the predictions", allow_mismatch=allow_mismatch)


def aligned_counts(counts: ClassCounts | npt.ArrayLike, head: Head) -> ClassCounts:
    """Class counts in the order of the store's foreground classes."""
    table = ClassCounts.of(counts)
    table = table.aligned_to(head.class_names)
    if table.num_classes != head.num_classes:
        raise InputError(
            f"Expected `counts` to have the {head.num_classes} foreground classes of the predictions, "
            f"but got {table.num_classes}."
        )
    return table
