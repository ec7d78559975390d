"""PredictionStore: the proposals of a data set on disk with all logits; PredictionWriter appends to it.

A store has one folder per writing process, `part-00000` and so on, with a header, an index and one file per array.
The rows of an image are written and flushed before its index record, so a kill at any moment loses no finished image.
`docs/reference/file-formats.md` specifies the bytes.
"""

from __future__ import annotations

import copy
import json
import mmap
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from operator import index
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from logn.base.files import write_text
from logn.base.strict_json import parse_json, take_checksum, with_checksum
from logn.errors import InputError, warn
from logn.models.proposals import Postprocessing, Proposals
from logn.statistics.head import Head

FILE_FORMAT = "logn.predictions"
FILE_SCHEMA = 6
Layout = tuple[np.dtype[Any], tuple[int, ...]]
HEADER_NAME, INDEX_NAME = "header.json", "index.bin"
# One record per image, written after the rows it describes. `picture` is a digest of the image file, 0 if unknown.
# `record_crc` covers the bytes before it.
_WORDS = ("rows", "height", "width", "picture", "rows_crc", "record_crc")
RECORD = np.dtype([("image_id", "<i8"), ("first_row", "<i8"), *((name, "<u4") for name in _WORDS)])


@dataclass(frozen=True)
class StoreHeader:
    """What holds for all images of a prediction store.

    Args:
        head: What the logits are: its number of columns and its activation are known.
        class_boxes: Whether each foreground class has its own box per proposal.
        dtype: "float16" or "float32", of the logits.
        category_ids: Ids of the foreground classes in the annotation file, in order.
        num_images: Images of the finished store, if known.
        metadata: Anything else JSON can hold: the model, the data.
        postprocessing: How the model's framework makes detections of these proposals; None if unknown.
        boxes_per_proposal: With `class_boxes`, keep the boxes of this many top-scoring classes of each proposal; a
            class without a box uses that of the top class. None keeps all.

    Example:
        >>> StoreHeader(Head(4, background=0, activation="softmax")).num_classes
        3
    """

    head: Head
    class_boxes: bool = False
    dtype: str = "float16"
    category_ids: tuple[int, ...] | None = None
    num_images: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    postprocessing: Postprocessing | None = None
    boxes_per_proposal: int | None = None

    def __post_init__(self) -> None:
        self._check_values()
        self._take_entries("category_ids", "whole number", index)
        kept = self.boxes_per_proposal
        if kept is not None and (not isinstance(kept, int) or kept < 1 or not self.class_boxes):
            raise InputError(f"Expected `boxes_per_proposal` of 1 or more, with `class_boxes` only, but got {kept!r}.")
        if kept is not None and kept >= self.num_classes:
            object.__setattr__(self, "boxes_per_proposal", None)

    def _check_values(self) -> None:
        if not isinstance(self.head, Head) or self.head.activation is None or self.head.num_classes < 1:
            raise InputError(
                f"Expected `head` to say its `activation`, `num_columns` and a class, but got {self.head!r}."
            )
        if self.dtype not in ("float16", "float32"):
            raise InputError(f'Expected `dtype` to be "float16" or "float32", but got {self.dtype!r}.')
        if self.num_images is not None and (not isinstance(self.num_images, int) or self.num_images < 0):
            raise InputError(f"Expected `num_images` to be a number of images or None, but got {self.num_images!r}.")
        if not isinstance(self.metadata, Mapping):
            raise InputError(f"Expected `metadata` to be a mapping, but got {self.metadata!r}.")
        if self.postprocessing is not None and not isinstance(self.postprocessing, Postprocessing):
            raise InputError(f"Expected `postprocessing` to be a Postprocessing, but got {self.postprocessing!r}.")

    def _take_entries(self, name: str, what: str, convert: Callable[[Any], object]) -> None:
        """Turn a list, array or tensor into a tuple that JSON can hold."""
        values = getattr(self, name)
        if values is None:
            return
        try:
            entries = tuple(convert(value) for value in values)
        except TypeError:
            raise InputError(f"Expected `{name}` to list a {what} for each class, but got {_brief(values)}.") from None
        if len(entries) != self.num_classes:
            raise InputError(
                f"Expected `{name}` to have one entry for each of the {self.num_classes} foreground classes, but got "
                f"{len(entries)}."
            )
        object.__setattr__(self, name, entries)

    @property
    def num_classes(self) -> int:
        """Number of foreground classes."""
        return self.head.num_classes

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Their names, in order."""
        return self.head.class_names

    @property
    def arrays(self) -> dict[str, Layout]:
        """Each array with a row per proposal: its dtype and the shape of a row."""
        logits = np.dtype(np.dtype(self.dtype).newbyteorder("<").str)
        kept = self.boxes_per_proposal
        box = (kept or self.num_classes, 4) if self.class_boxes else (4,)
        arrays: dict[str, Layout] = {"logits": (logits, (self.head.width,)), "boxes": (np.dtype("<f4"), box)}
        if self.head.objectness:
            arrays["objectness"] = (logits, ())
        if kept is not None:
            arrays["box_classes"] = (np.dtype("<u2"), (kept,))
        return arrays

    @property
    def row_bytes(self) -> dict[str, int]:
        """Bytes per proposal of each array."""
        return {name: dtype.itemsize * int(np.prod(shape)) for name, (dtype, shape) in self.arrays.items()}

    def write(self, folder: Path) -> None:
        """Write the header of the part in `folder`, atomically."""
        content = with_checksum({"format": FILE_FORMAT, "schema": FILE_SCHEMA, **asdict(self)})
        write_text(folder / HEADER_NAME, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> StoreHeader:
        """Read the header of the part in `folder`."""
        path = folder / HEADER_NAME
        try:
            content = parse_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"`{path}` is not the header of a prediction store: {error}.") from error
        is_intact = isinstance(content, dict) and take_checksum(content)
        if not isinstance(content, dict) or content.pop("format", None) != FILE_FORMAT:
            raise InputError(f"`{path}` is not the header of a prediction store: its format is not {FILE_FORMAT!r}.")
        schema = content.pop("schema", None)
        if schema != FILE_SCHEMA:
            raise InputError(f"`{path}` has schema {schema}, but this version reads {FILE_SCHEMA}; predict again.")
        try:
            content["head"] = Head.of_values(content.get("head"))
            if content.get("postprocessing") is not None:
                content["postprocessing"] = Postprocessing(**content["postprocessing"])
            header = cls(**content)
        except (TypeError, InputError) as error:
            reason = str(error).rstrip(".")
            raise InputError(f"`{path}` is not the header of a prediction store: {reason}.") from error
        if not is_intact:
            raise _damage(f"`{path}`", folder)
        return header


def _check_same(first: StoreHeader, second: StoreHeader, path: Path) -> None:
    """Refuse a part in `path` whose header, the second, differs from the first."""
    known, others = (asdict(header.head) | asdict(header) for header in (first, second))
    for name, value in known.items():
        other = others[name]
        if name not in ("num_images", "metadata", "head", "source") and other != value:
            raise InputError(
                f"`{path}` has {name} {_brief(other)} where others have {_brief(value)}; use a new folder."
            )
    ours, theirs = first.head.source, second.head.source
    if ours and theirs and ours != theirs:
        raise InputError(f"`{path}` was predicted with other weights than the other parts; use a new folder.")


def _damage(what: str, folder: Path) -> InputError:
    return InputError(f"{what} is damaged; remove the folder `{folder}` and predict its images again.")


def _brief(value: Any) -> str:
    return text if len(text := repr(value)) < 80 else text[:77] + "…"


def _checksum(arrays: Mapping[str, npt.NDArray[Any]], header: StoreHeader) -> int:
    """CRC-32 of the rows of an image, array after array."""
    total = 0
    for name in header.arrays:
        if arrays[name].size:
            total = zlib.crc32(np.ascontiguousarray(arrays[name]).data.cast("B"), total)
    return total


def _read_index(folder: Path, header: StoreHeader) -> npt.NDArray[Any]:
    """Records of the complete images, in the order of writing.

    A record that is cut off, and records whose rows are not all there, are left out: a kill or a partial copy leaves
    such a tail. A whole record that is damaged is refused.
    """
    path = folder / INDEX_NAME
    content = path.read_bytes() if path.exists() else b""
    records = np.frombuffer(content[: len(content) // RECORD.itemsize * RECORD.itemsize], RECORD)
    for number, record in enumerate(records):
        if zlib.crc32(record.tobytes()[:-4]) != record["record_crc"]:
            raise _damage(f"In `{path}`, record {number + 1} of {len(records)}", folder)
    ends = np.cumsum(records["rows"], dtype=np.int64)
    if not np.array_equal(ends - records["rows"], records["first_row"]):
        raise InputError(f"In `{path}`, the rows do not follow each other; remove `{folder}` and predict again.")
    present = min(_file_size(folder / f"{name}.bin") // size for name, size in header.row_bytes.items())
    return records[: int(np.searchsorted(ends, present, side="right"))]


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class PredictionStore:
    """The proposals of many images, one read-only view per image; images are sorted by id.

    A store whose writing was cut short opens with the images that are complete. Parts of several processes are read
    as one; an image that two parts hold with the same content counts once.

    Args:
        path: Folder of the store, as `logn predict` or `PredictionWriter` made it.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with PredictionWriter(folder, StoreHeader(Head(3, background=-1, activation="softmax"))) as writer:
        ...     writer.append(17, Proposals(np.zeros((2, 4)), np.ones((2, 3)), height=10, width=20))
        >>> store = PredictionStore(folder)
        >>> len(store), store.image_ids.tolist(), store[0].logits.dtype
        (1, [17], dtype('float16'))
        >>> store.missing([17, 18]).tolist()
        [18]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        # A part without header and index: its writer was stopped before the first byte.
        parts = sorted(self.path.glob("part-*"))
        folders = [part for part in parts if (part / HEADER_NAME).exists() or _file_size(part / INDEX_NAME)]
        if not folders:
            raise InputError(f"`{path}` is not a prediction store: it holds no `part-00000`. `logn predict` makes one.")
        self._folders = tuple(folders)
        self._parts = [_Part(folder) for folder in folders]
        self.header = self._parts[0].header
        for part, folder in zip(self._parts, folders, strict=True):
            _check_same(self.header, part.header, folder)
        part_of = np.repeat(np.arange(len(self._parts)), [len(part.records) for part in self._parts])
        records = np.concatenate([part.records for part in self._parts])
        order = _sorted_without_repeats(records, self.path)
        self._part_of, self._records = part_of[order], records[order]
        self._is_verified = np.zeros(len(order), bool)

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which maps the same files."""
        return {name: value for name, value in self.__dict__.items() if name != "_parts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._parts = [_Part(folder) for folder in self._folders]

    def __len__(self) -> int:
        return len(self._records)

    @property
    def image_ids(self) -> npt.NDArray[np.int64]:
        """The id of each image, ascending."""
        return self._records["image_id"].astype(np.int64)

    @property
    def pictures(self) -> dict[int, int]:
        """Digest of the image file of each image, by image id, where known."""
        known = self._records[self._records["picture"] > 0]
        return dict(zip(known["image_id"].tolist(), known["picture"].tolist(), strict=True))

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """`(I, 2)` height and width of each image."""
        return np.stack([self._records[name] for name in ("height", "width")], axis=1).astype(np.int64)

    @property
    def num_columns(self) -> int:
        """Number of columns of the logits."""
        return self.header.head.width

    @property
    def num_classes(self) -> int:
        """Number of foreground classes."""
        return self.header.num_classes

    @property
    def num_proposals(self) -> int:
        """Number of proposals in all images."""
        return int(self._records["rows"].sum(dtype=np.int64))

    @property
    def is_complete(self) -> bool:
        """Whether all `num_images` of the header are here; True if the header does not say."""
        return self.header.num_images is None or len(self) >= self.header.num_images

    def missing(self, image_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Those of `image_ids` that are not here, ascending."""
        return np.setdiff1d(np.asarray(image_ids, np.int64), self.image_ids)

    def __getitem__(self, index: int) -> Proposals:
        """The proposals of one image, as views on the files; rows that changed since writing are refused."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"Expected `index` to be below {len(self)}, but got {index}.")
        record, part = self._records[index], self._parts[self._part_of[index]]
        rows = slice(int(record["first_row"]), int(record["first_row"]) + int(record["rows"]))
        arrays = {name: array[rows] for name, array in part.arrays.items()}
        if not self._is_verified[index]:
            if _checksum(arrays, self.header) != record["rows_crc"]:
                raise _damage(f"In `{self.path}`, image {record['image_id']}", self._folders[self._part_of[index]])
            self._is_verified[index] = True
        return Proposals(height=int(record["height"]), width=int(record["width"]), **arrays)

    def __iter__(self) -> Iterator[Proposals]:
        """All images in order, in bounded memory: pages that were read are released."""
        for position in range(len(self)):
            yield self[position]
            self.release(position, position + 1)

    def release(self, start: int, stop: int) -> None:
        """Give the memory of images `start` to `stop - 1` back to the system; views on them stay valid."""
        for position in range(start, min(stop, len(self))):
            record, part = self._records[position], self._parts[self._part_of[position]]
            for name, size in self.header.row_bytes.items():
                part.maps[name].release(int(record["first_row"]) * size, int(record["rows"]) * size)

    def part(self, rows: npt.NDArray[np.intp]) -> PredictionStore:
        """A store of some of the images, by position, in that order."""
        chosen = copy.copy(self)
        chosen._part_of, chosen._records = self._part_of[rows], self._records[rows]
        chosen._is_verified = self._is_verified[rows]
        return chosen

    def verify(self) -> None:
        """Read every row and refuse a store whose bytes changed since they were written."""
        self._is_verified[:] = False
        for _ in self:  # reading an image verifies it
            pass


def is_store(source: Any) -> bool:
    """Whether `source` is a store or a path that is not a file of logits.

    Example:
        >>> is_store("predictions"), is_store([[0.5, 1.0]])
        (True, False)
    """
    if isinstance(source, str | os.PathLike):
        return not Path(source).is_file()
    return isinstance(source, PredictionStore)


# How far around a page that is read Linux maps others.
_MAPPED_AROUND = 64 * 1024


class _MappedFile:
    """A read-only map of a file; None for no rows."""

    def __init__(self, path: Path | None) -> None:
        self._map: mmap.mmap | None = None
        if path is not None:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def rows(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        count = int(np.prod(shape))
        return np.empty(shape, dtype) if self._map is None else np.frombuffer(self._map, dtype, count).reshape(shape)

    def release(self, start: int, length: int) -> None:
        if self._map is None or not length or not hasattr(mmap, "MADV_DONTNEED"):
            return
        # Pages around those that are read get mapped too: they may belong to images that another process decodes.
        first = max(start - _MAPPED_AROUND, 0) // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, first, start + length + _MAPPED_AROUND - first)


class _Part:
    """One folder of a store, mapped."""

    def __init__(self, folder: Path) -> None:
        self.header = StoreHeader.read(folder)
        self.records = _read_index(folder, self.header)
        rows = int(self.records["rows"].sum(dtype=np.int64))
        # A part whose first image was never finished may lack its files.
        self.maps = {name: _MappedFile(folder / f"{name}.bin" if rows else None) for name in self.header.arrays}
        layouts = self.header.arrays.items()
        self.arrays = {name: self.maps[name].rows(dtype, (rows, *shape)) for name, (dtype, shape) in layouts}


def _sorted_without_repeats(records: npt.NDArray[Any], path: Path) -> npt.NDArray[np.intp]:
    """Order of the records by image id; an exact repeat is left out, a differing one refused."""
    order = np.argsort(records["image_id"], kind="stable")
    ids = records["image_id"][order]
    repeat = np.flatnonzero(ids[1:] == ids[:-1]) + 1
    content = ["rows", "height", "width", "rows_crc"]
    for position in repeat:
        if records[order[position]][content] != records[order[position - 1]][content]:
            raise InputError(f"`{path}` holds image {ids[position]} twice, with different proposals; use a new folder.")
    return np.delete(order, repeat)


class PredictionWriter:
    """Appends images to one part of a prediction store; an existing part is continued.

    The part is locked while the writer is open: a second writer is refused.

    Args:
        path: Folder of the store; it is created if missing.
        header: What holds for all images. An existing part must have the same.
        part: Number of the part: the rank of the process under torchrun, else 0.

    Example:
        >>> import tempfile
        >>> header = StoreHeader(Head(3, background=-1, activation="softmax"))
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
            _check_same(self.header, StoreHeader.read(self._folder), self._folder)
        else:
            self.header.write(self._folder)
        records = _read_index(self._folder, self.header)
        self._next_row = int(records["rows"].sum(dtype=np.int64))
        self._done = set(records["image_id"].tolist())
        sizes = self.header.row_bytes
        self._files = {name: self._open(f"{name}.bin", self._next_row * size) for name, size in sizes.items()}
        self._index = self._open(INDEX_NAME, len(records) * RECORD.itemsize)

    def _open(self, name: str, size: int) -> BinaryIO:
        """Open a file for appending after its first `size` bytes; the rest is left over from a killed run."""
        path = self._folder / name
        if _file_size(path) > size:
            os.truncate(path, size)
        return path.open("ab")

    @property
    def image_ids(self) -> frozenset[int]:
        """The images that this part holds already."""
        return frozenset(self._done)

    def append(self, image_id: int, proposals: Proposals, picture: int = 0) -> None:
        """Write the proposals of one image; infinite logits become the largest finite number of the dtype.

        `picture` is a digest of the image file, by which a later run notices a replaced file; 0 for none.
        """
        kinds = f"{type(image_id).__name__} and {type(proposals).__name__}"
        if not (isinstance(image_id, int | np.integer) and kinds.endswith(" Proposals")):
            raise InputError(f"Expected an image id (a whole number) and its Proposals, but got {kinds}.")
        if int(image_id) in self._done:
            raise InputError(f"`{self._folder}` has image {image_id} already; append each image once.")
        arrays = self._arrays(image_id, proposals)
        for name, file in self._files.items():
            file.write(arrays[name].tobytes())
            file.flush()
        record = np.zeros((), RECORD)
        record["image_id"], record["first_row"], record["rows"] = image_id, self._next_row, len(arrays["logits"])
        record["height"], record["width"], record["picture"] = proposals.height, proposals.width, picture
        record["rows_crc"] = _checksum(arrays, self.header)
        record["record_crc"] = zlib.crc32(record.tobytes()[:-4])
        self._index.write(record.tobytes())
        self._index.flush()
        self._next_row += len(arrays["logits"])
        self._done.add(int(image_id))

    def _arrays(self, image_id: int, proposals: Proposals) -> dict[str, npt.NDArray[Any]]:
        """The rows of an image as they are stored."""
        header = self.header
        if proposals.num_columns != header.head.width:
            raise InputError(
                f"Expected the logits of image {image_id} to have {header.head.width} columns, but got "
                f"{proposals.num_columns}."
            )
        if (proposals.objectness is not None) != header.head.objectness:
            expected, got = ("an", "none") if header.head.objectness else ("no", "one")
            raise InputError(
                f"Expected image {image_id} to have {expected} objectness, as the store says, but got {got}."
            )
        self._check_boxes(image_id, proposals)
        logits = self._as_stored(f"the logits of image {image_id}", proposals.logits)
        arrays = {"logits": logits, "boxes": proposals.boxes.astype(np.float32, copy=False)}
        if proposals.objectness is not None:
            arrays["objectness"] = self._as_stored(f"the objectness of image {image_id}", proposals.objectness)
        if header.boxes_per_proposal is not None:
            scores = logits[:, header.head.foreground]
            top = np.argsort(-scores, axis=1, kind="stable")[:, : header.boxes_per_proposal]
            arrays["boxes"] = np.take_along_axis(arrays["boxes"], top[:, :, None], axis=1)
            arrays["box_classes"] = top.astype("<u2")
        return arrays

    def _as_stored(self, what: str, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if np.isnan(numbers).any():
            raise InputError(f"Expected {what} to be numbers, but got NaN.")
        limit = float(np.finfo(self.header.dtype).max)
        return np.asarray(np.clip(numbers, -limit, limit).astype(self.header.dtype))

    def _check_boxes(self, image_id: int, proposals: Proposals) -> None:
        expected = (self.header.num_classes, 4) if self.header.class_boxes else (4,)
        if proposals.boxes.shape[1:] != expected or proposals.box_classes is not None:
            raise InputError(
                f"Expected the boxes of image {image_id} to have shape (N, {', '.join(map(str, expected))}), "
                f"but got {proposals.boxes.shape}."
            )
        if not np.isfinite(proposals.boxes).all():
            raise InputError(f"Expected the boxes of image {image_id} to be finite, but some are not.")
        turned = (proposals.boxes[..., 2:] < proposals.boxes[..., :2]).any(axis=-1)
        # A few can come from the model; they are dropped when decoded.
        if turned.sum() > turned.size / 2 and not self._has_warned:
            self._has_warned = True
            warn(
                f"Boxes are corners x1, y1, x2, y2, but most of image {image_id} have x2 < x1 or y2 < y1: are these "
                "widths and heights?"
            )

    def close(self) -> None:
        """Flush everything to the disk and unlock the part."""
        for file in (*self._files.values(), self._index):
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
                file.close()
        self._lock.close()

    def __enter__(self) -> PredictionWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _lock(folder: Path) -> BinaryIO:
    """Hold the part for this process; the system releases it however the process ends."""
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
        raise InputError(f"Another process is writing to `{folder}`; wait for it, or use a new folder.") from error
    return file
