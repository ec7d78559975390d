"""PredictionWriter: append images to a store, so that a kill at any moment loses no finished image."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, LogNWarning
from logn.evaluate.store.box_candidates import candidate_boxes
from logn.evaluate.store.format import (
    BOXES_NAME,
    CLASS_BOXES_NAME,
    HEADER_NAME,
    INDEX_NAME,
    LOGITS_NAME,
    OBJECTNESS_NAME,
    PAIRS_NAME,
    PICTURE_BYTES,
    PICTURES_NAME,
    StoreHeader,
    check_same_predictions,
    file_size,
    make_record,
    read_index,
)
from logn.logits.proposals import ClassBoxes, Proposals


class PredictionWriter:
    """Appends images to one part of a prediction store; a part that is there already is continued.

    The rows of an image are written and flushed before its index record, so what the index names is complete.
    The part is locked while the writer is open: a second writer is refused.

    Args:
        path: Folder of the store; it is made where there is none.
        header: What holds for all images. A part that is there must have the same.
        part: Number of the part: the rank of the process under torchrun, else 0.

    Example:
        >>> import tempfile
        >>> header = StoreHeader(num_columns=3, background=-1, activation="softmax")
        >>> with PredictionWriter(tempfile.mkdtemp(), header) as writer:
        ...     writer.append(17, Proposals(np.zeros((2, 4)), np.zeros((2, 3)), height=10, width=20))
        ...     17 in writer.image_ids
        True
    """

    def __init__(self, path: str | os.PathLike[str], header: StoreHeader, *, part: int = 0) -> None:
        self.header = header
        self._has_warned = False
        self._folder = Path(path) / f"part-{part:05d}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self._folder)
        try:
            self._open_files()
        except BaseException:
            self._lock.close()
            raise

    def _open_files(self) -> None:
        if (self._folder / HEADER_NAME).exists():
            check_same_predictions(StoreHeader.read(self._folder), self.header, self._folder)
        else:
            self.header.write(self._folder)
        records = read_index(self._folder, self.header)
        self._next_row = int(records["rows"].sum(dtype=np.int64))
        self._next_pair = int(records["pairs"].sum(dtype=np.int64)) if self.header.pair_files else 0
        self._done = set(records["image_id"].tolist())
        sizes = {name: self._next_row * row_bytes for name, row_bytes in self.header.row_files.items()}
        sizes |= {name: self._next_pair * row_bytes for name, row_bytes in self.header.pair_files.items()}
        self._files = {name: self._open(name, size) for name, size in sizes.items()}
        self._pictures = self._open(PICTURES_NAME, PICTURE_BYTES * len(records))
        # A part that was begun without digests: they are unknown.
        self._pictures.write(bytes(PICTURE_BYTES * len(records) - file_size(self._folder / PICTURES_NAME)))
        self._index = self._open(INDEX_NAME, len(records) * self.header.record.itemsize)

    def _open(self, name: str, size: int) -> BinaryIO:
        """Open a file for appending after its first `size` bytes; what a killed run left behind them goes."""
        path = self._folder / name
        if file_size(path) > size:
            os.truncate(path, size)
        return path.open("ab")

    @property
    def image_ids(self) -> frozenset[int]:
        """The images that this part holds already."""
        return frozenset(self._done)

    def append(self, image_id: int, proposals: Proposals, picture: int = 0) -> None:
        """Write the proposals of one image; infinite logits become the largest finite number of the dtype.

        `picture` is a digest of its file, by which a later run notices another picture of that name; 0 for none.
        """
        _check_kinds(image_id, proposals)
        logits = self._checked_logits(image_id, proposals)
        objectness = self._checked_objectness(image_id, proposals)
        boxes, class_boxes = self._checked_boxes(image_id, proposals, logits)
        if int(image_id) in self._done:
            raise InputError(f"Expected each image once, but `{self._folder}` has image {image_id} already.")
        content = {LOGITS_NAME: logits, BOXES_NAME: boxes, OBJECTNESS_NAME: objectness}
        if class_boxes is not None:
            content |= {PAIRS_NAME: class_boxes.pairs, CLASS_BOXES_NAME: class_boxes.boxes}
        for name, file in self._files.items():
            rows = content[name]
            file.write(b"" if rows is None else rows.tobytes())
            file.flush()
        self._pictures.write(picture.to_bytes(PICTURE_BYTES, "little"))
        self._pictures.flush()
        size = (proposals.height, proposals.width)
        place = (int(image_id), self._next_row, size)
        self._index.write(make_record(*place, logits, boxes, objectness, class_boxes, self._next_pair))
        self._index.flush()
        self._next_row += len(logits)
        self._next_pair += 0 if class_boxes is None else len(class_boxes.pairs)
        self._done.add(int(image_id))

    def _checked_logits(self, image_id: int, proposals: Proposals) -> npt.NDArray[Any]:
        if proposals.num_columns != self.header.num_columns:
            raise InputError(
                f"Expected the logits of image {image_id} to have {self.header.num_columns} columns, "
                f"but got {proposals.num_columns}."
            )
        return self._as_stored(f"the logits of image {image_id}", proposals.logits)

    def _checked_objectness(self, image_id: int, proposals: Proposals) -> npt.NDArray[Any] | None:
        if (proposals.objectness is not None) != self.header.objectness:
            expected, got = ("an", "none") if self.header.objectness else ("no", "one")
            raise InputError(
                f"Expected image {image_id} to have {expected} objectness, as the store says, but got {got}."
            )
        if proposals.objectness is None:
            return None
        return self._as_stored(f"the objectness of image {image_id}", proposals.objectness)

    def _as_stored(self, what: str, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if np.isnan(numbers).any():
            raise InputError(f"Expected {what} to be numbers, but got NaN.")
        limit = float(np.finfo(self.header.dtype).max)
        rows: npt.NDArray[Any] = np.clip(numbers, -limit, limit).astype(self.header.dtype)
        return rows

    def _checked_boxes(
        self, image_id: int, proposals: Proposals, logits: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.float32], ClassBoxes | None]:
        """The boxes as they are stored: one row each, and those of candidates where only these are kept."""
        expected = (self.header.num_classes, 4) if self.header.class_boxes else (4,)
        kept = self.header.kept_class_boxes
        if proposals.class_boxes is not None:
            raise InputError(
                f"Expected image {image_id} with all its boxes, but it comes from a store that keeps those of some "
                "pairs of proposal and class alone; run the model again."
            )
        if proposals.boxes.shape[1:] != expected:
            raise InputError(
                f"Expected the boxes of image {image_id} to have shape (N, {', '.join(map(str, expected))}), "
                f"but got {proposals.boxes.shape}."
            )
        if not np.isfinite(proposals.boxes).all():
            raise InputError(f"Expected the boxes of image {image_id} to be finite, but some are not.")
        turned = (proposals.boxes[..., 2:] < proposals.boxes[..., :2]).any(axis=-1)
        # A few can be the model's own doing; they are dropped when decoded.
        if turned.sum() > turned.size / 2 and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"Boxes are corners x1, y1, x2, y2, but most of image {image_id} have x2 < x1 or y2 < y1: are these "
                "widths and heights?",
                LogNWarning,
                stacklevel=3,
            )
        if kept is not None:
            proposals = candidate_boxes(proposals, self.header, logits)
        return proposals.boxes.astype(np.float32, copy=False), proposals.class_boxes

    def close(self) -> None:
        """Bring everything to the disk and let go of the part."""
        for file in (*self._files.values(), self._pictures, self._index):
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
                file.close()
        self._lock.close()

    def __enter__(self) -> PredictionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lock(folder: Path) -> BinaryIO:
    """Hold the part for this process; the system lets go of it however the process ends."""
    file = (folder / ".lock").open("ab")
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise InputError(f"Expected `{folder}` to have one writer, but another process is writing to it.") from error
    return file


def _check_kinds(image_id: object, proposals: object) -> None:
    if not isinstance(image_id, int | np.integer) or not isinstance(proposals, Proposals):
        kinds = f"{type(image_id).__name__} and {type(proposals).__name__}"
        raise InputError(f"Expected an image id (a whole number) and its Proposals, but got {kinds}.")
