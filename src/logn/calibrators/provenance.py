"""Whether a map, or statistics, belong to the model that they are about to be used on.

What differs in width or in the place of the background can only be a mistake. Other class names, another activation
and other weights are mistakes too, most of the time; but the map of a model may be meant for its retrained successor,
so these can be allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from logn.errors import InputError, LogNWarning
from logn.logits.arrays import foreground_columns
from logn.statistics.moments import StatisticsMetadata

UNKNOWN = "unknown"
_PLACES: dict[int | str | None, str] = {0: "0 (first)", -1: "-1 (last)", None: "None"}
_WAY_OUT = "pass allow_mismatch=True (`--allow-mismatch`) if it is meant for this model"
_OTHER_WEIGHTS = {
    "": "another model, or the same one retrained, cast to another precision or changed by a fold",
    "onnx": "another model, or the same one retrained, converted or exported anew",
}


@dataclass(frozen=True)
class Target:
    """What is known of the logits that a map is to be used on; None is not known.

    Args:
        name: What to call it in messages, such as "`model.onnx`".
        num_classes: Columns of the logits, the background included.
        background: Place of the background column: None (there is none), 0, -1, or "unknown".
        class_names: Names of the foreground classes, in order.
        activation: "softmax" or "sigmoid".
        fingerprint: Digest of the weights (`logn.logits.layer`).
    """

    name: str
    num_classes: int | None = None
    background: int | str | None = UNKNOWN
    class_names: Sequence[str] | None = None
    activation: str | None = None
    fingerprint: str | None = None


def check_width(what: str, num_classes: int, target: Target) -> None:
    """Refuse another number of columns."""
    if target.num_classes is not None and num_classes != target.num_classes:
        raise InputError(
            f"Expected {what} to have {target.num_classes} classes, the columns of {target.name}, but got "
            f"{num_classes}."
        )


def check_background_place(what: str, background: int | None, target: Target) -> None:
    """Refuse another place of the background column."""
    if target.background != UNKNOWN and background != target.background:
        raise InputError(
            f"Expected {what} to have the background at {_PLACES[target.background]}, its place in "
            f"{target.name}, but got {_PLACES[background]}."
        )


def check_source(what: str, source: StatisticsMetadata, target: Target, *, allow_mismatch: bool = False) -> None:
    """Refuse what comes from other classes, another activation or other weights, or only warn where that is allowed.

    Args:
        what: What to call the map or the statistics in messages, such as "`affine`".
        source: Where they come from.
        target: What they are to be used on.
        allow_mismatch: Warn instead.

    Example:
        >>> source = StatisticsMetadata(activation="sigmoid")
        >>> check_source("`affine`", source, Target("`head`", activation="softmax"))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `affine` to be of a softmax, the activation of `head`, but got a sigmoid; \
pass allow_mismatch=True (`--allow-mismatch`) if it is meant for this model.
    """
    for sentence in mismatches(what, source, target):
        if not allow_mismatch:
            raise InputError(f"{sentence}; {_WAY_OUT}.")
        warnings.warn(f"{sentence}.", LogNWarning, stacklevel=3)


def mismatches(what: str, source: StatisticsMetadata, target: Target) -> Iterator[str]:
    """A sentence, without its full stop, for each thing in which both sides are known and differ."""
    yield from _other_names(what, source, target)
    if None not in (source.activation, target.activation) and source.activation != target.activation:
        yield (
            f"Expected {what} to be of a {target.activation}, the activation of {target.name}, but got a "
            f"{source.activation}"
        )
    yield from _other_weights(what, source.fingerprint, target)


def fingerprint_kind(fingerprint: str) -> str:
    """What was digested: "onnx" for the bytes of an ONNX file, empty for the weights of a torch model.

    Digests of two kinds cannot be compared: nobody can tell whether a file was exported from a model.

    Example:
        >>> fingerprint_kind("onnx:0c1f"), fingerprint_kind("0c1f")
        ('onnx', '')
    """
    kind, colon, _ = fingerprint.partition(":")
    return kind if colon else ""


def asks_for_weights(maps: Sequence[Any], kind: str) -> bool:
    """Whether any of these maps knows a fingerprint of this kind, so that it is worth digesting the model.

    Example:
        >>> asks_for_weights([None], "onnx")
        False
    """
    sources = [getattr(item, "source", None) for item in maps]
    known = [source.fingerprint for source in sources if source is not None and source.fingerprint is not None]
    return any(fingerprint_kind(fingerprint) == kind for fingerprint in known)


def foreground_names(source: StatisticsMetadata) -> tuple[str, ...] | None:
    """Names of the foreground classes; what the background is called does not matter.

    Example:
        >>> foreground_names(StatisticsMetadata(class_names=("background", "cat"), background=0))
        ('cat',)
    """
    names = source.class_names
    return None if names is None else names[foreground_columns(len(names), source.background)]


def with_background_name(names: Sequence[str] | None, background: int | None) -> tuple[str, ...] | None:
    """Names of all columns from those of the foreground.

    Example:
        >>> with_background_name(["cat"], -1)
        ('cat', 'background')
    """
    if names is None or background is None:
        return None if names is None else tuple(names)
    return ("background", *names) if background == 0 else (*names, "background")


def joined(first: StatisticsMetadata | None, then: StatisticsMetadata | None) -> StatisticsMetadata | None:
    """The source of a map that was composed of two; those of different models or classes are refused.

    Example:
        >>> joined(StatisticsMetadata(fingerprint="1c"), StatisticsMetadata(activation="softmax")).activation
        'softmax'
    """
    if first is None or then is None:
        return first or then
    known = Target("this one", None, UNKNOWN, foreground_names(first), first.activation, first.fingerprint)
    for sentence in mismatches("`other`", then, known):
        raise InputError(f"{sentence}; take its source off with other.with_source(None) if they belong together.")
    return first.with_changes(
        class_names=first.class_names or then.class_names,
        activation=first.activation or then.activation,
        fingerprint=first.fingerprint or then.fingerprint,
    )


def _other_names(what: str, source: StatisticsMetadata, target: Target) -> Iterator[str]:
    mine, theirs = foreground_names(source), target.class_names
    if mine is None or theirs is None or mine == tuple(theirs):
        return
    if len(mine) != len(theirs):
        yield f"Expected {what} to be of the {len(theirs)} classes of {target.name}, but got {len(mine)}"
        return
    place = next(place for place, name in enumerate(mine) if name != theirs[place])
    yield (
        f"Expected {what} to be of the classes of {target.name}, whose class {place} is {theirs[place]!r}, but got "
        f"{mine[place]!r}"
    )


def _other_weights(what: str, mine: str | None, target: Target) -> Iterator[str]:
    theirs = target.fingerprint
    if mine is None or theirs is None or mine == theirs or fingerprint_kind(mine) != fingerprint_kind(theirs):
        return
    reasons = _OTHER_WEIGHTS.get(fingerprint_kind(mine), _OTHER_WEIGHTS[""])
    yield (
        f"Expected {what} to be of the weights of {target.name} ({_short(theirs)}), but got others "
        f"({_short(mine)}): {reasons}"
    )


def _short(fingerprint: str) -> str:
    kind, digest = fingerprint_kind(fingerprint), fingerprint.rpartition(":")[2]
    return f"{kind}:{digest[:12]}…" if kind else f"{digest[:12]}…"
