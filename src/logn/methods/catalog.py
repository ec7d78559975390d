"""Methods by name, as the command line writes them: `logn`, `logn:margin=0,use_std=false`, `norcal:gamma=0.6`.

A specification is the name of a method, then options after a colon, separated by commas. The options are arguments of
the method's function, converted as its annotations say. What a method is fitted from it names in its signature, too:
`moments`, `counts`, `dimensions`, `weight`, `bias`, `target`, `num_columns`. So a new method is a function and a line
in `METHODS`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.data.class_counts import ClassCounts
from logn.errors import InputError, did_you_mean
from logn.methods.affine import ClassAffine
from logn.methods.fracal import fracal
from logn.methods.inverse_image_frequency import inverse_image_frequency
from logn.methods.logit_adjustment import logit_adjustment
from logn.methods.logit_normalization import logit_normalization, mean_probability
from logn.methods.norcal import norcal
from logn.methods.prior2posterior import prior2posterior
from logn.methods.recommend import recommended
from logn.methods.tau_norm import tau_norm
from logn.methods.temperature import temperature
from logn.statistics.head import Head, foreground_columns
from logn.statistics.moments import ClassMoments

METHODS: dict[str, Callable[..., ClassAffine]] = {
    "none": ClassAffine.identity,
    "recommended": recommended,
    "logn": logit_normalization,
    "p2p": prior2posterior,
    "loga": logit_adjustment,
    "norcal": norcal,
    "fracal": fracal,
    "iif": inverse_image_frequency,
    "tau-norm": tau_norm,
    "temperature": temperature,
}
# What `fit` hands to a method; everything else in a signature, and `target` and `activation`, are options.
INPUTS = (
    "head",
    "moments",
    "counts",
    "dimensions",
    "weight",
    "bias",
    "num_columns",
    "background",
    "active",
    "deployment",
)
UNIFORM, TRAINING = "uniform", "training"
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def fit(
    spec: str | Spec,
    moments: ClassMoments | None = None,
    counts: ClassCounts | npt.ArrayLike | None = None,
    *,
    dimensions: npt.ArrayLike | None = None,
    weight: Any = None,
    bias: Any = None,
    target: ClassCounts | npt.ArrayLike | str | None = None,
    deployment: ClassMoments | None = None,
    background: int | None = None,
    activation: str | None = None,
    num_columns: int | None = None,
    **options: Any,
) -> ClassAffine:
    """Fit the method that `spec` names; it takes what it needs from the other arguments.

    Args:
        spec: Such as "recommended", "logn:margin=0", "norcal:gamma=0.6", "tau-norm:tau=0.7", "temperature:value=2".
        moments: Statistics of the logits over training images; methods that do not need them take the background and
            the class names from them.
        counts: Training counts for loga, norcal, fracal and iif. Where counts and statistics both have class names, the
            counts are put in the order of the statistics.
        dimensions: Fractal dimensions for fracal; without them it uses its frequency part only.
        weight: Weight of the classifier, for tau-norm.
        bias: Bias of the classifier, for tau-norm.
        target: Class mix of the deployment, for methods that can aim at one: shares of the foreground classes,
            "uniform" (the default), "training" (the counts, else the model's mean probability) or the path of a file.
        deployment: Statistics of the same model over images of the deployment, for `recommended`.
        background: Index of the background column, 0 or -1; by default that of the statistics.
        activation: "softmax" or "sigmoid"; by default that of the statistics.
        num_columns: Columns of the logits, for none and temperature where neither statistics nor counts tell.
        options: Arguments of the method's function by name, such as `gamma=0.6`.

    Example:
        >>> fit("norcal:gamma=1", counts=[100, 10, 1], background=-1).shift.round(6)
        array([-4.60517 , -2.302585, -0.      ,  0.      ])
    """
    name, given = parse(spec, options)
    chosen = dict(given)
    recorded = Head() if moments is None else moments.head
    head = recorded.settled(background, chosen.pop("activation", activation))
    table = None if counts is None else _aligned(counts, moments, head)
    columns = _count_columns(moments, table, weight, head.background) or num_columns
    arguments = {
        "moments": moments,
        "counts": table,
        "dimensions": dimensions,
        "weight": weight,
        "bias": bias,
        "num_columns": columns,
        "background": head.background,
        "activation": head.activation,
        "target": None,
        "deployment": deployment,
    }
    parameters = inspect.signature(METHODS[name]).parameters
    if "target" in parameters:
        arguments["target"] = _target_shares(chosen.pop("target", target), moments, table, head)
    arguments = {key: value for key, value in arguments.items() if key in parameters} | chosen
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and arguments.get(key) is None:
            raise InputError(f"The method `{name}` needs {_describe(name, key)}: pass it.")
    with np.errstate(over="ignore", invalid="ignore"):  # a map that is not finite is refused, with the column
        affine = METHODS[name](**arguments)
    if columns is not None and affine.num_columns != columns:
        raise InputError(f"The input of `{name}` is of {affine.num_columns} columns, but the logits have {columns}.")
    if "moments" in parameters:
        return affine
    # Without the digest: the weights do not matter to a method that is not fitted to statistics.
    names = recorded.names or (None if table is None else table.names)
    return affine.with_head(Head.of_classes(names, affine.num_columns, head.background, activation=head.activation))


class Spec(NamedTuple):
    """A method with its options, as a value.

    Attributes:
        name: One of `METHODS`.
        options: Arguments of its function, by name.

    Example:
        >>> spec = parse("logn:margin=0,use_std=false")
        >>> spec
        Spec(name='logn', options={'margin': 0.0, 'use_std': False})
        >>> str(spec.with_options(strength=0.5))
        'logn:margin=0,use_std=false,strength=0.5'
    """

    name: str
    options: Mapping[str, Any]

    def with_options(self, **options: Any) -> Spec:
        """The same with further options; those that it has stay, and those that its method lacks are left out."""
        allowed = {*_options_of(self.name)} - {*self.options}
        return Spec(self.name, {**self.options, **{name: options[name] for name in options if name in allowed}})

    def __str__(self) -> str:
        """The text that `parse` reads."""
        texts = [f"{name}={_as_text(value)}" for name, value in self.options.items()]
        return f"{self.name}:{','.join(texts)}" if texts else self.name


def parse(spec: str | Spec, options: Mapping[str, Any] | None = None) -> Spec:
    """Split a specification into the method and its options, checked and converted.

    Args:
        spec: The method, options after a colon.
        options: Further options by name, as values; one that `spec` has too is refused.

    Example:
        >>> parse("logn:margin=0,use_std=false")
        Spec(name='logn', options={'margin': 0.0, 'use_std': False})
        >>> parse("temperature:tau=1")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the options of `temperature` to be among value, but got `tau`.
    """
    if isinstance(spec, Spec):
        name, chosen, pieces = spec.name, dict(spec.options), []
    else:
        name, _, tail = spec.strip().partition(":")
        chosen, pieces = {}, [piece.strip() for piece in tail.split(",") if piece.strip()]
    if name not in METHODS:
        hint = did_you_mean(name, METHODS)
        raise InputError(f"Expected `method` to be one of {', '.join(METHODS)}, but got {name!r}{hint}")
    hints = get_type_hints(METHODS[name])
    allowed = _options_of(name)
    for piece in pieces:
        key, equals, text = piece.partition("=")
        if key in allowed and not equals:
            raise InputError(f"Expected the option `{key}` of `{name}` as {key}=VALUE, but got {piece!r}.")
        _add(chosen, key, _read(key, text, hints[key]) if key in allowed else None, name, allowed)
    for key, value in (options or {}).items():
        _add(chosen, key, value, name, [*allowed, *({"active"} & {*hints})])
    return Spec(name, chosen)


def needs(name: str) -> tuple[str, ...]:
    """What a method cannot do without: the inputs of its signature that have no default.

    Example:
        >>> needs("norcal"), needs("logn"), needs("temperature")
        (('counts',), ('moments',), ('num_columns',))
    """
    parameters = inspect.signature(METHODS[parse(name)[0]]).parameters.values()
    return tuple(item.name for item in parameters if item.default is item.empty and item.name in INPUTS)


def checked_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What `fit` is fitted from, by name, without what is None; a name that it does not have is refused.

    Example:
        >>> checked_inputs({"count": [3, 2]})
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the inputs of methods to be among moments, counts, dimensions, weight, bias, \
target, deployment, background, activation, num_columns, but got `count`.
    """
    allowed = [name for name in inspect.signature(fit).parameters if name not in ("spec", "options")]
    unknown = next((name for name in inputs if name not in allowed), None)
    if unknown is not None:
        raise InputError(f"Expected the inputs of methods to be among {', '.join(allowed)}, but got `{unknown}`.")
    return {name: value for name, value in inputs.items() if value is not None or name in ("background", "activation")}


def read_target(target: str) -> ClassCounts | str:
    """The shares in a file; "uniform" and "training" stay as they are.

    Example:
        >>> read_target("uniform")
        'uniform'
    """
    if target in (UNIFORM, TRAINING):
        return target
    if not Path(target).suffix and not Path(target).exists():
        raise InputError(f"Expected `target` to be {UNIFORM}, {TRAINING} or a file of shares, but got {target!r}.")
    return ClassCounts.load(target)


def _options_of(name: str) -> list[str]:
    """What may stand behind the colon: the arguments of the method that `fit` does not hand over."""
    return [key for key in inspect.signature(METHODS[name]).parameters if key not in INPUTS]


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _add(chosen: dict[str, Any], key: str, value: Any, name: str, allowed: list[str]) -> None:
    if key not in allowed:
        listed = ", ".join(allowed) or "none"
        hint = did_you_mean(key, allowed)
        raise InputError(f"Expected the options of `{name}` to be among {listed}, but got `{key}`{hint}")
    if key in chosen:
        raise InputError(f"Expected the option `{key}` of `{name}` once, but got it twice.")
    chosen[key] = value


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union and the values of its literals, such as float, "min" and "max"."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(member for part in get_args(hint) for member in _members(part))
    return get_args(hint) if get_origin(hint) is Literal else (hint,)


def _read(key: str, text: str, hint: Any) -> Any:
    """The value that the text of an option stands for."""
    members = _members(hint)
    choices = [member for member in members if isinstance(member, str)]
    if key == "target" or text in choices:
        return text
    close = did_you_mean(text, choices)
    if hint is bool:
        if text.lower() not in _TRUTH:
            raise InputError(f"Expected `{key}` to be true or false, but got {text!r}.")
        return _TRUTH[text.lower()]
    if float in members:
        try:
            return float(text)
        except ValueError:
            names = f" or one of {', '.join(choices)}" if choices else ""
            raise InputError(f"Expected `{key}` to be a number{names}, but got {text!r}{close}") from None
    if choices:
        raise InputError(f"Expected `{key}` to be one of {', '.join(choices)}, but got {text!r}{close}")
    return text


def _describe(name: str, key: str) -> str:
    if key in INPUTS:
        return "`moments`, `counts` or `num_columns`" if key == "num_columns" else f"`{key}`"
    return f"`{key}` ({name}:{key}=…)"


def _aligned(counts: Any, moments: ClassMoments | None, head: Head) -> ClassCounts:
    """The counts in the order of the statistics' classes."""
    table = ClassCounts.of(counts)
    if moments is None:
        return table
    num_classes = moments.num_columns - (head.background is not None)
    return table.fitting(head.column_names, num_classes, head.background)


def _count_columns(
    moments: ClassMoments | None, counts: ClassCounts | None, weight: Any, background: int | None
) -> int | None:
    if moments is not None:
        return moments.num_columns
    if counts is not None:
        return counts.num_classes + (background is not None)
    return None if weight is None else len(weight)


def _target_shares(
    target: Any, moments: ClassMoments | None, counts: ClassCounts | None, head: Head
) -> FloatArray | None:
    """The shares that a target stands for; None for a uniform one."""
    if isinstance(target, str | os.PathLike):
        target = read_target(os.fspath(target))
    if target is None or (isinstance(target, str) and target == UNIFORM):
        return None
    if isinstance(target, ClassCounts):
        names = head.column_names
        return target.aligned_to(names if names is not None or counts is None else counts.names).instance_counts
    if not isinstance(target, str):
        with contextlib.suppress(TypeError, ValueError):
            shares = np.asarray(target)
            if shares.dtype.kind in "biuf":
                return shares.astype(np.float64)
        raise InputError(f"Expected `target` to be one share per foreground class, as numbers, but got {target!r:.80}.")
    if counts is not None:
        return counts.instance_counts
    if moments is None:
        raise InputError('target="training" needs the class mix of training: pass `counts` or `moments`.')
    return mean_probability(moments, head.activation)[foreground_columns(moments.num_columns, head.background)]
