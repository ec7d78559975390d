"""Which class of the labels, or of counts, is which class of the model: by name, never by place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, warn

IntArray = npt.NDArray[np.int64]
_SHOWN = 5


class NoSharedNamesError(InputError):
    """Two lists of class names have nothing in common."""


@dataclass(frozen=True, eq=False)
class ClassMatch:
    """The classes of a model next to those of labels.

    Args:
        model_names: `(M,)` foreground classes of the model, in the order of its columns.
        label_names: `(L,)` classes of the labels, in their order.
        label_of_model: `(M,)` index in the labels of each class of the model; -1 for none.
    """

    model_names: tuple[str, ...]
    label_names: tuple[str, ...]
    label_of_model: IntArray

    @property
    def identical(self) -> bool:
        """Whether both have the same classes in the same order."""
        return len(self.model_names) == len(self.label_names) and bool(
            (self.label_of_model == np.arange(len(self.model_names))).all()
        )

    @property
    def model_of_label(self) -> IntArray:
        """`(L,)` index in the model of each class of the labels; -1 for none."""
        places = np.full(len(self.label_names), -1, np.int64)
        matched = np.flatnonzero(self.label_of_model >= 0)
        places[self.label_of_model[matched]] = matched
        return places

    @property
    def only_in_model(self) -> tuple[str, ...]:
        """Classes of the model that the labels do not have."""
        return tuple(self.model_names[index] for index in np.flatnonzero(self.label_of_model < 0))

    @property
    def only_in_labels(self) -> tuple[str, ...]:
        """Classes of the labels that the model does not have."""
        return tuple(self.label_names[index] for index in np.flatnonzero(self.model_of_label < 0))

    def describe(self) -> str:
        """What is left out, in one line; nothing where all classes are on both sides.

        Example:
            >>> match_classes(["cat", "dog", "cow"], ["dog", "cat"]).describe()
            '2 of the 3 classes of the model are in the labels and measured; 1 is not (cow).'
        """
        parts = []
        if left_out := self.only_in_model:
            measured = len(self.model_names) - len(left_out)
            parts.append(
                f"{measured} of the {len(self.model_names)} classes of the model are in the labels and measured; "
                f"{len(left_out)} {'is' if len(left_out) == 1 else 'are'} not ({listed(left_out)})."
            )
        if unknown := self.only_in_labels:
            count = len(unknown)
            parts.append(
                f"{count} {'class' if count == 1 else 'classes'} of the labels ({listed(unknown)}) "
                f"{'is' if count == 1 else 'are'} not in the model and left out."
            )
        return " ".join(parts)


def match_classes(model_names: Sequence[str], label_names: Sequence[str], what: str = "labels") -> ClassMatch:
    """Match classes by name: by the same name first, then ignoring case, spaces, hyphens and underscores.

    A name that could be two classes is refused, and so are names that have nothing in common.

    Args:
        model_names: Foreground classes of the model, in the order of its columns.
        label_names: Classes of the labels.
        what: What to call the labels in messages.

    Example:
        >>> match_classes(["person", "traffic light", "cow"], ["Traffic_Light", "person"]).label_of_model.tolist()
        [1, 0, -1]
        >>> match_classes(["cat"], ["helmet", "vest"])
        Traceback (most recent call last):
        ...
        logn.data.class_names.NoSharedNamesError: The labels and the model share no class name: ...
    """
    model, labels = tuple(map(str, model_names)), tuple(map(str, label_names))
    if model == labels:
        return ClassMatch(model, labels, np.arange(len(model)))
    _refuse_duplicates(what, labels, model)
    _refuse_duplicates("model", model, labels)
    exact = {name: index for index, name in enumerate(labels)}
    matched = np.array([exact.get(name, -1) for name in model], np.int64)
    loose = _by_key(labels, {*range(len(labels))} - {*matched.tolist()})
    wanted = _by_key(model, np.flatnonzero(matched < 0).tolist())
    for key in wanted.keys() & loose.keys():
        for side, names, places in (("model", model, wanted[key]), (what, labels, loose[key])):
            if len(places) > 1:
                first, second = (names[index] for index in places[:2])
                raise InputError(
                    f"The classes {first!r} and {second!r} of the {side} differ only in case, spaces, hyphens or "
                    "underscores: rename one of them."
                )
        matched[wanted[key][0]] = loose[key][0]
    if (matched < 0).all():
        raise NoSharedNamesError(
            f"The {what} and the model share no class name: the model has {listed(model)}, the {what} have "
            f"{listed(labels)}."
        )
    return ClassMatch(model, labels, matched)


def places_of(names: Sequence[str], available: Sequence[str], what: str = "counts") -> npt.NDArray[np.int64]:
    """Where each of `names` is among `available`; one that is missing is refused.

    Example:
        >>> places_of(["dog", "Cat"], ["cat", "dog", "cow"]).tolist()
        [1, 0]
    """
    match = match_classes(names, available, what)
    if missing := match.only_in_model:
        raise InputError(f"The {what} do not have the class {missing[0]!r} of the model: add it.")
    return match.label_of_model


def names_differ(names: Sequence[str], what: str, expected: Sequence[str], other: str) -> str | None:
    """How the classes of two sides differ, in words without a full stop; None if all names and their order are equal.

    Case, spaces, hyphens and underscores do not count.

    Example:
        >>> names_differ(["cat", "traffic light"], "`map`", ["Cat", "traffic_light"], "`model`") is None
        True
        >>> names_differ(["cat", "dog"], "`map`", ["dog", "cat"], "`model`")
        "The classes differ: class 0 is 'cat' in `map`, 'dog' in `model` (the same names in another order)"
    """
    if len(names) != len(expected):
        return f"The classes differ: {len(names)} in {what}, {len(expected)} in {other}"
    keys, wanted = [_key(name) for name in names], [_key(name) for name in expected]
    index = next((index for index, pair in enumerate(zip(keys, wanted, strict=True)) if len({*pair}) > 1), None)
    if index is None:
        return None
    order = " (the same names in another order)" if sorted(keys) == sorted(wanted) else ""
    return f"The classes differ: class {index} is {names[index]!r} in {what}, {expected[index]!r} in {other}{order}"


def are_placeholders(names: Sequence[str]) -> bool:
    """Whether names only count the classes, as exporters write them that know none.

    Example:
        >>> are_placeholders(["class0", "class1"]), are_placeholders(["LABEL_0", "1"]), are_placeholders(["cat", "1"])
        (True, True, False)
    """
    return all(re.fullmatch(r"(?:class|label)?[ _-]?\d+", name, re.IGNORECASE) for name in names)


def warn_of_position(what: str, names: Sequence[str]) -> None:
    """Warn that named classes are taken by position, since the model has no names to match them with."""
    warn(
        f"The {what} have class names, but those of the model are unknown: the {what} are taken in their order, from "
        f"{names[0]!r} for the first class of the model to {names[-1]!r} for the last. Pass the model's as "
        "`class_names` to match them by name."
    )


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are.

    Example:
        >>> listed([f"class {number}" for number in range(9)])
        'class 0, class 1, class 2, class 3, class 4 and 4 more'
    """
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _by_key(names: Sequence[str], places: Iterable[int]) -> dict[str, list[int]]:
    by_key: dict[str, list[int]] = {}
    for index in sorted(places):
        by_key.setdefault(_key(names[index]), []).append(index)
    return by_key


def _refuse_duplicates(side: str, names: Sequence[str], other: Sequence[str]) -> None:
    """Refuse a name that comes twice where the other side has it; elsewhere it is left out anyway."""
    keys, times = {_key(name) for name in other}, Counter(names)
    twice = next((name for name in times if times[name] > 1 and _key(name) in keys), None)
    if twice is not None:
        raise InputError(f"{times[twice]} classes of the {side} are called {twice!r}: give each its own name.")
