"""The bytes of a prediction store: its header, its index records, and how a part of it is read.

`docs/predictions-store.md` specifies the format.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.files import write_text
from logn.logits.arrays import check_background, foreground_columns
from logn.logits.proposals import PAIR_DTYPE, ClassBoxes, Postprocessing
from logn.strict_json import parse_json

FILE_FORMAT = "logn.predictions"
FILE_SCHEMA = 3
# Schema 1 had no objectness, no columns of classes and no post-processing, schema 2 no boxes of candidates alone; what
# they have means the same.
READABLE_SCHEMAS = (1, 2, 3)
HEADER_NAME, LOGITS_NAME, BOXES_NAME, INDEX_NAME = "header.json", "logits.bin", "boxes.bin", "index.bin"
OBJECTNESS_NAME = "objectness.bin"
# Of each image, in the order of the index, a digest of its picture (uint32; 0 where unknown): only for going on.
PICTURES_NAME, PICTURE_BYTES = "pictures.bin", 4
# Only with `kept_class_boxes`: which pairs of proposal and class have a box of their own, and these.
PAIRS_NAME, CLASS_BOXES_NAME = "pairs.bin", "class_boxes.bin"

# One record per image. It is written after the rows it speaks of, so a record that is there vouches for them.
_FIELDS = [
    ("image_id", "<i8"),
    ("first_row", "<i8"),
    ("rows", "<u4"),
    ("height", "<u4"),
    ("width", "<u4"),
    ("logits_crc", "<u4"),
    ("boxes_crc", "<u4"),
]
_PAIR_FIELDS = [("first_pair", "<i8"), ("pairs", "<u4")]
_CHECKSUM = [("record_crc", "<u4")]  # of the bytes before it
RECORD = np.dtype([*_FIELDS, *_CHECKSUM])
PAIR_RECORD = np.dtype([*_FIELDS, *_PAIR_FIELDS, *_CHECKSUM])


@dataclass(frozen=True)
class StoreHeader:
    """What holds for all images of a prediction store.

    Args:
        num_columns: Columns of the logits, the background included.
        background: Where the background column is: None, 0 or -1.
        activation: What follows the logits: "softmax" or "sigmoid".
        class_boxes: Whether each foreground class has its own box per proposal.
        dtype: "float16" or "float32", of the logits.
        class_names: Names of the foreground classes, in order.
        category_ids: Their ids in the annotation file, in order.
        num_images: How many images the finished store will have, where known.
        metadata: Anything else JSON can hold: the model, the data.
        objectness: Whether each proposal has an objectness, whose sigmoid multiplies the scores of its classes.
        class_columns: The column of the logits of each class, where that is not every column but the background, in
            order: a model may know more classes than the labels, or count them in another order. None where it is.
        postprocessing: How the framework of the model makes detections of these proposals; None where unknown.
        kept_class_boxes: With `class_boxes`, how many boxes are kept of each proposal, of each class and so on
            (`logn.evaluate.store.box_candidates`); None for all.

    Example:
        >>> StoreHeader(num_columns=4, background=0).num_classes
        3
    """

    num_columns: int
    background: int | None = None
    activation: str = "softmax"
    class_boxes: bool = False
    dtype: str = "float16"
    class_names: tuple[str, ...] | None = None
    category_ids: tuple[int, ...] | None = None
    num_images: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    objectness: bool = False
    class_columns: tuple[int, ...] | None = None
    postprocessing: Postprocessing | None = None
    kept_class_boxes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "background", check_background(self.background))
        if self.activation not in ("softmax", "sigmoid"):
            raise InputError(f'Expected `activation` to be "softmax" or "sigmoid", but got {self.activation!r}.')
        if self.dtype not in ("float16", "float32"):
            raise InputError(f'Expected `dtype` to be "float16" or "float32", but got {self.dtype!r}.')
        if not isinstance(self.num_columns, int) or self.num_columns - (self.background is not None) < 1:
            raise InputError(f"Expected `num_columns` to leave a foreground class, but got {self.num_columns!r}.")
        if self.num_images is not None and (not isinstance(self.num_images, int) or self.num_images < 0):
            raise InputError(f"Expected `num_images` to be a number of images or None, but got {self.num_images!r}.")
        if not isinstance(self.metadata, Mapping):
            raise InputError(f"Expected `metadata` to be a mapping, but got {self.metadata!r}.")
        if self.postprocessing is not None and not isinstance(self.postprocessing, Postprocessing):
            raise InputError(f"Expected `postprocessing` to be a Postprocessing, but got {self.postprocessing!r}.")
        self._check_kept_boxes()
        self._take_columns()
        self._take_entries("class_names", "name", str)
        self._take_entries("category_ids", "whole number", index)

    def _check_kept_boxes(self) -> None:
        kept = self.kept_class_boxes
        if kept is not None and (not isinstance(kept, int) or kept < 1):
            raise InputError(f"Expected `kept_class_boxes` to be at least 1, or None for all, but got {kept!r}.")
        if kept is not None and not self.class_boxes:
            raise InputError(
                f"Expected `kept_class_boxes` only where each class has a box of its own, but got {kept} where all "
                "classes of a proposal share one."
            )

    def _take_entries(self, name: str, what: str, convert: Callable[[Any], object]) -> None:
        """Make a tuple of a list, an array or a tensor, that can be written as JSON and compared with what was."""
        values = getattr(self, name)
        if values is None:
            return
        try:
            entries = tuple(convert(value) for value in values)
        except TypeError:
            raise InputError(f"Expected `{name}` to list a {what} for each class, but got {_brief(values)}.") from None
        if len(entries) != self.num_classes:
            raise InputError(
                f"Expected `{name}` to have one entry for each of the {self.num_classes} "
                f"foreground classes, but got {len(entries)}."
            )
        object.__setattr__(self, name, entries)

    def _take_columns(self) -> None:
        """Check that each class has a column of its own, which is not the background; the plain order becomes None."""
        if self.class_columns is None:
            return
        plain = range(self.num_columns)[foreground_columns(self.num_columns, self.background)]
        columns = tuple(map(index, self.class_columns))
        if not columns or len(set(columns)) < len(columns) or not set(columns) <= set(plain):
            raise InputError(
                f"Expected `class_columns` to name a foreground column of the {self.num_columns} for each class, each "
                f"once, but got {_brief(columns)}."
            )
        object.__setattr__(self, "class_columns", None if columns == tuple(plain) else columns)

    @property
    def num_classes(self) -> int:
        """How many foreground classes there are."""
        if self.class_columns is not None:
            return len(self.class_columns)
        return self.num_columns - (self.background is not None)

    @property
    def columns(self) -> npt.NDArray[np.intp]:
        """The column of the logits of each foreground class."""
        if self.class_columns is not None:
            return np.array(self.class_columns, np.intp)
        return np.arange(self.num_columns)[foreground_columns(self.num_columns, self.background)]

    @property
    def logits_row_bytes(self) -> int:
        """Bytes of the logits of one proposal."""
        return self.num_columns * np.dtype(self.dtype).itemsize

    @property
    def boxes_row_bytes(self) -> int:
        """Bytes of the boxes of one proposal; of those of candidates alone its own one."""
        return 16 * (self.num_classes if self.class_boxes and self.kept_class_boxes is None else 1)

    @property
    def objectness_row_bytes(self) -> int:
        """Bytes of the objectness of one proposal."""
        return np.dtype(self.dtype).itemsize if self.objectness else 0

    @property
    def row_files(self) -> dict[str, int]:
        """The files that have a row for each proposal, and the bytes of a row."""
        files = {LOGITS_NAME: self.logits_row_bytes, BOXES_NAME: self.boxes_row_bytes}
        return files | ({OBJECTNESS_NAME: self.objectness_row_bytes} if self.objectness else {})

    @property
    def pair_files(self) -> dict[str, int]:
        """The files that have a row for each pair of proposal and class whose box is kept, and the bytes of a row."""
        if self.kept_class_boxes is None:
            return {}
        return {PAIRS_NAME: PAIR_DTYPE.itemsize, CLASS_BOXES_NAME: 16}

    @property
    def record(self) -> np.dtype[Any]:
        """The record of an image in the index."""
        return RECORD if self.kept_class_boxes is None else PAIR_RECORD

    def write(self, folder: Path) -> None:
        """Write the header of the part in `folder`, in one atomic step."""
        content = {"format": FILE_FORMAT, "schema": FILE_SCHEMA, **asdict(self)}
        write_text(folder / HEADER_NAME, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> StoreHeader:
        """Read the header of the part in `folder`; whatever is wrong with it is said in one sentence."""
        path = folder / HEADER_NAME
        try:
            content = parse_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"Expected `{path}` to be the header of a store, but got: {error}.") from error
        if not isinstance(content, dict) or content.pop("format", None) != FILE_FORMAT:
            raise InputError(f"Expected `{path}` to say format {FILE_FORMAT!r}, but it does not.")
        schema = content.pop("schema", None)
        if schema not in READABLE_SCHEMAS:
            raise InputError(f"Expected `{path}` to have schema {FILE_SCHEMA}, but it has {schema!r}; update LogN.")
        try:
            if content.get("postprocessing") is not None:
                content["postprocessing"] = Postprocessing(**content["postprocessing"])
            return cls(**content)
        except (TypeError, InputError) as error:
            reason = str(error).rstrip(".")
            raise InputError(f"Expected `{path}` to hold a valid header, but it does not: {reason}.") from error


def check_same_predictions(first: StoreHeader, second: StoreHeader, path: Path) -> None:
    """Refuse a part in `path` whose header differs from the header of the parts before it."""
    for name, value in asdict(first).items():
        other = asdict(second)[name]
        if name not in ("num_images", "metadata") and other != value:
            raise InputError(f"Expected `{path}` to have {name} {_brief(value)}, but it has {_brief(other)}.")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "…"


def make_record(
    image_id: int,
    first_row: int,
    size: tuple[int, int],
    logits: npt.NDArray[Any],
    boxes: npt.NDArray[Any],
    objectness: npt.NDArray[Any] | None = None,
    class_boxes: ClassBoxes | None = None,
    first_pair: int = 0,
) -> bytes:
    """Make the index record of one image from the rows as they were written."""
    record = np.zeros((), RECORD if class_boxes is None else PAIR_RECORD)
    record["image_id"], record["first_row"], record["rows"] = image_id, first_row, len(logits)
    record["height"], record["width"] = size
    record["logits_crc"] = checksum(logits, objectness)
    record["boxes_crc"] = boxes_checksum(boxes, class_boxes)
    if class_boxes is not None:
        record["first_pair"], record["pairs"] = first_pair, len(class_boxes.pairs)
    record["record_crc"] = zlib.crc32(record.tobytes()[:-4])
    return record.tobytes()


def checksum(*arrays: npt.NDArray[Any] | None) -> int:
    """CRC-32 of the bytes of arrays, one after the other; None has none.

    Example:
        >>> checksum(np.zeros((0, 3)), None)
        0
    """
    total = 0
    for rows in arrays:
        if rows is not None and rows.size:
            total = zlib.crc32(np.ascontiguousarray(rows).data.cast("B"), total)
    return total


def boxes_checksum(boxes: npt.NDArray[Any], class_boxes: ClassBoxes | None) -> int:
    """CRC-32 of the boxes of an image, then of the pairs and boxes of its candidates where there are any.

    Example:
        >>> boxes_checksum(np.zeros((0, 4)), None)
        0
    """
    return checksum(boxes) if class_boxes is None else checksum(boxes, class_boxes.pairs, class_boxes.boxes)


def read_index(folder: Path, header: StoreHeader) -> npt.NDArray[Any]:
    """Read the records of the images that are complete, in the order of writing.

    A record that is cut off, and records whose rows are not all there, are left out: a kill or a partial copy
    leaves such a tail. A whole record that is damaged is refused.
    """
    path = folder / INDEX_NAME
    content = path.read_bytes() if path.exists() else b""
    kind = header.record
    records = np.frombuffer(content[: len(content) // kind.itemsize * kind.itemsize], kind)
    for number, record in enumerate(records):
        if zlib.crc32(record.tobytes()[:-4]) != record["record_crc"]:
            raise InputError(
                f"Expected `{path}` to be whole, but record {number + 1} of {len(records)} is damaged; "
                f"remove the folder `{folder}` and predict its images again."
            )
    complete = _complete(folder, records, "rows", "first_row", header.row_files)
    if header.pair_files:
        complete = min(complete, _complete(folder, records, "pairs", "first_pair", header.pair_files))
    return records[:complete]


def _complete(folder: Path, records: npt.NDArray[Any], number: str, first: str, files: Mapping[str, int]) -> int:
    """How many images have all their rows in `files`, given the bytes of a row in each."""
    ends = np.cumsum(records[number], dtype=np.int64)
    if not np.array_equal(ends - records[number], records[first]):
        raise InputError(f"Expected `{folder / INDEX_NAME}` to list {number} that follow each other, but it does not.")
    present = min(file_size(folder / name) // row_bytes for name, row_bytes in files.items())
    return int(np.searchsorted(ends, present, side="right"))


def read_pictures(folder: Path, header: StoreHeader) -> dict[int, int]:
    """The digest of the picture of each image of the part in `folder`, by image id; without those that are unknown."""
    path = folder / PICTURES_NAME
    content = path.read_bytes() if path.exists() else b""
    digests = np.frombuffer(content[: len(content) // 4 * 4], "<u4").tolist()
    ids = read_index(folder, header)["image_id"].tolist()
    return {image_id: digest for image_id, digest in zip(ids, digests, strict=False) if digest}


def file_size(path: Path) -> int:
    """Size in bytes; 0 where there is no file.

    Example:
        >>> file_size(Path("no such file"))
        0
    """
    return path.stat().st_size if path.exists() else 0
