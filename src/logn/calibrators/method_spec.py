"""Methods by name, as the command line writes them: `logn`, `logn:margin=0,use_std=false`, `norcal:gamma=0.6`.

A specification is a method, then options after a colon, separated by commas. Every option has the name of the argument
of the method's own function, and `counts=images` or
`counts=instances` says which class counts a method takes. What methods and options there are, their own modules say
(`logn.calibrators.all_methods`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.all_methods import method_named
from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.known_activation import known_activation
from logn.calibrators.method import MethodInputs, Options
from logn.calibrators.provenance import with_background_name
from logn.classes.counts import ClassCounts
from logn.classes.shares import ClassShares
from logn.errors import InputError
from logn.logits.arrays import check_background, foreground_columns
from logn.statistics.moments import ClassMoments, StatisticsMetadata


@dataclass(frozen=True, eq=False)
class FitInputs:
    """What methods are fitted from; each takes what it needs and says what is missing.

    Args:
        moments: Statistics of the logits, for LogN; other methods take the background and the class names from them.
        counts: Class counts for loga, norcal, fracal and iif; a plain array serves for images and instances alike.
            Where counts and statistics both have class names, the counts are put in the order of the statistics.
        dimensions: Fractal dimensions for fracal; without them it uses its frequency part only.
        weight: Weight of the classifier, for tau-norm.
        bias: Bias of the classifier, for tau-norm.
        active: Which columns are alive, for logn.
        background: Place of the background column: None, 0, -1, or "recorded" to take it from the statistics.
        activation: "softmax", "sigmoid", or "recorded"; the option of that name in a specification comes first.
        num_columns: Columns of the logits, for methods that need nothing else where nothing else tells.
        target: Class mix of the deployment, for methods that can aim at one: shares of the foreground classes,
            `logn.ClassShares`, or what the option `target` of a specification says, which comes first.

    Example:
        >>> FitInputs(counts=[100, 10, 1], background=-1).fit("norcal:gamma=1").shift.round(6)
        array([-4.60517 , -2.302585, -0.      ,  0.      ])
    """

    moments: ClassMoments | None = None
    counts: ClassCounts | npt.ArrayLike | None = None
    dimensions: npt.ArrayLike | None = None
    weight: Any = None
    bias: Any = None
    active: npt.ArrayLike | None = None
    background: int | str | None = "recorded"
    activation: str | None = "recorded"
    num_columns: int | None = None
    target: ClassShares | npt.ArrayLike | str | None = None

    def fit(self, spec: str, options: Mapping[str, Any] | None = None) -> ClassAffine:
        """Fit the method that `spec` names, as `fit_method` reads it.

        Args:
            spec: The method, options behind a colon.
            options: Further options by name, as values: `{"gamma": 0.6}`.
        """
        name, chosen = parse_method(spec)
        method = method_named(name)
        for option, value in (options or {}).items():
            method.add(chosen, option, value)
        inputs = self.checked(name)
        with np.errstate(over="ignore", invalid="ignore"):  # a map that is not finite is refused, with the column
            affine = method.fit(inputs, chosen)
        if inputs.num_columns is not None and affine.num_classes != inputs.num_columns:
            raise InputError(
                f"Expected the input of `{name}` to be of {inputs.num_columns} columns, but got {affine.num_classes}."
            )
        return affine if affine.source is not None else affine.with_source(_source(inputs))

    def checked(self, method: str) -> MethodInputs:
        """The same for one method, the counts in the order of the statistics; `method` is its name for messages."""
        recorded = self.moments.metadata.background if self.moments is not None else None
        place = check_background(recorded if self.background == "recorded" else self.background)
        table = None if self.counts is None else _aligned_counts(self.counts, self.moments, place)
        return MethodInputs(
            method,
            self.moments,
            table,
            self.dimensions,
            self.weight,
            self.bias,
            self.active,
            place,
            self.activation,
            _num_columns(self.moments, table, self.weight, place) or self.num_columns,
            self.target,
        )

    @property
    def names(self) -> list[str]:
        """Which inputs there are."""
        listed = ("moments", "counts", "dimensions", "weight", "bias", "active", "target")
        return [name for name in listed if getattr(self, name) is not None]

    @classmethod
    def of(cls, inputs: FitInputs | None, given: Mapping[str, Any]) -> FitInputs:
        """One object from an object or from its fields by name; both at once, and unknown names, are refused.

        Example:
            >>> FitInputs.of(None, {"count": [3, 2]})
            Traceback (most recent call last):
            ...
            logn.errors.InputError: Expected the inputs of methods to be among moments, counts, dimensions, weight,
            bias, active, background, activation, num_columns, target, but got `count`.
        """
        known = [field.name for field in fields(cls)]
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            raise InputError(f"Expected the inputs of methods to be among {', '.join(known)}, but got `{unknown}`.")
        if inputs is not None and given:
            raise InputError(f"Expected either `inputs` or its fields by name, but got both (`{next(iter(given))}`).")
        return inputs or cls(**given)


def parse_method(spec: str) -> tuple[str, Options]:
    """Split a specification into the method and its options, checked and converted.

    Example:
        >>> parse_method("logn:margin=0,use_std=false")
        ('logn', {'margin': 0.0, 'use_std': False})
        >>> parse_method("temperature:tau=1")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the options of `temperature` to be among value, but got `tau`.
    """
    name, _, rest = spec.strip().partition(":")
    return name, method_named(name).parse(rest)


def check_options(spec: str, options: Mapping[str, Any]) -> None:
    """Refuse a method or an option that does not exist, or that is given twice.

    Example:
        >>> check_options("logn", {"strenght": 0.5})
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the options of `logn` to be among ..., but got `strenght`.
    """
    name, chosen = parse_method(spec)
    for option, value in options.items():
        method_named(name).add(chosen, option, value)


def fit_method(
    spec: str,
    *,
    moments: ClassMoments | None = None,
    counts: ClassCounts | npt.ArrayLike | None = None,
    dimensions: npt.ArrayLike | None = None,
    weight: Any = None,
    bias: Any = None,
    active: npt.ArrayLike | None = None,
    background: int | str | None = "recorded",
    activation: str | None = "recorded",
    target: ClassShares | npt.ArrayLike | str | None = None,
) -> ClassAffine:
    """Fit the method that `spec` names.

    The map says what it was made for (`ClassAffine.source`): LogN's that of its statistics, the fingerprint of the
    model included; the others' class names, background and activation, which is all that they depend on.

    Args:
        spec: Such as "none", "recommended", "logn", "loga:tau=0.5", "norcal", "fracal", "iif", "tau-norm:tau=0.7",
            "temperature:value=2".
        moments: Statistics of the logits, for LogN; other methods take the background and the class names from them.
        counts: Class counts for loga, norcal, fracal and iif; a plain array serves for images and instances alike.
            Where counts and statistics both have class names, the counts are put in the order of the statistics.
        dimensions: Fractal dimensions for fracal; without them it uses its frequency part only.
        weight: Weight of the classifier, for tau-norm.
        bias: Bias of the classifier, for tau-norm.
        active: Which columns are alive, for logn.
        background: Place of the background column: None, 0, -1, or "recorded" to take it from the statistics.
        activation: "softmax", "sigmoid", or "recorded"; the option of that name in `spec` comes first.
        target: Class mix of the deployment, for methods that can aim at one; the option in `spec` comes first.

    Example:
        >>> fit_method("norcal:gamma=1", counts=[100, 10, 1], background=-1).shift.round(6)
        array([-4.60517 , -2.302585, -0.      ,  0.      ])
    """
    inputs = FitInputs(moments, counts, dimensions, weight, bias, active, background, activation, None, target)
    return inputs.fit(spec)


def _source(inputs: MethodInputs) -> StatisticsMetadata:
    """What is known of the model beside its weights, which only the statistics of LogN hang on."""
    recorded = inputs.moments.metadata if inputs.moments is not None else StatisticsMetadata()
    counted = None if inputs.counts is None else with_background_name(inputs.counts.names, inputs.background)
    return StatisticsMetadata(
        class_names=recorded.class_names or counted,
        background=inputs.background,
        activation=known_activation(recorded, None, inputs.activation),
    )


def _aligned_counts(
    counts: ClassCounts | npt.ArrayLike, moments: ClassMoments | None, background: int | None
) -> ClassCounts:
    table = counts if isinstance(counts, ClassCounts) else ClassCounts(np.asarray(counts, dtype=np.float64))
    if moments is None:
        return table
    names = moments.metadata.class_names
    foreground = foreground_columns(moments.num_columns, background)
    wanted = None if names is None else names[foreground]
    return table.fitting(wanted, moments.num_columns - (background is not None), background)


def _num_columns(
    moments: ClassMoments | None, counts: ClassCounts | None, weight: Any, background: int | None
) -> int | None:
    if moments is not None:
        return moments.num_columns
    if counts is not None:
        return counts.num_classes + (background is not None)
    return None if weight is None else len(weight)
