"""Predictions: the proposals of a data set on disk with all logits; PredictionWriter adds to them.

A folder holds `header.json` and shards, safetensors files of some images each. A shard gets its name when it is whole
and is never changed, so a kill at any moment loses only images that have none yet, and processes need no lock.
`docs/reference/file-formats.md` specifies the files.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from operator import index
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from logn.base.checks import OneOf, Whole, checked
from logn.base.files import atomic_path, write_text
from logn.errors import InputError, warn
from logn.models.proposals import Postprocessing, Proposals
from logn.statistics.head import Head

FILE_FORMAT: Literal["logn.predictions"] = "logn.predictions"
FILE_SCHEMA: Literal[7] = 7
HEADER_NAME = "header.json"
# A shard is written when it has so many images or bytes: what a kill loses, and what a writer keeps in memory.
SHARD_IMAGES, SHARD_BYTES = 32, 16_000_000


# Where the proposals of an image are, the file and the rows in it, and the size of the image.
_IMAGE = np.dtype([(name, np.int64) for name in ("id", "height", "width", "shard", "first", "rows")])


@dataclass(frozen=True)
@checked
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
        >>> StoreHeader(Head(4, background=0, activation="softmax")).arrays
        ('logits', 'boxes')
    """

    head: Head
    class_boxes: bool = False
    dtype: Annotated[str, OneOf("float16", "float32")] = "float16"
    category_ids: tuple[int, ...] | None = None
    num_images: Annotated[int, Whole(0)] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    postprocessing: Postprocessing | None = None
    boxes_per_proposal: Annotated[int, Whole(1)] | None = None

    def __post_init__(self) -> None:
        if self.head.activation is None or self.head.num_classes < 1:
            raise InputError(
                f"Expected `head` to say its `activation`, `num_columns` and a class, but got {self.head!r}."
            )
        if self.category_ids is not None:
            ids = tuple(map(index, self.category_ids))  # of a list or an array
            object.__setattr__(self, "category_ids", ids)
            if len(ids) != self.head.num_classes:
                raise InputError(
                    f"Expected `category_ids` to have one entry for each of the {self.head.num_classes} foreground "
                    f"classes, but got {len(ids)}."
                )
        if self.boxes_per_proposal is not None and not self.class_boxes:
            raise InputError("Expected `boxes_per_proposal` with `class_boxes` only.")
        if self.boxes_per_proposal is not None and self.boxes_per_proposal >= self.head.num_classes:
            object.__setattr__(self, "boxes_per_proposal", None)

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays of a shard with a row per proposal."""
        with_objectness = ("objectness",) if self.head.objectness else ()
        with_classes = ("box_classes",) if self.boxes_per_proposal is not None else ()
        return ("logits", "boxes", *with_objectness, *with_classes)

    @property
    def settings(self) -> dict[str, Any]:
        """What decides what the shards hold: all but the number of images and the notes."""
        own = {name: value for name, value in asdict(self).items() if name not in ("head", "num_images", "metadata")}
        return {**asdict(self.head), **own}

    @property
    def digest(self) -> str:
        """Digest of the settings."""
        return hashlib.sha256(msgspec.json.encode(self.settings)).hexdigest()[:16]

    def write(self, folder: Path) -> None:
        """Write the header of the predictions in `folder`, atomically."""
        content = msgspec.json.encode(_HeaderFile(FILE_FORMAT, FILE_SCHEMA, self))
        write_text(folder / HEADER_NAME, msgspec.json.format(content, indent=1).decode() + "\n")

    @classmethod
    def read(cls, folder: Path) -> StoreHeader:
        """Read the header of the predictions in `folder`."""
        path = folder / HEADER_NAME
        if not path.is_file():
            raise InputError(f"`{folder}` holds no predictions of a detector: it has no `{HEADER_NAME}`.")
        try:
            return msgspec.json.decode(path.read_bytes(), type=_HeaderFile).header
        except msgspec.DecodeError as error:
            raise InputError(f"`{path}` is not the header of predictions of this version: {error}.") from error

    def check_same(self, other: StoreHeader, path: Path) -> None:
        """Refuse to continue the predictions in `path`, whose header this is, under another one."""
        settings, others = (header.settings | {"images": header.metadata.get("images")} for header in (self, other))
        for name, value in settings.items():
            is_unknown = name in ("source", "images") and None in (value, others[name])
            if value != others[name] and not is_unknown:
                what = "weights" if name == "source" else name
                differing = f"{_brief(value)}, not {_brief(others[name])}"
                raise InputError(f"`{path}` was predicted with other {what} ({differing}); use a new folder.")


def _brief(value: Any) -> str:
    return text if len(text := repr(value)) < 80 else text[:77] + "…"


class _HeaderFile(msgspec.Struct):
    """`header.json`."""

    format: Literal["logn.predictions"]
    schema: Literal[7]
    header: StoreHeader


class Predictions:
    """The proposals of many images on disk, read image by image; images are sorted by id.

    Predictions whose writing was cut short open with the images that are there, and those of several processes are one.
    An image that two processes wrote with the same content counts once.

    Args:
        path: Folder that `logn predict` or `PredictionWriter` made.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with PredictionWriter(folder, StoreHeader(Head(3, background=-1, activation="softmax"))) as writer:
        ...     writer.append(17, Proposals(np.zeros((2, 4)), np.ones((2, 3)), height=10, width=20))
        >>> predictions = Predictions(folder)
        >>> len(predictions), predictions.image_ids.tolist(), predictions[0].logits.dtype
        (1, [17], dtype('float16'))
        >>> predictions.missing([17, 18]).tolist()
        [18]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.header = StoreHeader.read(self.path)
        self._shards = sorted(self.path.glob("*.safetensors"))
        digest = self.header.digest
        tables = [_read_table(shard, number, digest) for number, shard in enumerate(self._shards)]
        self._images = np.concatenate([np.empty(0, _IMAGE), *tables])
        self._images.sort(order=["id", "shard"])
        self._leave_out_repeats()

    def _leave_out_repeats(self) -> None:
        """Keep one of the images that two processes wrote with the same content; refuse other content."""
        repeats = np.flatnonzero(np.diff(self.image_ids) == 0) + 1
        for position in repeats.tolist():
            earlier, later = vars(self[position - 1]), vars(self[position])
            if not all(np.array_equal(earlier[name], later[name]) for name in earlier):
                raise InputError(
                    f"`{self.path}` holds image {self.image_ids[position]} twice, with different proposals; use a "
                    "new folder."
                )
        self._images = np.delete(self._images, repeats)

    def __len__(self) -> int:
        return len(self._images)

    @property
    def image_ids(self) -> npt.NDArray[np.int64]:
        """The id of each image, ascending."""
        return self._images["id"]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """`(I, 2)` height and width of each image."""
        return np.stack([self._images["height"], self._images["width"]], axis=1)

    @property
    def head(self) -> Head:
        """What the logits are."""
        return self.header.head

    @property
    def num_proposals(self) -> int:
        """Number of proposals in all images."""
        return int(self._images["rows"].sum())

    @property
    def is_complete(self) -> bool:
        """Whether all `num_images` of the header are here; True if the header does not say."""
        return self.header.num_images is None or len(self) >= self.header.num_images

    def missing(self, image_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Those of `image_ids` that are not here, ascending."""
        return np.setdiff1d(np.asarray(image_ids, np.int64), self.image_ids)

    def __getitem__(self, index: int) -> Proposals:
        """The proposals of one image."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"Expected `index` to be below {len(self)}, but got {index}.")
        _, height, width, shard, first, count = self._images[index].tolist()
        with safe_open(self._shards[shard], framework="numpy") as file:
            # safetensors has no slice without rows at the end of an array.
            arrays = {
                name: file.get_slice(name)[first : first + count] if count else file.get_tensor(name)[:0]
                for name in self.header.arrays
            }
        return Proposals(height=height, width=width, **arrays)

    def __iter__(self) -> Iterator[Proposals]:
        """All images in order."""
        return map(self.__getitem__, range(len(self)))

    def part(self, rows: npt.NDArray[np.intp]) -> Predictions:
        """Some of the images, by position, in that order."""
        chosen = copy.copy(self)
        chosen._images = self._images[rows]
        return chosen


def _read_table(path: Path, number: int, digest: str) -> npt.NDArray[Any]:
    """The images of a shard; a damaged shard and one of other predictions are refused."""
    try:
        with safe_open(path, framework="numpy") as file:
            ids, sizes, rows = (file.get_tensor(name) for name in ("image_ids", "sizes", "rows"))
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise InputError(f"`{path}` is damaged ({error}); delete it and predict again.") from error
    if metadata.get("header") != digest:
        raise InputError(f"`{path}` belongs to other predictions than the `{HEADER_NAME}` beside it; use a new folder.")
    images = np.empty(len(ids), _IMAGE)
    images["id"], images["height"], images["width"], images["rows"] = ids, sizes[:, 0], sizes[:, 1], rows
    images["shard"], images["first"] = number, np.cumsum(rows) - rows
    return images


def is_store(source: Any) -> bool:
    """Whether `source` is predictions of a detector, or a path that is not a file of logits.

    Example:
        >>> is_store("predictions"), is_store([[0.5, 1.0]])
        (True, False)
    """
    if isinstance(source, str | os.PathLike):
        return not Path(source).is_file()
    return isinstance(source, Predictions)


class PredictionWriter:
    """Adds images to the predictions in a folder, which may hold some.

    Args:
        path: The folder; it is created if missing.
        header: What holds for all images. Predictions that are there must have the same.

    Example:
        >>> import tempfile
        >>> header = StoreHeader(Head(3, background=-1, activation="softmax"))
        >>> with PredictionWriter(tempfile.mkdtemp(), header) as writer:
        ...     writer.append(17, Proposals(np.zeros((2, 4)), np.zeros((2, 3)), height=10, width=20))
        ...     17 in writer.image_ids
        True
    """

    def __init__(self, path: str | os.PathLike[str], header: StoreHeader) -> None:
        self._folder = Path(path)
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / HEADER_NAME).exists():
            header.write(self._folder)
        #: As it is stored: another process may have been first.
        self.header = StoreHeader.read(self._folder)
        self.header.check_same(header, self._folder)
        self._done = set(Predictions(self._folder).image_ids.tolist())
        self._waiting: dict[int, dict[str, npt.NDArray[Any]]] = {}
        self._waiting_bytes = 0
        self._has_warned = False

    @property
    def image_ids(self) -> frozenset[int]:
        """The images that are there already."""
        return frozenset(self._done)

    def append(self, image_id: int, proposals: Proposals) -> None:
        """Add the proposals of one image; infinite logits become the largest finite number of the dtype."""
        kinds = f"{type(image_id).__name__} and {type(proposals).__name__}"
        if not (isinstance(image_id, int | np.integer) and isinstance(proposals, Proposals)):
            raise InputError(f"Expected an image id (a whole number) and its Proposals, but got {kinds}.")
        if int(image_id) in self._done:
            raise InputError(f"`{self._folder}` has image {image_id} already; append each image once.")
        arrays = self._arrays(image_id, proposals)
        arrays["sizes"] = np.array([[proposals.height, proposals.width]], np.int64)
        arrays["rows"] = np.array([len(arrays["logits"])], np.int64)
        self._done.add(int(image_id))
        self._waiting[int(image_id)] = arrays
        self._waiting_bytes += sum(array.nbytes for array in arrays.values())
        if len(self._waiting) >= SHARD_IMAGES or self._waiting_bytes >= SHARD_BYTES:
            self.flush()

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
                f"Expected image {image_id} to have {expected} objectness, as the header says, but got {got}."
            )
        self._check_boxes(image_id, proposals)
        logits = self._as_stored(f"the logits of image {image_id}", proposals.logits)
        arrays: dict[str, npt.NDArray[Any]] = {"logits": logits, "boxes": proposals.boxes.astype(np.float32)}
        if proposals.objectness is not None:
            arrays["objectness"] = self._as_stored(f"the objectness of image {image_id}", proposals.objectness)
        if header.boxes_per_proposal is not None:
            scores = logits[:, header.head.foreground]
            top = np.argsort(-scores, axis=1, kind="stable")[:, : header.boxes_per_proposal]
            arrays["boxes"] = np.take_along_axis(arrays["boxes"], top[:, :, None], axis=1)
            arrays["box_classes"] = top.astype(np.uint16)
        return arrays

    def _as_stored(self, what: str, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if np.isnan(numbers).any():
            raise InputError(f"Expected {what} to be numbers, but got NaN.")
        limit = float(np.finfo(self.header.dtype).max)
        return np.asarray(np.clip(numbers, -limit, limit).astype(self.header.dtype, copy=False))

    def _check_boxes(self, image_id: int, proposals: Proposals) -> None:
        expected = (self.header.head.num_classes, 4) if self.header.class_boxes else (4,)
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

    def flush(self) -> None:
        """Write the images that wait as one shard."""
        if not self._waiting:
            return
        ids = np.array(list(self._waiting), np.int64)
        tensors = {"image_ids": [ids]} | {
            name: [arrays[name] for arrays in self._waiting.values()] for name in ("sizes", "rows", *self.header.arrays)
        }
        # Two processes that run the same images write the same file.
        path = self._folder / f"{hashlib.sha256(ids.tobytes()).hexdigest()[:16]}.safetensors"
        _write_shard(path, tensors, {"format": FILE_FORMAT, "schema": str(FILE_SCHEMA), "header": self.header.digest})
        self._waiting, self._waiting_bytes = {}, 0

    def close(self) -> None:
        """Write what waits."""
        self.flush()

    def __enter__(self) -> PredictionWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_TYPES = {"int64": "I64", "uint16": "U16", "float16": "F16", "float32": "F32"}


def _write_shard(path: Path, tensors: Mapping[str, list[npt.NDArray[Any]]], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file of arrays that lie in parts, in one atomic step and without joining them in memory."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, parts in tensors.items():
        start, end = end, end + sum(part.nbytes for part in parts)
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        header[name] = {"dtype": _TYPES[parts[0].dtype.name], "shape": shape, "data_offsets": (start, end)}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)  # the format wants the arrays to start at a multiple of 8
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in (part for parts in tensors.values() for part in parts):
            file.write(np.ascontiguousarray(part).data)
