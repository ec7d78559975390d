"""Outcomes: detections of many images with what became of each; every metric reads this one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from logn.matching.ground_truth import GroundTruth

TableT = TypeVar("TableT")
Bits = npt.NDArray[np.uint16]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Marks = npt.NDArray[np.bool_]

IOU_THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Detections, image by image and best first in each, with what became of them.

    Args:
        image: `(D,)` position of the image, in as small a type as fits: there are millions of rows.
        label: `(D,)` class, likewise.
        score: `(D,)` score.
        right: `(D,)` whether it found an object of its own: a bit per overlap threshold, the first is the lowest bit.
        counted: `(D,)` likewise; 0 where it is neither right nor wrong, since nobody looked for its class in the image,
            not all objects of the class are annotated there, or what it found does not count.
        object: `(D,)` int32, the object that it found at the first threshold, a row of the ground truth; or -1.
        num_objects: `(F,)` objects of each class to find.
        thresholds: `(T,)` overlaps, at most 16.

    Example:
        >>> outcomes = Outcomes(
        ...     image=np.array([0, 0]), label=np.array([4, 4]), score=np.array([0.9, 0.5]),
        ...     right=pack([[1, 0], [0, 0]]), counted=pack([[1, 1], [1, 1]]), object=np.array([7, -1]),
        ...     num_objects=np.ones(5, int), thresholds=np.array([0.5, 0.75]))
        >>> outcomes.hits, outcomes.alarms
        (array([ True, False]), array([False,  True]))
    """

    image: npt.NDArray[np.integer[Any]]
    label: npt.NDArray[np.integer[Any]]
    score: npt.NDArray[np.floating[Any]]
    right: Bits
    counted: Bits
    object: npt.NDArray[np.integer[Any]]
    num_objects: Counts
    thresholds: Floats

    def __len__(self) -> int:
        return len(self.score)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.num_objects)

    @property
    def hits(self) -> Marks:
        """`(D,)` whether it found an object at the first threshold."""
        return (self.right & 1).astype(bool)

    @property
    def alarms(self) -> Marks:
        """`(D,)` whether it is a false alarm at the first threshold."""
        return (self.counted & ~self.right & 1).astype(bool)

    def take(self, rows: npt.NDArray[Any]) -> Outcomes:
        """Keep the rows that positions or a mask name."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    def by_class(self, truth: GroundTruth) -> Outcomes:
        """What counts at any threshold, class by class, the best first; ties: lowest image id."""
        rows = np.flatnonzero(self.counted)
        order = np.lexsort((truth.image_ids[self.image[rows]], -self.score[rows], self.label[rows]))
        return self.take(rows[order])

    def first(self, number: int, truth: GroundTruth) -> Outcomes:
        """The best detections of all images, best first, and all that tie with the last of them.

        Ties: lowest image id, then those whose class was looked for in the image.
        """
        rows = np.arange(len(self))
        if number < len(self):
            rows = np.flatnonzero(self.score >= np.partition(self.score, -number)[-number])
        best = self.take(rows)
        unseen = ~truth.looked_for(best.image, best.label)
        return best.take(np.lexsort((unseen, truth.image_ids[best.image], -best.score)))

    @staticmethod
    def joined(parts: Iterable[Outcomes]) -> Outcomes:
        """Join the outcomes of images that follow each other; there is at least one part."""
        table = JoinedTable[Outcomes](COLUMNS)
        for part in parts:
            table.add(part)
        return table.joined()


COLUMNS = tuple(field.name for field in fields(Outcomes) if field.name not in ("num_objects", "thresholds"))


class JoinedTable(Generic[TableT]):
    """Joins tables of images that follow each other as they come, so that there is never a second copy.

    Args:
        names: Which fields of the table, a dataclass, have a value per row.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._buffers = {name: bytearray() for name in names}
        self._last: TableT | None = None

    def add(self, part: TableT) -> None:
        """Add the rows of some images."""
        for name, buffer in self._buffers.items():
            buffer.extend(np.ascontiguousarray(getattr(part, name)).reshape(-1).view(np.uint8).data)
        self._last = part

    def joined(self) -> TableT:
        """The table of all rows."""
        assert self._last is not None  # noqa: S101 - every store has images
        columns = {}
        for name, buffer in self._buffers.items():
            like = getattr(self._last, name)
            columns[name] = np.frombuffer(buffer, like.dtype).reshape(-1, *like.shape[1:])
        return cast(TableT, replace(cast(Any, self._last), **columns))


def pack(marks: npt.ArrayLike) -> Bits:
    """Marks `(T, ...)` as a bit per threshold.

    Example:
        >>> pack([[True, False], [True, True]])
        array([3, 2], dtype=uint16)
    """
    values = np.asarray(marks, np.uint16)
    packed: Bits = np.tensordot(1 << np.arange(len(values), dtype=np.uint16), values, axes=1)
    return packed


def unpack(bits: Bits, number: int) -> Marks:
    """Marks `(T, D)` of `number` thresholds.

    Example:
        >>> unpack(np.array([3, 2], np.uint16), 2).tolist()
        [[True, False], [True, True]]
    """
    return (bits >> np.arange(number, dtype=np.uint16)[:, None] & 1).astype(bool)
