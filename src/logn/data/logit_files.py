"""Logits dumped to `.npy`, `.npz` and `.safetensors` files, read block by block.

Nothing here unpickles. Blocks depend only on the files and on `batch_rows`, never on the number of threads, so that
statistics over them repeat bit by bit. Each block maps the file anew: a map that stays would make the resident memory
grow with the file. Only an array of a `.npz` file, which mostly is compressed, is read whole.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from logn.base.checks import Whole, checked
from logn.base.files import atomic_path, file_identity, format_of, require_file
from logn.errors import InputError, did_you_mean

SUFFIXES = (".npy", ".npz", ".safetensors")
# What is wrong with a damaged or foreign file shows up as one of these.
_UNREADABLE = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, SafetensorError)
# How safetensors and NumPy call the same numbers; NumPy lacks bfloat16, whose bytes are read as uint16.
_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_SHOWN_NAMES = 8

DEFAULT_BATCH_ROWS = 512
_BLOCK_BYTES = 16 * 2**20
_LARGEST_BATCH_BYTES = 32 * 2**20


@dataclass(frozen=True)
class StoredArray:
    """An array of logits in a file.

    Attributes:
        path: The file.
        name: Its name inside an archive; empty in a `.npy` file.
        shape: The shape (…, C); the last axis is the class.
        dtype: float16, bfloat16, float32 or float64.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_columns(self) -> int:
        """Length of the last axis."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """Number of logit vectors."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one logit vector."""
        return self.num_columns * _storage(self.dtype).itemsize

    @property
    def item_rows(self) -> int:
        """Rows that belong together: the proposals of one image in (images, proposals, C), else all."""
        return self.rows if len(self.shape) == 2 else math.prod(self.shape[1:-1])

    def mapped(self) -> npt.NDArray[Any]:
        """The stored numbers, mapped, or read where the file is a `.npz`; bfloat16 as uint16 (see `as_floats`)."""
        with refusing_damage(self.path):
            if self.path.suffix == ".npz":
                with np.load(self.path, allow_pickle=False) as archive:
                    stored: npt.NDArray[Any] = archive[self.name]
            elif self.path.suffix == ".npy":
                stored = np.lib.format.open_memmap(self.path, mode="r")
            else:
                stored = _map_safetensors(self)
        if stored.shape != self.shape:
            raise InputError(f"`{self.path}` changed while it was read; start again.")
        return stored


def _storage(dtype: str) -> np.dtype[Any]:
    return np.dtype("<u2" if dtype == "bfloat16" else dtype)


def _map_safetensors(array: StoredArray) -> npt.NDArray[Any]:
    with array.path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start = json.loads(file.read(length))[array.name]["data_offsets"][0]
    return np.memmap(array.path, _storage(array.dtype).newbyteorder("<"), "r", 8 + length + start, array.shape)


def locate_array(path: str | os.PathLike[str], key: str | None = None, *, least_axes: int = 2) -> StoredArray:
    """Read the header of a file and say what its logits are.

    Args:
        path: A `.npy`, `.npz` or `.safetensors` file.
        key: Which array of an archive; by default the only one, or the one named `logits`.
        least_axes: How many axes the array must have.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "logits.npy"
        >>> np.save(path, np.zeros((5, 3), dtype=np.float32))
        >>> array = locate_array(path)
        >>> array.rows, array.num_columns, array.dtype
        (5, 3, 'float32')
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"`{path}` is no file of logits: its name must end in one of {', '.join(SUFFIXES)}.")
    require_file(path)
    with refusing_damage(path):
        name, shape, dtype = _HEADERS[path.suffix](path, key)
    if dtype not in _DTYPES.values():
        raise InputError(f"`{path}` holds {dtype}, not float16, bfloat16, float32 or float64 logits.")
    if len(shape) < least_axes:
        raise InputError(f"`{path}` has shape {shape}; logits are (rows, classes) or (images, proposals, classes).")
    if 0 in shape:
        raise InputError(f"`{path}` holds no row of logits: its shape is {shape}.")
    return StoredArray(path, name, shape, dtype)


@contextlib.contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Let whatever reading a damaged or foreign file raises in the block become one sentence that names the file."""
    try:
        yield
    except InputError:
        raise
    except _UNREADABLE as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise InputError(f"`{path}` cannot be read as a {path.suffix} file: {reason}.") from error


