"""Methods by name, as the command line writes them: `logn`, `logn:margin=0,use_std=false`, `norcal:gamma=0.6`.

A specification is a method, then options after a colon, separated by commas. Every option has the name of the argument
of the method's own function; `balanced` is short for `margin=balance,relative_std=true`, and `counts=images` or
`counts=instances` says which class counts a method takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.fracal import fracal
from logn.calibrators.inverse_image_frequency import inverse_image_frequency
from logn.calibrators.known_activation import known_activation
from logn.calibrators.logit_adjustment import logit_adjustment
from logn.calibrators.logit_normalization import MARGIN_NAMES, logit_normalization
from logn.calibrators.norcal import norcal
from logn.calibrators.provenance import with_background_name
from logn.calibrators.tau_norm import tau_norm
from logn.calibrators.temperature import temperature
from logn.classes.counts import ClassCounts
from logn.errors import InputError
from logn.logits.arrays import FloatArray, check_background, foreground_columns
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments

Options = dict[str, Any]


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

    def fit(self, spec: str) -> ClassAffine:
        """Fit the method that `spec` names, as `fit_method` reads it."""
        name, options = parse_method(spec)
        recorded = self.moments.metadata.background if self.moments is not None else None
        place = check_background(recorded if self.background == "recorded" else self.background)
        table = None if self.counts is None else _aligned_counts(self.counts, self.moments, place)
        columns = _num_columns(self.moments, table, self.weight, place)
        inputs = _Inputs(
            name,
            self.moments,
            table,
            self.dimensions,
            self.weight,
            self.bias,
            self.active,
            place,
            self.activation,
            columns,
        )
        with np.errstate(over="ignore", invalid="ignore"):  # a map that is not finite is refused, with the column
            affine = _METHODS[name][1](inputs, options)
        if columns is not None and affine.num_classes != columns:
            raise InputError(
                f"Expected the input of `{name}` to be of {columns} columns, but got {affine.num_classes}."
            )
        return affine if affine.source is not None else affine.with_source(_source(inputs))

    @property
    def names(self) -> list[str]:
        """Which inputs there are."""
        listed = ("moments", "counts", "dimensions", "weight", "bias", "active")
        return [name for name in listed if getattr(self, name) is not None]

    @classmethod
    def of(cls, inputs: FitInputs | None, given: Mapping[str, Any]) -> FitInputs:
        """One object from an object or from its fields by name; both at once, and unknown names, are refused.

        Example:
            >>> FitInputs.of(None, {"count": [3, 2]})
            Traceback (most recent call last):
            ...
            logn.errors.InputError: Expected the inputs of methods to be among moments, counts, dimensions, weight,
            bias, active, background, activation, but got `count`.
        """
        known = [field.name for field in fields(cls)]
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            raise InputError(f"Expected the inputs of methods to be among {', '.join(known)}, but got `{unknown}`.")
        if inputs is not None and given:
            raise InputError(f"Expected either `inputs` or its fields by name, but got both (`{next(iter(given))}`).")
        return inputs or cls(**given)


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Inputs of one method, checked and put in one order; the method says which it lacks."""

    method: str
    moments: ClassMoments | None
    counts: ClassCounts | None
    dimensions: npt.ArrayLike | None
    weight: Any
    bias: Any
    active: npt.ArrayLike | None
    background: int | None
    activation: str | None
    num_columns: int | None

    def needed_moments(self) -> ClassMoments:
        if self.moments is None:
            raise InputError(f"Expected statistics (`moments`) for the method `{self.method}`, but got none.")
        return self.moments

    def needed_counts(self, kind: str) -> FloatArray:
        if self.counts is None:
            raise InputError(f"Expected `counts` for the method `{self.method}`, but got none.")
        return self.counts.image_counts if kind == "images" else self.counts.instance_counts

    def needed_columns(self) -> int:
        if self.num_columns is None:
            raise InputError(f"Expected `moments` or `counts` for the method `{self.method}`, but got neither.")
        return self.num_columns


def parse_method(spec: str) -> tuple[str, Options]:
    """Split a specification into the method and its options, checked and converted.

    Example:
        >>> parse_method("logn:margin=0,use_std=false")
        ('logn', {'margin': 0.0, 'use_std': False})
        >>> parse_method("logn:balanced")
        ('logn', {'margin': 'balance', 'relative_std': True})
        >>> parse_method("temperature:tau=1")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the options of `temperature` to be among value, but got `tau`.
    """
    name, _, rest = spec.strip().partition(":")
    if name not in _METHODS:
        raise InputError(f"Expected `method` to be one of {', '.join(_METHODS)}, but got {name!r}.")
    known = _METHODS[name][0]
    options: Options = {}
    given: set[str] = set()  # apart from the options, since those of `balanced` may be changed one by one
    for part in filter(None, (part.strip() for part in rest.split(","))):
        if name == "logn" and part == "balanced":
            options |= {"margin": "balance", "relative_std": True}
            continue
        option, equals, text = part.partition("=")
        if option not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"Expected the options of `{name}` to be among {listed}, but got `{option}`.")
        if not equals:
            raise InputError(f"Expected the option `{option}` of `{name}` as {option}=VALUE, but got {part!r}.")
        if option in given:
            raise InputError(f"Expected the option `{option}` of `{name}` once, but got it twice.")
        given.add(option)
        options[option] = known[option](option, text)
    return name, options


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
) -> ClassAffine:
    """Fit the method that `spec` names.

    The map says what it was made for (`ClassAffine.source`): LogN's that of its statistics, the fingerprint of the
    model included; the others' class names, background and activation, which is all that they depend on.

    Args:
        spec: Such as "none", "logn", "logn:balanced", "loga:tau=0.5", "norcal", "fracal", "iif", "tau-norm:tau=0.7",
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

    Example:
        >>> fit_method("norcal:gamma=1", counts=[100, 10, 1], background=-1).shift.round(6)
        array([-4.60517 , -2.302585, -0.      ,  0.      ])
    """
    return FitInputs(moments, counts, dimensions, weight, bias, active, background, activation).fit(spec)


