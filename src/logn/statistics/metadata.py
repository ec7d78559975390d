"""What statistics are of: classes, background, activation, layer, population and model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from logn.base.arrays import ACTIVATIONS, check_background
from logn.base.strict_json import parse_json
from logn.errors import InputError

# What follows logits where neither the model nor the user says it.
ASSUMED = "softmax"


@dataclass(frozen=True)
class StatisticsMetadata:
    """Where statistics come from. Those that differ in any of this describe different things and never merge.

    Args:
        class_names: Name of every column, in order.
        background: Index of the background column: None, 0 or -1.
        activation: What the model applies to the logits: "softmax" or "sigmoid".
        layer: Path of the layer whose output was recorded.
        population: Which samples were recorded: test proposals, sampled RoIs, all anchors, queries, images. The
            means of one model differ between them.
        fingerprint: Digest of the model's weights; that of an ONNX file begins with "onnx:".
        unused: Columns that the model never trains for a class; no method corrects or reads them.

    Example:
        >>> here, there = StatisticsMetadata(population="anchors"), StatisticsMetadata(population="queries")
        >>> here.check_mergeable(there)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Statistics of different `population` do not merge: 'anchors' and 'queries'.
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

    @property
    def activations(self) -> tuple[str, ...]:
        """Which activations may follow the logits: both where it is unknown; beside a background, a softmax.

        Example:
            >>> StatisticsMetadata(background=0).activations, StatisticsMetadata().activations
            (('softmax',), ('softmax', 'sigmoid'))
        """
        if self.activation is not None:
            return (self.activation,)
        return ACTIVATIONS if self.background is None else ("softmax",)

    @property
    def scored_by(self) -> str | None:
        """The activation whose scores a threshold may cut: None for a softmax over classes alone.

        Example:
            >>> StatisticsMetadata(background=0).scored_by, StatisticsMetadata(population="images").scored_by
            ('softmax', None)
        """
        settled = self.settled()
        activation = settled.activation or "sigmoid"  # may be: then a threshold cuts its scores
        return None if activation == "softmax" and settled.background is None else activation

    def with_changes(self, **changes: Any) -> StatisticsMetadata:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def settled(
        self, background: int | str | None = "recorded", activation: str | None = "recorded"
    ) -> StatisticsMetadata:
        """The same with the background and the activation that a caller gives instead of "recorded".

        Where the activation is not known, it is a softmax beside a background column, and in a classifier that was
        found by what it returns; else it stays None, and whoever needs one assumes `ASSUMED`.

        Example:
            >>> metadata = StatisticsMetadata(class_names=("a", "b"))
            >>> metadata.settled().activation, metadata.settled(background=0).activation
            (None, 'softmax')
        """
        if activation not in (None, "recorded", *ACTIVATIONS):
            raise InputError(f'Expected `activation` to be "softmax", "sigmoid" or "recorded", but got {activation!r}.')
        index = check_background(self.background if background == "recorded" else background)
        settled = self.activation if activation in (None, "recorded") else activation
        if settled is None and (index is not None or self.population in ("images", "image locations")):
            settled = "softmax"
        return replace(self, background=index, activation=settled)

    def check_width(self, num_columns: int) -> None:
        """Refuse class names that are not one per column, a background alone, and unused columns out of range."""
        if self.background is not None and num_columns == 1:
            raise InputError("There is only 1 column, the background: there must be a column for a class, too.")
        if self.class_names is not None and len(self.class_names) != num_columns:
            raise InputError(
                f"Expected `class_names` to have one name per column ({num_columns}), but got {len(self.class_names)}."
            )
        if any(not 0 <= column < num_columns for column in self.unused):
            raise InputError(f"Expected `unused` to be columns from 0 to {num_columns - 1}, but got {self.unused}.")

    def check_mergeable(self, other: StatisticsMetadata) -> None:
        """Refuse statistics that differ in a field, and name it."""
        for field in fields(self):
            mine, theirs = repr(getattr(self, field.name)), repr(getattr(other, field.name))
            if mine != theirs:
                raise InputError(f"Statistics of different `{field.name}` do not merge: {mine:.60} and {theirs:.60}.")

    def to_text(self) -> dict[str, str]:
        """The fields as JSON texts, as safetensors wants them."""
        return {name: json.dumps(value) for name, value in asdict(self).items()}

    @classmethod
    def from_text(cls, text: Mapping[str, str]) -> StatisticsMetadata:
        """The opposite of `to_text`; a missing field is unknown."""
        names = [field.name for field in fields(cls)]
        return cls.from_values({name: parse_json(text[name]) for name in names if name in text})

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> StatisticsMetadata:
        """Metadata of plain values, as JSON holds them; a missing field is unknown, and other names are ignored."""
        names = values.get("class_names")
        if names is not None and not isinstance(names, Sequence):
            raise InputError(f"Expected `class_names` to be a list, but got {names!r}.")
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})
