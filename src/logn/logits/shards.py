"""Read dumped logits that are too big for memory: shard after shard, block after block.

Blocks depend only on the files and on `batch_rows`, never on the number of threads, so that statistics over
them can be repeated bit by bit. Each block maps its own stretch of the file while it is read: mapping whole
files would make the resident memory grow with them.
"""

from __future__ import annotations

import glob
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.files import atomic_path, file_identity, format_of
from logn.logits.array_files import SUFFIXES, StoredArray, as_floats, locate_array, open_compressed, refusing_damage

DEFAULT_BATCH_ROWS = 512
_BLOCK_BYTES = 16 * 2**20
_LARGEST_BATCH_BYTES = 32 * 2**20


def find_shards(patterns: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """List the files that globs, folders and file names stand for, in the order given, each file once.

    Statistics and corrections of LogN that lie in the same folder are no logits and are left out.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("b.npy", "a.npy", "note.txt"):
        ...     _ = (folder / name).write_bytes(b"")
        >>> [path.name for path in find_shards([folder, folder / "*.npy"])]
        ['a.npy', 'b.npy']
    """
    found: dict[Any, Path] = {}
    for pattern in patterns:
        paths = _matches(str(pattern)) if str(pattern) else []  # a variable that is not set is not this folder
        if not paths:
            raise InputError(f"Expected `{pattern}` to match {', '.join(SUFFIXES)} files, but it matches none.")
        for path in paths:
            found.setdefault(file_identity(path), path)
    if not found:
        raise InputError("Expected at least one file of logits, but got none.")
    return list(found.values())


def _matches(pattern: str) -> list[Path]:
    if Path(pattern).is_dir():
        files = (path for path in Path(pattern).iterdir() if path.suffix in SUFFIXES)
        return sorted(path for path in files if path.is_file() and _own_format(path) is None)
    if Path(pattern).exists() or not glob.has_magic(pattern):
        return [Path(pattern)]  # a file that is not there gets its own sentence when it is opened
    matched = map(Path, glob.glob(pattern, recursive=True))
    return sorted(path for path in matched if path.is_file() and _own_format(path) is None)


def _own_format(path: Path) -> str | None:
    """The format that LogN itself gave to the file, if it did."""
    name = format_of(path) if path.suffix == ".safetensors" else None
    return name if name in ("logn.statistics", "logn.affine") else None


def open_shards(paths: Sequence[str | os.PathLike[str]], key: str | None = None) -> list[StoredArray]:
    """Read the headers of all shards and check that they hold logits of the same classes.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.npy"
        >>> np.save(path, np.zeros((4, 3)))
        >>> open_shards([path])[0].shape
        (4, 3)
    """
    for path in map(Path, paths):
        if own := _own_format(path):
            raise InputError(f"Expected `{path}` to hold logits, but it holds `{own}`.")
    shards = [locate_array(path, key) for path in paths]
    for shard in shards[1:]:
        if shard.num_classes != shards[0].num_classes:
            raise InputError(
                f"Expected `{shard.path}` to have {shards[0].num_classes} classes like `{shards[0].path}`, "
                f"but it has {shard.num_classes}."
            )
    return shards


@dataclass(frozen=True)
class LogitBlock:
    """A stretch of whole batches of one shard; its numbers are read when they are asked for.

    Attributes:
        shard: The array that it belongs to.
        batches: First and last-plus-one row of each batch.
        data: The bytes, when they had to be read beforehand because they are compressed.
    """

    shard: StoredArray
    batches: tuple[tuple[int, int], ...]
    data: bytes | None = None

    @property
    def start(self) -> int:
        """First row."""
        return self.batches[0][0]

    @property
    def stop(self) -> int:
        """Row after the last."""
        return self.batches[-1][1]

    def read_batches(self) -> Iterator[np.ndarray]:
        """Yield the batches as (rows, C) arrays of float16, float32 or float64, valid until the next one."""
        rows = self._read()
        for start, stop in self.batches:
            yield as_floats(rows[start - self.start : stop - self.start], self.shard.dtype)

    def _read(self) -> np.ndarray:
        shard, shape = self.shard, (self.stop - self.start, self.shard.num_classes)
        if self.data is not None:
            return np.frombuffer(self.data, dtype=shard.storage).reshape(shape)
        if shard.offset is None:
            raise ValueError("a compressed block carries its bytes")
        offset = shard.offset + self.start * shard.row_bytes
        try:
            return np.memmap(shard.path, dtype=shard.storage, mode="r", offset=offset, shape=shape)
        except ValueError as error:  # the file has shrunk since its header was read
            raise InputError(f"Expected `{shard.path}` to stay as it was, but it changed while it was read.") from error


def read_blocks(
    shard: StoredArray, *, batch_rows: int = DEFAULT_BATCH_ROWS, first_row: int = 0
) -> Iterator[LogitBlock]:
    """Cut a shard into blocks of about 16 MB of whole batches.

    A batch is one leading item of (images, proposals, C); of (rows, C) it is `batch_rows` rows. Items above
    32 MB are cut, so that memory stays bounded.

    Args:
        shard: What `open_shards` gave.
        batch_rows: Rows of a batch when the array has two axes.
        first_row: Where to continue, the end of an earlier block.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.npy"
        >>> np.save(path, np.arange(12.0).reshape(6, 2))
        >>> [block] = read_blocks(open_shards([path])[0], batch_rows=4)
        >>> [batch.shape for batch in block.read_batches()]
        [(4, 2), (2, 2)]
    """
    if batch_rows < 1:
        raise InputError(f"Expected `batch_rows` to be at least 1, but got {batch_rows}.")
    blocks = (LogitBlock(shard, batches) for batches in _block_ranges(shard, batch_rows, first_row))
    yield from blocks if shard.offset is not None else _with_data(shard, blocks)


def _block_ranges(shard: StoredArray, batch_rows: int, first_row: int) -> Iterator[tuple[tuple[int, int], ...]]:
    block: list[tuple[int, int]] = []
    for start, stop in _batch_ranges(shard, batch_rows):
        if start < first_row:
            continue
        if block and (stop - block[0][0]) * shard.row_bytes > _BLOCK_BYTES:
            yield tuple(block)
            block = []
        block.append((start, stop))
    if block:
        yield tuple(block)


def _batch_ranges(shard: StoredArray, batch_rows: int) -> Iterator[tuple[int, int]]:
    longest = max(1, _LARGEST_BATCH_BYTES // shard.row_bytes)
    step = min(batch_rows if len(shard.shape) == 2 else shard.item_rows, longest)
    for item in range(0, shard.rows, shard.item_rows):
        for start in range(item, item + shard.item_rows, step):
            yield start, min(start + step, item + shard.item_rows)


def _with_data(shard: StoredArray, blocks: Iterator[LogitBlock]) -> Iterator[LogitBlock]:
    """Decompress from the front; only the block at hand is in memory."""
    position = 0
    with refusing_damage(shard.path), open_compressed(shard) as stream:
        for block in blocks:
            while position < block.start:  # rows that an earlier run has counted
                skipped = min(block.start - position, max(1, _BLOCK_BYTES // shard.row_bytes))
                _read_exactly(stream, skipped * shard.row_bytes)
                position += skipped
            data = _read_exactly(stream, (block.stop - block.start) * shard.row_bytes)
            position = block.stop
            yield LogitBlock(shard, block.batches, data)
        stream.read(1)  # the end of the stream is where the checksum is compared


def _read_exactly(stream: Any, size: int) -> bytes:
    data: bytes = stream.read(size)
    if len(data) != size:
        raise EOFError("it ends too early")
    return data


_SAFETENSORS_NAMES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}


def write_logits(
    path: str | os.PathLike[str], shape: tuple[int, ...], dtype: str, rows: Iterable[npt.NDArray[Any]]
) -> None:
    """Write an array of `shape` and `dtype` from consecutive stretches of its rows, in one atomic step.

    Args:
        path: A `.npy` file, or a `.safetensors` file, in which the array is named `logits`.
        shape: Shape of the whole array.
        dtype: float16, bfloat16 (`.safetensors` only), float32 or float64.
        rows: Arrays (n, C) of that dtype; bfloat16 comes as float32 and is rounded here.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "logits.npy"
        >>> write_logits(path, (3, 2), "float32", [np.ones((2, 2), np.float32), np.zeros((1, 2), np.float32)])
        >>> np.load(path).tolist()
        [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    """
    check_writable(path, dtype)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        write_header = _write_npy_header if Path(path).suffix == ".npy" else _write_safetensors_header
        write_header(file, shape, dtype)
        for stretch in rows:
            stored = _to_bfloat16(stretch) if dtype == "bfloat16" else stretch
            file.write(np.ascontiguousarray(stored).data)


def check_writable(path: str | os.PathLike[str], dtype: str) -> None:
    """Refuse a file name, or a kind of number, that cannot be written."""
    suffix = Path(path).suffix
    if suffix not in (".npy", ".safetensors"):
        raise InputError(f"Expected `{path}` to end in .npy or .safetensors, but it does not.")
    if suffix == ".npy" and dtype == "bfloat16":
        raise InputError(f"Expected `{path}` to be a .safetensors file, since .npy files cannot hold bfloat16.")


def _write_npy_header(file: IO[bytes], shape: tuple[int, ...], dtype: str) -> None:
    description = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, description)


def _write_safetensors_header(file: IO[bytes], shape: tuple[int, ...], dtype: str) -> None:
    size = math.prod(shape) * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)
    entry = {"dtype": _SAFETENSORS_NAMES[dtype], "shape": list(shape), "data_offsets": [0, size]}
    header = json.dumps({"logits": entry}).encode()
    header += b" " * (-len(header) % 8)  # the data starts at a multiple of eight bytes
    file.write(struct.pack("<Q", len(header)) + header)


def _to_bfloat16(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(rows, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    return np.where(np.isnan(rows), 0x7FC0, rounded).astype(np.uint16)
