"""Head: what the columns of a model's class logits are, and in what two heads differ.

A head is made once, where a model is opened or a file of logits is read. It rides with the statistics, the maps, the
predictions and the thresholds of the model, and lies in each of their files under the key `head`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from logn.base.strict_json import parse_json
from logn.data.class_names import names_differ
from logn.errors import InputError, warn

# What a model may apply to its class logits, and what is assumed where neither the model nor the user says it.
ACTIVATIONS = ("softmax", "sigmoid")
ASSUMED = "softmax"
# What the columns are called that stand for no class.
BACKGROUND, NO_CLASS = "background", "N/A"
# The key of a head in the metadata of a file.
HEAD_KEY = "head"

# Fewer rows can look like anything; hundreds that all sum to 1 leave no doubt, so more are not looked at.
FEWEST_ROWS, SAMPLED_ROWS = 20, 512
# Half precision, in which sampled rows are kept, rounds a row of probabilities to a sum that is not exactly 1.
SUM_TOLERANCE = 0.02

_PLACES: dict[int | None, str] = {0: "first", -1: "last", None: "none"}
_OTHER_WEIGHTS = {
    "torch": "another model, or the same one retrained, cast to another precision or changed by a fold",
    "onnx": "another model, or the same one retrained, converted or exported anew",
}


@dataclass(frozen=True)
class Head:
    """What the columns of a model's class logits are.

    Args:
        num_columns: How many there are, the background and unused ones included; None where only a run would tell.
        names: Name of every column, in order: "background" for the background, "N/A" for one without a class.
        background: Index of the background (or no-object) column: None, 0 or -1.
        unused: Columns that the model has but never trains for a class; no method corrects or reads them.
        activation: What the model applies to the logits: "softmax" or "sigmoid"; None if unknown.
        objectness: Whether an objectness beside the logits takes part in the scores.
        population: What a row of logits stands for: test proposals, sampled RoIs, all anchors, queries, images. The
            means of one model differ between them.
        layer: Path of the layer that gives the logits, or the tensors of an ONNX file.
        source: Digest of the weights behind its kind: "torch:…" for a model, "onnx:…" for the bytes of a file.

    Example:
        >>> head = Head(names=("background", "cat", "dog"), background=0)
        >>> head.num_columns, head.num_classes, head.class_names, head.foreground.tolist()
        (3, 2, ('cat', 'dog'), [1, 2])
    """

    num_columns: int | None = None
    names: tuple[str, ...] | None = None
    background: int | None = None
    unused: tuple[int, ...] = ()
    activation: str | None = None
    objectness: bool = False
    population: str | None = None
    layer: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "background", check_background(self.background))
        object.__setattr__(self, "unused", tuple(int(column) for column in self.unused))
        if self.names is not None:
            object.__setattr__(self, "names", tuple(str(name) for name in self.names))
        if self.activation is not None and self.activation not in ACTIVATIONS:
            raise InputError(f"Expected `activation` to be one of {ACTIVATIONS}, but got {self.activation!r}.")
        columns = self.num_columns if self.num_columns is not None or self.names is None else len(self.names)
        if columns is not None:
            self._check_columns(columns)
            object.__setattr__(self, "num_columns", int(columns))

    def _check_columns(self, columns: int) -> None:
        """Refuse names that are not one per column, a background alone, and unused columns out of range."""
        if isinstance(columns, bool) or not isinstance(columns, int | np.integer) or columns < 1:
            raise InputError(f"Expected `num_columns` to be a whole number of at least 1, but got {columns!r}.")
        if self.background is not None and columns == 1:
            raise InputError("There is only 1 column, the background: there must be a column for a class, too.")
        if self.names is not None and len(self.names) != columns:
            raise InputError(
                f"Expected `class_names` to have one name per column ({columns}), but got {len(self.names)}."
            )
        if any(not 0 <= column < columns for column in self.unused):
            raise InputError(f"Expected `unused` to be columns from 0 to {columns - 1}, but got {self.unused}.")

    @classmethod
    def of_classes(
        cls,
        class_names: Sequence[str] | None,
        num_columns: int,
        background: int | None = None,
        class_columns: Sequence[int] | None = None,
        **known: Any,
    ) -> Head:
        """The head of a model that may know only the names of its classes, not those of its columns.

        Args:
            class_names: Name of each class or of each column; None if unknown.
            num_columns: How many columns there are.
            background: Index of the background column.
            class_columns: The column of each class, ascending; by default all but the background.
            known: The other fields.

        Example:
            >>> Head.of_classes(("cat", "dog"), 4, background=-1, class_columns=(0, 2)).names
            ('cat', 'N/A', 'dog', 'background')
        """
        named = np.arange(num_columns)[foreground_columns(num_columns, background)].tolist()
        columns = named if class_columns is None else [int(column) for column in class_columns]
        if columns != sorted({*columns} & {*named}):
            raise InputError(
                f"Expected `class_columns` to name foreground columns of the {num_columns} in ascending order, each "
                f"once, but got {columns!r:.60}."
            )
        names = None if class_names is None else tuple(map(str, class_names))
        if names is not None and len(names) != num_columns:
            if len(names) != len(columns):
                raise InputError(
                    f"Expected `class_names` to have one name for each of {len(columns)} classes, but got {len(names)}."
                )
            names = _spread(names, columns, num_columns, background)
        unused = tuple(sorted({*named} - {*columns}))
        return cls(num_columns, names, background, unused, **known)

    @property
    def width(self) -> int:
        """`num_columns`, where it must be known."""
        if self.num_columns is None:
            raise InputError("Expected `head` to say its number of columns, `num_columns`, but got none.")
        return self.num_columns

    @property
    def foreground(self) -> npt.NDArray[np.intp]:
        """The column of each class: all but the background and the unused ones."""
        columns = np.arange(self.width)[foreground_columns(self.width, self.background)]
        return columns[~np.isin(columns, self.unused)] if self.unused else columns

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return self.width - (self.background is not None) - len({*self.unused})

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The name of each class, in the order of `foreground`."""
        return None if self.names is None else tuple(self.names[column] for column in self.foreground)

    @property
    def column_names(self) -> tuple[str, ...] | None:
        """The names of all columns but the background, unused ones included, as methods take them."""
        return None if self.names is None else self.names[foreground_columns(len(self.names), self.background)]

    @property
    def source_kind(self) -> str | None:
        """What was digested: "torch" or "onnx"."""
        return None if self.source is None else self.source.partition(":")[0]

    @property
    def activations(self) -> tuple[str, ...]:
        """Which activations may follow the logits: both where it is unknown; beside a background, a softmax.

        Example:
            >>> Head(background=0).activations, Head().activations
            (('softmax',), ('softmax', 'sigmoid'))
        """
        if self.activation is not None:
            return (self.activation,)
        return ACTIVATIONS if self.background is None else ("softmax",)

    @property
    def scored_by(self) -> str | None:
        """The activation whose scores a threshold may cut: None for a softmax over classes alone.

        Example:
            >>> Head(background=0).scored_by, Head(population="images").scored_by
            ('softmax', None)
        """
        settled = self.settled()
        activation = settled.activation or "sigmoid"  # may be: then a threshold cuts its scores
        return None if activation == "softmax" and settled.background is None else activation

    def settled(self, background: int | None = None, activation: str | None = None) -> Head:
        """The same with the background and the activation of the caller, where those are given.

        Where the activation is not known, it is a softmax beside a background column, and in a classifier that was
        found by what it returns; else it stays None, and whoever needs one assumes `ASSUMED`.

        Example:
            >>> head = Head(names=("a", "b"))
            >>> head.settled().activation, head.settled(background=0).activation
            (None, 'softmax')
        """
        index = self.background if background is None else background
        activation = activation or self.activation
        if activation is None and (index is not None or self.population in ("images", "image locations")):
            activation = "softmax"
        return replace(self, background=index, activation=activation)

    def fits(self, other: Head, what: str = "`affine`", whose: str = "the model") -> tuple[str, ...]:
        """A sentence, without its full stop, for each thing that both heads know and in which they differ.

        Args:
            other: The head of the logits that something of this head is used on.
            what: What to call the thing of this head.
            whose: What to call the thing of the other.

        Example:
            >>> Head(3, activation="softmax").fits(Head(4, activation="sigmoid"), whose="`head`")
            ('The number of columns differs: 3 in `affine`, 4 in `head`', \
'The activation differs: softmax in `affine`, sigmoid in `head`')
        """
        return (*self._other_columns(other, what, whose), *self._other_model(other, what, whose))

    def check_fits(
        self, other: Head, what: str = "`affine`", whose: str = "the model", *, allow_mismatch: bool = False
    ) -> None:
        """Refuse another number of columns or place of the background, and, unless allowed, another model.

        Other class names, another activation and other weights are usually a mistake, too, but what was made for a
        model may be meant for its retrained successor: `allow_mismatch` only warns of these.

        Example:
            >>> Head(3).check_fits(Head(4), whose="`head`")
            Traceback (most recent call last):
            ...
            logn.errors.InputError: The number of columns differs: 3 in `affine`, 4 in `head`.
        """
        for sentence in self._other_columns(other, what, whose):
            raise InputError(f"{sentence}.")
        for sentence in self._other_model(other, what, whose):
            if not allow_mismatch:
                raise InputError(f"{sentence}; take both from one model (in Python allow_mismatch=True only warns).")
            warn(f"{sentence}.")

    def _other_columns(self, other: Head, what: str, whose: str) -> list[str]:
        differences = []
        if None not in (self.num_columns, other.num_columns) and self.num_columns != other.num_columns:
            differences.append(
                f"The number of columns differs: {self.num_columns} in {what}, {other.num_columns} in {whose}"
            )
        if self.background != other.background:
            places = f"{_PLACES[self.background]} in {what}, {_PLACES[other.background]} in {whose}"
            differences.append(f"The background differs: {places}")
        return differences

    def _other_model(self, other: Head, what: str, whose: str) -> list[str]:
        differences = []
        if self.names is not None and other.names is not None:
            # What the background and unused columns are called does not matter.
            apart = {*self.unused, *other.unused}
            names, others = (
                [name for column, name in enumerate(head.names or ()) if column not in apart][
                    foreground_columns(head.width - len(apart), head.background)
                ]
                for head in (self, other)
            )
            if difference := names_differ(names, what, others, whose):
                differences.append(difference)
        if None not in (self.activation, other.activation) and self.activation != other.activation:
            differences.append(f"The activation differs: {self.activation} in {what}, {other.activation} in {whose}")
        kind = self.source_kind
        # Digests of two kinds cannot be compared.
        if self.source != other.source and kind is not None and kind == other.source_kind:
            digests = f"{_short(self.source)} in {what}, {_short(other.source)} in {whose}"
            differences.append(f"The weights differ ({digests}): {_OTHER_WEIGHTS.get(kind, 'another model')}")
        return differences

    def check_mergeable(self, other: Head) -> None:
        """Refuse statistics of something else: two heads that differ in a field, which is named.

        Example:
            >>> Head(population="anchors").check_mergeable(Head(population="queries"))
            Traceback (most recent call last):
            ...
            logn.errors.InputError: Statistics of different `population` do not merge: 'anchors' and 'queries'.
        """
        for field in fields(self):
            mine, theirs = repr(getattr(self, field.name)), repr(getattr(other, field.name))
            if mine != theirs:
                raise InputError(f"Statistics of different `{field.name}` do not merge: {mine:.60} and {theirs:.60}.")

    def to_json(self) -> str:
        """What lies in files under the key `head`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: Mapping[str, str]) -> Head:
        """The head in the metadata of a file."""
        if HEAD_KEY not in text:
            raise InputError(f"The key `{HEAD_KEY}` is missing in its metadata.")
        return cls.of_values(parse_json(text[HEAD_KEY]))

    @classmethod
    def of_values(cls, values: Any) -> Head:
        """A head of plain values, as JSON has them."""
        try:
            unknown = msgspec.convert(values, dict[str, Any]).keys() - {field.name for field in fields(cls)}
            if unknown:
                raise msgspec.ValidationError(f"`{min(unknown)}` is not one")
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise InputError(f"Expected `{HEAD_KEY}` to hold the fields of a head: {error}.") from error


def check_background(background: Any) -> int | None:
    """Accept None, 0 or -1 as the place of the background column.

    Example:
        >>> check_background(-1)
        -1
        >>> check_background(3)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `background` to be None, 0 or -1, but got 3.
    """
    if background is None:
        return None
    # False equals 0 in Python, but means that there is no background.
    if isinstance(background, int | np.integer) and not isinstance(background, bool) and background in (0, -1):
        return int(background)
    raise InputError(f"Expected `background` to be None, 0 or -1, but got {background!r}.")


def foreground_columns(num_columns: int, background: int | None) -> slice:
    """The slice of the columns that are not background, unused ones included.

    Example:
        >>> list(range(4))[foreground_columns(4, background=0)], list(range(4))[foreground_columns(4, background=-1)]
        ([1, 2, 3], [0, 1, 2])
    """
    if background is None:
        return slice(0, num_columns)
    return slice(1, num_columns) if background == 0 else slice(0, num_columns - 1)


def probability_kind(
    rows: npt.NDArray[Any], *, tolerance: float = SUM_TOLERANCE
) -> Literal["softmax", "sigmoid"] | None:
    """What `rows` (N, C) have been through: "softmax" is sure, "sigmoid" a guess; None for logits.

    Args:
        rows: Logits or probabilities.
        tolerance: How far the sum of a row of probabilities may be from 1.

    Example:
        >>> probability_kind(np.array([[0.1, 0.9], [0.5, 0.5]])), probability_kind(np.array([[0.1, 0.2], [0.5, 0.9]]))
        ('softmax', 'sigmoid')
        >>> probability_kind(np.array([[0.1, 1.9], [-0.5, 0.5]])) is None
        True
    """
    values = np.asarray(rows, np.float64)
    if values.size == 0 or not (values.min() >= 0 and values.max() <= 1):  # NaN lies nowhere
        return None
    if values.shape[1] > 1 and np.abs(values.sum(axis=1) - 1).max() < tolerance:
        return "softmax"
    return "sigmoid" if values.max() > values.min() else None  # one number everywhere is no answer of a model


def _spread(names: Sequence[str], columns: Sequence[int], num_columns: int, background: int | None) -> tuple[str, ...]:
    """The name of every column from those of the classes."""
    spread = [NO_CLASS] * num_columns
    if background is not None:
        spread[background] = BACKGROUND
    for column, name in zip(columns, names, strict=True):
        spread[column] = name
    return tuple(spread)


def _short(digest: str | None) -> str:
    kind, _, number = str(digest).partition(":")
    return f"{kind}:{number[:12]}…"