def array_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names of the arrays in a `.npz` or `.safetensors` file; a `.npy` file has none.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.npz"
        >>> np.savez(path, logits=np.zeros((1, 2)), boxes=np.zeros((1, 4)))
        >>> array_names(path)
        ('logits', 'boxes')
    """
    path = Path(path)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return tuple(archive.files)
    if path.suffix != ".safetensors":
        return ()
    with safe_open(path, framework="np") as file:
        return tuple(file.keys())


def read_array(path: str | os.PathLike[str], key: str | None = None) -> npt.NDArray[Any]:
    """Read a whole array of one axis or more, such as a classifier's weight; bfloat16 becomes float32.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "bias.npy"
        >>> np.save(path, np.array([0.5, -1.0]))
        >>> read_array(path)
        array([ 0.5, -1. ])
    """
    array = locate_array(path, key, least_axes=1)
    return np.array(as_floats(array.mapped(), array.dtype))


def as_floats(stored: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Turn stored numbers into floats that NumPy computes with: bfloat16 is the upper half of a float32.

    Example:
        >>> as_floats(np.array([0x3F80, 0xC000], dtype=np.uint16), "bfloat16")
        array([ 1., -2.], dtype=float32)
    """
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    native: np.dtype[Any] = stored.dtype.newbyteorder("=")
    return stored.astype(native, copy=False)


# Name, shape and kind of number of an array, by its header.
_Header = tuple[str, tuple[int, ...], str]


def _npy_header(path: Path, key: str | None) -> _Header:
    if key is not None:
        raise InputError(f"`{path}` holds one array, as every .npy file does; leave `key` out (got {key!r}).")
    array = np.lib.format.open_memmap(path, mode="r")  # np.load would take archives, and advise to unpickle
    if array.offset + array.nbytes < path.stat().st_size:
        raise InputError(f"`{path}` has data behind its array of shape {array.shape}: save one array per file.")
    return "", array.shape, array.dtype.name


def _npz_header(path: Path, key: str | None) -> _Header:
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        name = _choose(path, names, key)
        with archive.open(f"{name}.npy") as stream:
            is_first = np.lib.format.read_magic(stream) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
    return name, shape, dtype.name


def _safetensors_header(path: Path, key: str | None) -> _Header:
    with safe_open(path, framework="np") as file:  # checks that arrays neither overlap nor leave bytes out
        name = _choose(path, list(file.keys()), key)
        stored = file.get_slice(name)
        return name, tuple(stored.get_shape()), _DTYPES.get(stored.get_dtype(), stored.get_dtype())


_HEADERS = {".npy": _npy_header, ".npz": _npz_header, ".safetensors": _safetensors_header}


def _choose(path: Path, names: Sequence[str], key: str | None) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    listed = (", ".join(sorted(names)[:_SHOWN_NAMES]) or "none") + more
    if key is not None:
        if key not in names:
            raise InputError(f"`{path}` has no array `{key}`; it has {listed}{did_you_mean(key, names)}")
        return key
    if len(names) == 1:
        return names[0]
    if "logits" not in names:
        raise InputError(f"`{path}` has several arrays; name one as `key`: {listed}.")
    return "logits"


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
    shards: dict[Any, Path] = {}
    for pattern in patterns:
        paths = _matches(str(pattern)) if str(pattern) else []  # a variable that is not set is not this folder
        if not paths:
            raise InputError(f"`{pattern}` matches no {', '.join(SUFFIXES)} files.")
        for path in paths:
            shards.setdefault(file_identity(path), path)
    if not shards:
        raise InputError("Pass at least one file of logits.")
    return list(shards.values())


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        # Hidden files are what an interrupted run left.
        paths = [file for file in path.iterdir() if file.suffix in SUFFIXES and file.name[0] != "."]
    elif path.exists() or not glob.has_magic(pattern):
        return [path]  # a file that is not there gets its own sentence when it is opened
    else:
        paths = list(map(Path, glob.glob(pattern, recursive=True)))
    return sorted(file for file in paths if file.is_file() and not _is_ours(file))


