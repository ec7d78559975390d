"""StatisticsMetadata: what must be known about statistics apart from the numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from logn.errors import InputError
from logn.logits.arrays import check_background
from logn.strict_json import parse_json

ACTIVATIONS = ("softmax", "sigmoid")


@dataclass(frozen=True)
class StatisticsMetadata:
    """Where statistics come from. Those that differ in any of this describe different things and never merge.

    Args:
        class_names: Name of every column, in order.
        background: Place of the background column: None, 0 or -1.
        activation: What the model applies to the logits: "softmax" or "sigmoid".
        layer: Path of the layer whose output was recorded.
        population: Which samples were recorded: test proposals, sampled RoIs, all anchors, queries, images. The
            means of one model differ between them.
        fingerprint: Digest of the model's weights; that of an ONNX file begins with "onnx:".
        unused: Columns that the model has but never trains for a class; no method may correct them or lean on them.

    Example:
        >>> here, there = StatisticsMetadata(population="anchors"), StatisticsMetadata(population="queries")
        >>> here.check_mergeable(there)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected statistics of one `population` to merge, but got 'anchors' and 'queries'.
    """

    class_names: tuple[str, ...] | None = None
    background: int | None = None
    activation: str | None = None
    layer: str | None = None
    population: str | None = None
    fingerprint: str | None = None
    unused: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_background(self.background)
        if self.class_names is not None:
            object.__setattr__(self, "class_names", tuple(str(name) for name in self.class_names))
        object.__setattr__(self, "unused", tuple(int(column) for column in self.unused))
        if self.activation is not None and self.activation not in ACTIVATIONS:
            raise InputError(f"Expected `activation` to be one of {ACTIVATIONS}, but got {self.activation!r}.")

    def with_changes(self, **changes: Any) -> StatisticsMetadata:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def check_width(self, num_classes: int) -> None:
        """Refuse class names that are not one per column, a background alone, and unused columns that there are not."""
        if self.background is not None and num_classes == 1:
            raise InputError("Expected a column for a class as well as one for the background, but got only 1 column.")
        if self.class_names is not None and len(self.class_names) != num_classes:
            raise InputError(
                f"Expected `class_names` to have one name per column ({num_classes}), but got {len(self.class_names)}."
            )
        if any(not 0 <= column < num_classes for column in self.unused):
            raise InputError(f"Expected `unused` to be columns from 0 to {num_classes - 1}, but got {self.unused}.")

    def check_mergeable(self, other: StatisticsMetadata) -> None:
        """Refuse statistics that differ in anything listed here, naming it."""
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if mine != theirs:
                raise InputError(
                    f"Expected statistics of one `{item.name}` to merge, but got {_short(mine)} and {_short(theirs)}."
                )

    def to_text(self) -> dict[str, str]:
        """The fields as JSON texts, as safetensors wants them."""
        return {name: json.dumps(value) for name, value in asdict(self).items()}

    @classmethod
    def from_text(cls, text: Mapping[str, str]) -> StatisticsMetadata:
        """The opposite of `to_text`; a field that is missing is unknown."""
        return cls.from_values({name: parse_json(text[name]) for name in _names_of(cls) if name in text})

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> StatisticsMetadata:
        """Metadata of plain values, as JSON holds them; what is missing is unknown, and what is not ours is ignored."""
        names = values.get("class_names")
        if names is not None and not isinstance(names, Sequence):
            raise InputError(f"Expected `class_names` to be a list, but got {names!r}.")
        return cls(**{name: values[name] for name in _names_of(cls) if name in values})


def _names_of(kind: type[StatisticsMetadata]) -> list[str]:
    return [item.name for item in fields(kind)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
