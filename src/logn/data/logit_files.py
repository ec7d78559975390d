"""Logits dumped to `.npy`, `.npz` and `.safetensors` files, read block by block.

Nothing here unpickles, and a file that does not hold what its header promises is refused at once. Blocks depend only
on the files and on `batch_rows`, never on the number of threads, so that statistics over them repeat bit by bit. Each
block maps its own stretch of the file: mapping whole files would make the resident memory grow with them. Only an
array of a `.npz` file, which mostly is compressed, is read whole.
"""

from __future__ import annotations

import contextlib
import difflib
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
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from logn.base.files import atomic_path, file_identity, format_of, require_file
from logn.base.strict_json import parse_json
from logn.errors import InputError

SUFFIXES = (".npy", ".npz", ".safetensors")

try:
    from lzma import LZMAError
except ImportError:  # some builds of Python go without; they cannot open such archives at all
    LZMAError = zlib.error  # type: ignore[assignment,misc]

# What is wrong with a damaged or foreign file shows up as one of these; RuntimeError stands for too deep a header.
_UNREADABLE = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, LZMAError, struct.error, RuntimeError)

_SAFETENSORS_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_SAFETENSORS_NAMES = {dtype: name for name, dtype in _SAFETENSORS_DTYPES.items()}
_SHOWN_NAMES = 8
_FLOATS = ("float16", "float32", "float64")
_ZIP_END_BYTES = 22  # of the record that ends an archive without a comment
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself

DEFAULT_BATCH_ROWS = 512
_BLOCK_BYTES = 16 * 2**20
_LARGEST_BATCH_BYTES = 32 * 2**20