def _is_ours(path: Path) -> bool:
    """Whether the file holds statistics or a correction."""
    return path.suffix == ".safetensors" and format_of(path) in ("logn.statistics", "logn.affine")


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
        if _is_ours(path):
            raise InputError(f"`{path}` holds `{format_of(path)}`, not logits.")
    shards = [locate_array(path, key) for path in paths]
    for shard in shards[1:]:
        if shard.num_columns != shards[0].num_columns:
            raise InputError(
                f"`{shard.path}` has {shard.num_columns} columns, but `{shards[0].path}` has {shards[0].num_columns}; "
                "pass the files of one model."
            )
    return shards


@dataclass(frozen=True)
class LogitBlock:
    """A stretch of whole batches of one shard; its numbers are read when they are asked for.

    Attributes:
        shard: The array that it belongs to.
        batches: First and last-plus-one row of each batch.
        whole: All rows of the shard, where they were read beforehand.
    """

    shard: StoredArray
    batches: tuple[tuple[int, int], ...]
    whole: npt.NDArray[Any] | None = None

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
        rows = self.shard.mapped().reshape(-1, self.shard.num_columns) if self.whole is None else self.whole
        for start, stop in self.batches:
            yield as_floats(rows[start:stop], self.shard.dtype)


@checked
def read_blocks(
    shard: StoredArray, *, batch_rows: Annotated[int, Whole(1)] = DEFAULT_BATCH_ROWS
) -> Iterator[LogitBlock]:
    """Cut a shard into blocks of about 16 MB of whole batches.

    A batch is one leading item of (images, proposals, C); of (rows, C) it is `batch_rows` rows. Items above
    32 MB are cut, so that memory stays bounded.

    Args:
        shard: What `open_shards` gave.
        batch_rows: Rows of a batch when the array has two axes.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.npy"
        >>> np.save(path, np.arange(12.0).reshape(6, 2))
        >>> [block] = read_blocks(open_shards([path])[0], batch_rows=4)
        >>> [batch.shape for batch in block.read_batches()]
        [(4, 2), (2, 2)]
    """
    whole = shard.mapped().reshape(-1, shard.num_columns) if shard.path.suffix == ".npz" else None
    block: list[tuple[int, int]] = []
    for start, stop in _batch_ranges(shard, batch_rows):
        if block and (stop - block[0][0]) * shard.row_bytes > _BLOCK_BYTES:
            yield LogitBlock(shard, tuple(block), whole)
            block = []
        block.append((start, stop))
    yield LogitBlock(shard, tuple(block), whole)


def _batch_ranges(shard: StoredArray, batch_rows: int) -> Iterator[tuple[int, int]]:
    longest = max(1, _LARGEST_BATCH_BYTES // shard.row_bytes)
    step = min(batch_rows if len(shard.shape) == 2 else shard.item_rows, longest)
    for item in range(0, shard.rows, shard.item_rows):
        for start in range(item, item + shard.item_rows, step):
            yield start, min(start + step, item + shard.item_rows)


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
        raise InputError(f"`{path}` must end in .npy or .safetensors to be written.")
    if suffix == ".npy" and dtype == "bfloat16":
        raise InputError(f"`{path}` cannot hold bfloat16, as no .npy file can; write a .safetensors file.")


def _write_npy_header(file: IO[bytes], shape: tuple[int, ...], dtype: str) -> None:
    description = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, description)


def _write_safetensors_header(file: IO[bytes], shape: tuple[int, ...], dtype: str) -> None:
    size = math.prod(shape) * _storage(dtype).itemsize
    kind = next(name for name, numbers in _DTYPES.items() if numbers == dtype)
    entry = {"dtype": kind, "shape": list(shape), "data_offsets": [0, size]}
    header = json.dumps({"logits": entry}).encode()
    header += b" " * (-len(header) % 8)  # the data starts at a multiple of eight bytes
    file.write(struct.pack("<Q", len(header)) + header)


def _to_bfloat16(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(rows, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    return np.where(np.isnan(rows), 0x7FC0, rounded).astype(np.uint16)
