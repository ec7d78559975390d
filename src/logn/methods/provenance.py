"""What a map was made for, and whether it fits the logits that it is to be used on.

A map knows what it was made for. Another width or place of the background can only be a mistake. Other class names,
another activation and other weights usually are, too; but the map of a model may be meant for its retrained successor,
so these can be allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from logn.base.arrays import foreground_columns
from logn.data.class_names import names_differ
from logn.errors import InputError, warn
from logn.statistics.metadata import StatisticsMetadata

UNKNOWN = "unknown"
_PLACES: dict[int | str | None, str] = {0: "first", -1: "last", None: "none"}
_OTHER_WEIGHTS = {
    "": "another model, or the same one retrained, cast to another precision or changed by a fold",
    "onnx": "another model, or the same one retrained, converted or exported anew",
}


@dataclass(frozen=True)
class LogitFacts:
    """What is known of the logits that a map is to be used on; None is not known.

    Args:
        name: What to call them in messages, such as "`model.onnx`".
        num_columns: Columns, the background included.
        background: Index of the background column: None (there is none), 0, -1, or "unknown".
        class_names: Names of the foreground classes, in order.
        activation: "softmax" or "sigmoid".
        fingerprint: Digest of the model's weights.

    Example:
        >>> facts = LogitFacts("`head`", activation="softmax")
        >>> facts.check_source("`affine`", StatisticsMetadata(activation="sigmoid"))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: The activation differs: sigmoid in `affine`, softmax in `head`; take both from one ...
    """

    name: str
    num_columns: int | None = None
    background: int | str | None = UNKNOWN
    class_names: Sequence[str] | None = None
    activation: str | None = None
    fingerprint: str | None = None

    def check_width(self, what: str, num_columns: int) -> None:
        """Refuse another number of columns; `what` is what to call the map or the statistics in messages."""
        if self.num_columns is not None and num_columns != self.num_columns:
            raise InputError(
                f"The number of columns differs: {num_columns} in {what}, {self.num_columns} in {self.name}."
            )

    def check_background(self, what: str, background: int | None) -> None:
        """Refuse another place of the background column."""
        if self.background != UNKNOWN and background != self.background:
            raise InputError(
                f"The background differs: {_PLACES[background]} in {what}, {_PLACES[self.background]} in {self.name}."
            )

    def check_source(self, what: str, source: StatisticsMetadata, *, allow_mismatch: bool = False) -> None:
        """Refuse other classes, another activation and other weights, or only warn where that is allowed."""
        for sentence in self.mismatches(what, source):
            if not allow_mismatch:
                raise InputError(f"{sentence}; take both from one model (in Python allow_mismatch=True only warns).")
            warn(f"{sentence}.")

    def mismatches(self, what: str, source: StatisticsMetadata) -> Iterator[str]:
        """A sentence, without its full stop, for each thing in which both sides are known and differ."""
        names = foreground_names(source)
        if names is not None and self.class_names is not None:
            difference = names_differ(names, what, self.class_names, self.name)
            yield from () if difference is None else (difference,)
        if None not in (source.activation, self.activation) and source.activation != self.activation:
            yield f"The activation differs: {source.activation} in {what}, {self.activation} in {self.name}"
        digests = (source.fingerprint, self.fingerprint)
        if None not in digests and digests[0] != digests[1]:
            mine, kind = str(digests[0]), fingerprint_kind(str(digests[0]))
            if kind == fingerprint_kind(str(digests[1])):  # digests of two kinds cannot be compared
                yield (
                    f"The weights differ ({_short(mine)} in {what}, {_short(str(digests[1]))} in {self.name}): "
                    f"{_OTHER_WEIGHTS.get(kind, _OTHER_WEIGHTS[''])}"
                )


def fingerprint_kind(fingerprint: str) -> str:
    """What was digested: "onnx" for the bytes of an ONNX file, empty for the weights of a torch model.

    Example:
        >>> fingerprint_kind("onnx:0c1f"), fingerprint_kind("0c1f")
        ('onnx', '')
    """
    kind, colon, _ = fingerprint.partition(":")
    return kind if colon else ""


def asks_for_weights(maps: Sequence[Any], kind: str) -> bool:
    """Whether any of these maps has a fingerprint of this kind, so that the model needs digesting.

    Example:
        >>> asks_for_weights([None], "onnx")
        False
    """
    sources = [getattr(item, "source", None) for item in maps]
    digests = [source.fingerprint for source in sources if source is not None and source.fingerprint is not None]
    return any(fingerprint_kind(digest) == kind for digest in digests)


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


def _short(fingerprint: str) -> str:
    kind, digest = fingerprint_kind(fingerprint), fingerprint.rpartition(":")[2]
    return f"{kind}:{digest[:12]}…" if kind else f"{digest[:12]}…"