def _source(inputs: _Inputs) -> StatisticsMetadata:
    """What is known of the model beside its weights, which only the statistics of LogN hang on."""
    recorded = inputs.moments.metadata if inputs.moments is not None else StatisticsMetadata()
    counted = None if inputs.counts is None else with_background_name(inputs.counts.names, inputs.background)
    return StatisticsMetadata(
        class_names=recorded.class_names or counted,
        background=inputs.background,
        activation=known_activation(recorded.activation, None, inputs.activation),
    )


def _aligned_counts(
    counts: ClassCounts | npt.ArrayLike, moments: ClassMoments | None, background: int | None
) -> ClassCounts:
    table = counts if isinstance(counts, ClassCounts) else ClassCounts(np.asarray(counts, dtype=np.float64))
    if moments is None:
        return table
    names = moments.metadata.class_names
    foreground = foreground_columns(moments.num_classes, background)
    wanted = None if names is None else names[foreground]
    return table.fitting(wanted, moments.num_classes - (background is not None), background)


def _num_columns(
    moments: ClassMoments | None, counts: ClassCounts | None, weight: Any, background: int | None
) -> int | None:
    if moments is not None:
        return moments.num_classes
    if counts is not None:
        return counts.num_classes + (background is not None)
    return None if weight is None else len(weight)


def _none(inputs: _Inputs, options: Options) -> ClassAffine:
    return ClassAffine.identity(inputs.needed_columns(), inputs.background)


def _logn(inputs: _Inputs, options: Options) -> ClassAffine:
    given: Options = {"background": inputs.background, "active": inputs.active, "activation": inputs.activation}
    return logit_normalization(inputs.needed_moments(), **(given | options))


def _loga(inputs: _Inputs, options: Options) -> ClassAffine:
    counts = inputs.needed_counts(options.pop("counts", "instances"))
    return logit_adjustment(counts, background=inputs.background, **options)


def _norcal(inputs: _Inputs, options: Options) -> ClassAffine:
    counts = inputs.needed_counts(options.pop("counts", "images"))
    return norcal(counts, background=inputs.background, **options)


def _fracal(inputs: _Inputs, options: Options) -> ClassAffine:
    counts = inputs.needed_counts(options.pop("counts", "images"))
    num_images = options.pop("num_images", inputs.counts.num_images if inputs.counts else None)
    if num_images is None:
        raise InputError("Expected `num_images` for the method `fracal`, since the counts do not say it, but got none.")
    return fracal(counts, num_images, inputs.dimensions, background=inputs.background, **options)


def _iif(inputs: _Inputs, options: Options) -> ClassAffine:
    counts = inputs.needed_counts(options.pop("counts", "images"))
    return inverse_image_frequency(counts, background=inputs.background, **options)


def _tau_norm(inputs: _Inputs, options: Options) -> ClassAffine:
    if inputs.weight is None:
        raise InputError("Expected `weight` of the classifier for the method `tau-norm`, but got none.")
    return tau_norm(inputs.weight, options.get("tau", 1.0), inputs.bias, background=inputs.background)


def _temperature(inputs: _Inputs, options: Options) -> ClassAffine:
    if "value" not in options:
        raise InputError("Expected the temperature as `temperature:value=…`, but got none.")
    return temperature(inputs.needed_columns(), options["value"], background=inputs.background)


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"Expected `{option}` to be a number, but got {text!r}.") from None


def _flag(option: str, text: str) -> bool:
    values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in values:
        raise InputError(f"Expected `{option}` to be true or false, but got {text!r}.")
    return values[text.lower()]


def _text(option: str, text: str) -> str:
    return text


def _margin(option: str, text: str) -> str | float:
    if text in MARGIN_NAMES:
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"Expected `margin` to be a number or one of {MARGIN_NAMES}, but got {text!r}.") from None


def _count_kind(option: str, text: str) -> str:
    if text not in ("images", "instances"):
        raise InputError(f"Expected `counts` to be images or instances, but got {text!r}.")
    return text


_LOGN_OPTIONS = {
    "margin": _margin,
    "use_mean": _flag,
    "use_std": _flag,
    "relative_std": _flag,
    "std_power": _number,
    "eps": _number,
    "variance": _text,
    "activation": _text,
    "keep_confidence": _flag,
}
_FRACAL_OPTIONS = {"strength": _number, "base": _number, "num_images": _number, "counts": _count_kind}

# What each method takes, with the conversion of each option's text, and what fits it.
_METHODS: Mapping[str, tuple[Mapping[str, Callable[[str, str], Any]], Callable[[_Inputs, Options], ClassAffine]]] = {
    "none": ({}, _none),
    "logn": (_LOGN_OPTIONS, _logn),
    "loga": ({"tau": _number, "priors": _flag, "counts": _count_kind}, _loga),
    "norcal": ({"gamma": _number, "weights": _text, "on_logits": _flag, "counts": _count_kind}, _norcal),
    "fracal": (_FRACAL_OPTIONS, _fracal),
    "iif": ({"variant": _text, "counts": _count_kind}, _iif),
    "tau-norm": ({"tau": _number}, _tau_norm),
    "temperature": ({"value": _number}, _temperature),
}

METHOD_NAMES = tuple(_METHODS)