@dataclass(frozen=True)
class StoredArray:
    """An array of logits in a file: its shape, its kind of number, and where its bytes start.

    Attributes:
        path: The file.
        name: Its name inside an archive; empty in a `.npy` file.
        shape: The shape (…, C); the last axis is the class.
        dtype: float16, bfloat16, float32 or float64.
        storage: How the bytes are read; bfloat16 is read as uint16, which NumPy knows.
        offset: Position of the first byte; None in a `.npz` file, whose arrays are read whole.
        size: Bytes of the whole file, to notice that it changed.
        mtime_ns: Time of its last change.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    storage: np.dtype[Any]
    offset: int | None
    size: int
    mtime_ns: int

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
        return self.num_columns * self.storage.itemsize

    @property
    def stop(self) -> int | None:
        """Position behind the last byte; None in a `.npz` file."""
        return None if self.offset is None else self.offset + self.rows * self.row_bytes

    @property
    def item_rows(self) -> int:
        """Rows that belong together: the proposals of one image in (images, proposals, C), else all."""
        return self.rows if len(self.shape) == 2 else math.prod(self.shape[1:-1])


def locate_array(path: str | os.PathLike[str], key: str | None = None, *, least_axes: int = 2) -> StoredArray:
    """Read the header of a file and say where its logits are.

    Args:
        path: A `.npy`, `.npz` or `.safetensors` file.
        key: Which array of an archive; by default the only one, or the one named `logits`.
        least_axes: How many axes the array must have.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "logits.npy"
        >>> np.save(path, np.zeros((5, 3), dtype=np.float32))
        >>> array = locate_array(path)
        >>> array.rows, array.num_columns, array.dtype, array.offset
        (5, 3, 'float32', 128)
    """
    path = Path(path)
    readers = {".npy": _locate_npy, ".npz": _locate_npz, ".safetensors": _locate_safetensors}
    if path.suffix not in readers:
        raise InputError(f"`{path}` is no file of logits: its name must end in one of {', '.join(SUFFIXES)}.")
    require_file(path)
    with refusing_damage(path):
        array = readers[path.suffix](path, key)
    _check_shape(array, least_axes)
    return array


@contextlib.contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Let whatever reading a damaged or foreign file raises in the block become one sentence that names the file."""
    try:
        yield
    except InputError:
        raise
    except (*_UNREADABLE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the system, in its own words; bzip2 says of damaged data what has no number
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
        with zipfile.ZipFile(path) as archive:
            return _npz_names(archive)
    return tuple(_read_safetensors_header(path)[0]) if path.suffix == ".safetensors" else ()


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
    if array.offset is None:
        with refusing_damage(array.path), np.load(array.path, allow_pickle=False) as archive:
            stored = archive[array.name]
    else:
        stored = np.fromfile(array.path, dtype=array.storage, offset=array.offset, count=math.prod(array.shape))
    return as_floats(stored, array.dtype).reshape(array.shape)


def as_floats(stored: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Turn stored numbers into floats that NumPy computes with: bfloat16 is the upper half of a float32.

    Example:
        >>> as_floats(np.array([0x3F80, 0xC000], dtype=np.uint16), "bfloat16")
        array([ 1., -2.], dtype=float32)
    """
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    native: np.dtype[Any] = stored.dtype.newbyteorder("=")
    return np.asarray(stored).astype(native, copy=False)


def _locate_npy(path: Path, key: str | None) -> StoredArray:
    if key is not None:
        raise InputError(f"`{path}` holds one array, as every .npy file does; leave `key` out (got {key!r}).")
    with path.open("rb") as stream:
        shape, dtype = _read_npy_header(stream, path)
        array = _stored(path, "", shape, dtype.name, dtype, stream.tell())
    if array.stop is not None and array.stop < array.size and _are_lengths(shape):
        raise InputError(f"`{path}` has data behind its array of shape {shape}: save one array per file.")
    return array


def _locate_npz(path: Path, key: str | None) -> StoredArray:
    with zipfile.ZipFile(path) as archive:
        _check_archive(archive)
        name = _choose(path, _npz_names(archive), key)
        information = archive.getinfo(f"{name}.npy")
        with archive.open(information) as stream:
            shape, dtype = _read_npy_header(stream, path)
            header_bytes = stream.tell()
    if information.file_size != header_bytes + math.prod(shape) * dtype.itemsize:
        raise InputError(f"`{name}` in `{path}` is damaged: its size does not fit its shape {shape} of {dtype}.")
    return _stored(path, name, shape, dtype.name, dtype, None)


def _check_archive(archive: zipfile.ZipFile) -> None:
    """Refuse members with the same name or place, and data before the first one or behind the directory."""
    members = archive.infolist()
    starts = {member.header_offset for member in members}
    if len({member.filename for member in members}) < len(members) or len(starts) < len(members):
        raise ValueError("two of its arrays have the same name or place")
    archive.fp.seek(-_ZIP_END_BYTES, os.SEEK_END)  # type: ignore[union-attr]  # it is open
    if min(starts, default=0) > 0 or archive.fp.read(4) != b"PK\x05\x06":  # type: ignore[union-attr]
        raise ValueError("it has data before or behind the archive")


def _npz_names(archive: zipfile.ZipFile) -> tuple[str, ...]:
    return tuple(member.removesuffix(".npy") for member in archive.namelist() if member.endswith(".npy"))


def _read_safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """The entry of each tensor, and where the data starts."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(_MAX_HEADER_BYTES, path.stat().st_size):
            raise ValueError("its header is too long")
        header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _check_offsets(header: dict[str, Any], size: int) -> None:
    """Refuse arrays that overlap or leave bytes between or behind them, as the format does."""
    end = 0
    try:
        for (start, stop), name in sorted((entry["data_offsets"], name) for name, entry in header.items()):
            if start != end or stop < start:
                raise ValueError(f"the array `{name}` does not start where the one before it ends")
            end = stop
    except (KeyError, TypeError) as error:
        raise ValueError("the entry of an array is incomplete") from error
    if end < size:
        raise ValueError(f"{size - end} bytes behind its arrays belong to none")


def _locate_safetensors(path: Path, key: str | None) -> StoredArray:
    header, data_start = _read_safetensors_header(path)
    name = _choose(path, tuple(header), key)
    entry = header[name]
    try:
        kind, shape, (start, stop) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the entry of `{name}` is incomplete") from error
    if kind not in _SAFETENSORS_DTYPES:
        raise InputError(f"`{name}` in `{path}` holds {kind}, not floating-point logits.")
    dtype = _SAFETENSORS_DTYPES[kind]
    storage = np.dtype("<u2" if dtype == "bfloat16" else f"<f{np.dtype(dtype).itemsize}")
    if not _are_lengths((*shape, start, stop)) or stop - start != math.prod(shape) * storage.itemsize:
        raise ValueError(f"the offsets of `{name}` do not fit its shape {shape}")
    array = _stored(path, name, shape, dtype, storage, data_start + start)
    _check_offsets(header, array.size - data_start)
    return array


def _read_npy_header(stream: IO[bytes], path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise InputError(f"`{path}` is not a plain array of numbers; save one array of logits, (rows, classes).")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(stream)
    if dtype.name not in _FLOATS:
        raise InputError(f"`{path}` holds {dtype}, not float16, float32 or float64 logits.")
    if fortran_order:
        raise InputError(f"`{path}` is in Fortran order; save numpy.ascontiguousarray(logits) instead.")
    return shape, dtype


def _choose(path: Path, names: Sequence[str], key: str | None) -> str:
    if key is not None:
        if key not in names:
            raise InputError(f"`{path}` has no array `{key}`; it has: {_listed(names, key)}.")
        return key
    if len(names) == 1:
        return names[0]
    if "logits" not in names:
        raise InputError(f"`{path}` has several arrays; name one as `key`: {_listed(names)}.")
    return "logits"


def _listed(names: Sequence[str], key: str = "logits") -> str:
    """Some of the names, those like `key` first: a checkpoint holds hundreds."""
    ending = sorted(name for name in names if name.endswith(key))
    order = dict.fromkeys([*ending, *difflib.get_close_matches(key, names, _SHOWN_NAMES), *sorted(names)])
    shown = sorted(order) if len(order) <= _SHOWN_NAMES else [*order][:_SHOWN_NAMES]
    more = f" and {len(order) - len(shown)} more" if len(shown) < len(order) else ""
    return (", ".join(shown) or "none") + more


def _stored(
    path: Path, name: str, shape: tuple[int, ...], dtype: str, storage: np.dtype[Any], offset: int | None
) -> StoredArray:
    status = path.stat()
    return StoredArray(path, name, shape, dtype, storage, offset, status.st_size, status.st_mtime_ns)


def _are_lengths(values: Sequence[Any]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)  # a header may hold True, which is an int too


def _check_shape(array: StoredArray, least_axes: int) -> None:
    path, shape = array.path, array.shape
    if not _are_lengths(shape) or len(shape) < least_axes:
        raise InputError(f"`{path}` has shape {shape}; logits are (rows, classes) or (images, proposals, classes).")
    if 0 in shape:
        raise InputError(f"`{path}` holds no row of logits: its shape is {shape}.")
    if array.stop is not None and array.stop > array.size:
        missing = array.stop - array.size
        raise InputError(f"`{path}` is cut off: of {shape} values of {array.dtype}, {missing} bytes are missing.")


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
            raise InputError(f"`{pattern}` matches no {', '.join(SUFFIXES)} files.")
        for path in paths:
            found.setdefault(file_identity(path), path)
    if not found:
        raise InputError("Pass at least one file of logits.")
    return list(found.values())


def _matches(pattern: str) -> list[Path]:
    if Path(pattern).is_dir():
        # Hidden files are what an interrupted run left.
        files = (path for path in Path(pattern).iterdir() if path.suffix in SUFFIXES and path.name[0] != ".")
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
            raise InputError(f"`{path}` holds `{own}`, not logits.")
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
        rows: Its rows, where the whole array was read beforehand.
    """

    shard: StoredArray
    batches: tuple[tuple[int, int], ...]
    rows: npt.NDArray[Any] | None = None

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
        rows = self._mapped() if self.rows is None else self.rows
        for start, stop in self.batches:
            yield as_floats(rows[start - self.start : stop - self.start], self.shard.dtype)

    def _mapped(self) -> np.ndarray:
        shard, shape = self.shard, (self.stop - self.start, self.shard.num_columns)
        offset = (shard.offset or 0) + self.start * shard.row_bytes
        try:
            return np.memmap(shard.path, dtype=shard.storage, mode="r", offset=offset, shape=shape)
        except ValueError as error:  # the file has shrunk since its header was read
            raise InputError(f"`{shard.path}` changed while it was read; start again.") from error


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
    whole = None
    if shard.offset is None:
        whole = read_array(shard.path, shard.name).reshape(shard.rows, shard.num_columns)
    for batches in _block_ranges(shard, batch_rows, first_row):
        yield LogitBlock(shard, batches, None if whole is None else whole[batches[0][0] : batches[-1][1]])


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
