"""PredictionStore: read the proposals of a data set from memory-mapped files."""

from __future__ import annotations

import copy
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.store.format import (
    BOXES_NAME,
    CLASS_BOXES_NAME,
    HEADER_NAME,
    INDEX_NAME,
    LOGITS_NAME,
    OBJECTNESS_NAME,
    PAIRS_NAME,
    StoreHeader,
    boxes_checksum,
    check_same_predictions,
    checksum,
    file_size,
    read_index,
)
from logn.logits.proposals import PAIR_DTYPE, ClassBoxes, Proposals


class PredictionStore:
    """The proposals of many images, one read-only view per image; images are sorted by id.

    A store whose writing was cut short opens with the images that are complete. Parts of several processes
    are read as one; an image that two parts hold in the same form counts once.

    Args:
        path: Folder of the store, as `PredictionWriter` or `logn predict` made it.

    Example:
        >>> import tempfile
        >>> from logn.evaluate.store.writer import PredictionWriter
        >>> folder = tempfile.mkdtemp()
        >>> with PredictionWriter(folder, StoreHeader(num_columns=3, background=-1)) as writer:
        ...     writer.append(17, Proposals(np.zeros((2, 4)), np.ones((2, 3)), height=10, width=20))
        >>> store = PredictionStore(folder)
        >>> len(store), store.image_ids.tolist(), store[0].logits.dtype
        (1, [17], dtype('float16'))
        >>> store.missing([17, 18]).tolist()
        [18]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        folders = sorted(folder for folder in self.path.glob("part-*") if not _is_unborn(folder))
        if not folders:
            raise InputError(f"Expected `{path}` to be a prediction store, but it holds no `part-00000`.")
        self._folders = tuple(folders)
        self._parts = [_open_part(folder) for folder in folders]
        self.header = self._parts[0].header
        for part, folder in zip(self._parts, folders, strict=True):
            check_same_predictions(self.header, part.header, folder)
        parts = np.repeat(np.arange(len(self._parts)), [len(part.records) for part in self._parts])
        records = np.concatenate([part.records for part in self._parts])
        order = _sorted_without_repeats(records, self.path)
        self._part_of, self._records = parts[order], records[order]
        self._is_verified = np.zeros(len(order), bool)

    def __getstate__(self) -> dict[str, Any]:
        """For another process: it maps the same files."""
        return {name: value for name, value in self.__dict__.items() if name != "_parts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._parts = [_open_part(folder) for folder in self._folders]

    def __len__(self) -> int:
        return len(self._records)

    @property
    def image_ids(self) -> npt.NDArray[np.int64]:
        """The id of each image, ascending."""
        return self._records["image_id"].astype(np.int64)

    @property
    def num_columns(self) -> int:
        """How many columns the logits have."""
        return self.header.num_columns

    @property
    def num_classes(self) -> int:
        """How many foreground classes there are."""
        return self.header.num_classes

    @property
    def num_proposals(self) -> int:
        """How many proposals all images have together."""
        return int(self._records["rows"].sum(dtype=np.int64))

    @property
    def is_complete(self) -> bool:
        """Whether every image is here that the writer meant to write; True where it did not say how many."""
        return self.header.num_images is None or len(self) >= self.header.num_images

    def missing(self, image_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Those of `image_ids` that are not here, ascending: of a run that was stopped, or a process that died."""
        return np.setdiff1d(np.asarray(image_ids, np.int64), self.image_ids)

    def __getitem__(self, index: int) -> Proposals:
        """The proposals of one image, as views on the files; bytes that changed since they were written are refused."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"Expected `index` to be below {len(self)}, but got {index}.")
        record, part = self._records[index], self._parts[self._part_of[index]]
        rows = slice(int(record["first_row"]), int(record["first_row"]) + int(record["rows"]))
        proposals = Proposals(
            boxes=part.boxes[rows],
            logits=part.logits[rows],
            height=int(record["height"]),
            width=int(record["width"]),
            objectness=None if part.objectness is None else part.objectness[rows],
            class_boxes=self._class_boxes(record, part),
        )
        if not self._is_verified[index]:  # once: a second look would find the same
            self._check(record, proposals)
            self._is_verified[index] = True
        return proposals

    def _class_boxes(self, record: Any, part: _Part) -> ClassBoxes | None:
        if part.pairs is None or part.class_boxes is None:
            return None
        kept = slice(int(record["first_pair"]), int(record["first_pair"]) + int(record["pairs"]))
        return ClassBoxes(part.pairs[kept], part.class_boxes[kept], self.num_classes)

    def __iter__(self) -> Iterator[Proposals]:
        """All images in order; pages that were read are let go of, so memory stays bounded."""
        for index in range(len(self)):
            yield self[index]
            self.release(index, index + 1)

    def release(self, start: int, stop: int) -> None:
        """Let the system take back the memory of images `start` to `stop - 1`; views on them stay valid."""
        for index in range(start, min(stop, len(self))):
            record, part = self._records[index], self._parts[self._part_of[index]]
            spans = {name: ("first_row", "rows", size) for name, size in self.header.row_files.items()}
            spans |= {name: ("first_pair", "pairs", size) for name, size in self.header.pair_files.items()}
            for name, (first, number, size) in spans.items():
                part.maps[name].release(int(record[first]) * size, int(record[number]) * size)

    def part(self, rows: npt.NDArray[np.intp]) -> PredictionStore:
        """A store of some of the images, by position, in that order: for a look at a few of very many."""
        chosen = copy.copy(self)
        chosen._part_of, chosen._records = self._part_of[rows], self._records[rows]
        chosen._is_verified = self._is_verified[rows]
        return chosen

    def verify(self) -> None:
        """Read every row and refuse a store whose bytes changed since they were written."""
        self._is_verified[:] = False
        for _ in self:  # reading an image verifies it
            pass

    def _check(self, record: Any, proposals: Proposals) -> None:
        of_boxes = boxes_checksum(proposals.boxes, proposals.class_boxes)
        if (checksum(proposals.logits, proposals.objectness), of_boxes) != (record["logits_crc"], record["boxes_crc"]):
            raise InputError(
                f"Expected `{self.path}` to be as written, but image {record['image_id']} is damaged; remove the "
                "folder and predict its images again."
            )


def is_store(source: Any) -> bool:
    """Whether predictions of a detector are meant: a store, or a path that is no file of logits.

    Example:
        >>> is_store("predictions"), is_store([[0.5, 1.0]])
        (True, False)
    """
    if isinstance(source, str | os.PathLike):
        return not Path(source).is_file()
    return isinstance(source, PredictionStore)


# How far around a page that is read the system maps others, on Linux.
_MAPPED_AROUND = 64 * 1024


class _MappedFile:
    """A read-only map of a file, which may be empty."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0
            self._map = None if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def rows(self, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if self._map is None:
            return np.empty(shape, dtype)
        return np.frombuffer(self._map, dtype, count=int(np.prod(shape))).reshape(shape)

    def release(self, start: int, length: int) -> None:
        if self._map is None or not length or not hasattr(mmap, "MADV_DONTNEED"):
            return
        # Where a page is read, the system maps those around it too: of images that another process decodes, and lets go
        # of, they would stay here.
        first = max(start - _MAPPED_AROUND, 0) // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, first, start + length + _MAPPED_AROUND - first)


@dataclass(frozen=True)
class _Part:
    header: StoreHeader
    records: npt.NDArray[Any]
    maps: dict[str, _MappedFile]
    logits: npt.NDArray[Any]
    boxes: npt.NDArray[Any]
    objectness: npt.NDArray[Any] | None
    pairs: npt.NDArray[Any] | None
    class_boxes: npt.NDArray[Any] | None


def _is_unborn(folder: Path) -> bool:
    """Whether the writer of this part was stopped before it wrote anything at all."""
    return not (folder / HEADER_NAME).exists() and not file_size(folder / INDEX_NAME)


def _open_part(folder: Path) -> _Part:
    header = StoreHeader.read(folder)
    records = read_index(folder, header)
    rows = int(records["rows"].sum(dtype=np.int64))
    pairs = int(records["pairs"].sum(dtype=np.int64)) if header.pair_files else 0
    # A part whose first image was never finished may lack its data files.
    maps = {name: _MappedFile(folder / name if rows else Path(os.devnull)) for name in header.row_files}
    maps |= {name: _MappedFile(folder / name if pairs else Path(os.devnull)) for name in header.pair_files}
    of_all_classes = header.class_boxes and header.kept_class_boxes is None
    box_shape = (rows, header.num_classes, 4) if of_all_classes else (rows, 4)
    dtype = np.dtype(header.dtype).newbyteorder("<").str
    return _Part(
        header=header,
        records=records,
        maps=maps,
        logits=maps[LOGITS_NAME].rows(dtype, (rows, header.num_columns)),
        boxes=maps[BOXES_NAME].rows("<f4", box_shape),
        objectness=maps[OBJECTNESS_NAME].rows(dtype, (rows,)) if header.objectness else None,
        pairs=maps[PAIRS_NAME].rows(PAIR_DTYPE.str, (pairs,)) if header.pair_files else None,
        class_boxes=maps[CLASS_BOXES_NAME].rows("<f4", (pairs, 4)) if header.pair_files else None,
    )


def _sorted_without_repeats(records: npt.NDArray[Any], path: Path) -> npt.NDArray[np.intp]:
    """Order of the records by image id; an exact repeat is left out, a differing one refused."""
    order = np.argsort(records["image_id"], kind="stable")
    ids = records["image_id"][order]
    repeat = np.flatnonzero(ids[1:] == ids[:-1]) + 1
    content = ["rows", "height", "width", "logits_crc", "boxes_crc"]
    for position in repeat:
        if records[order[position]][content] != records[order[position - 1]][content]:
            raise InputError(
                f"Expected each image of `{path}` once, but image {ids[position]} is there twice and differs."
            )
    return np.delete(order, repeat)
