"""Where an array lies inside a `.npy`, `.npz` or `.safetensors` file, found without reading the array.

Nothing here unpickles, and a file that does not hold what its header promises is refused at once.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.files import require_file

SUFFIXES = (".npy", ".npz", ".safetensors")

try:
    from lzma import LZMAError
except ImportError:  # some builds of Python go without; they cannot open such archives at all
    LZMAError = zlib.error  # type: ignore[assignment,misc]

# What is wrong with a damaged or foreign file shows up as one of these; RuntimeError stands for too deep a header.
_UNREADABLE = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, LZMAError, struct.error, RuntimeError)

_SAFETENSORS_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_SHOWN_NAMES = 8
_FLOATS = ("float16", "float32", "float64")
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself


@dataclass(frozen=True)
class StoredArray:
    """An array of logits in a file: its shape, its kind of number, and where its bytes start.

    Attributes:
        path: The file.
        name: Its name inside an archive; empty in a `.npy` file.
        shape: The shape (…, C); the last axis is the class.
        dtype: float16, bfloat16, float32 or float64.
        storage: How the bytes are read; bfloat16 is read as uint16, which NumPy knows.
        offset: Position of the first byte; None when it is compressed and can be read from the front only.
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
    def num_classes(self) -> int:
        """Length of the last axis."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """Number of logit vectors."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one logit vector."""
        return self.num_classes * self.storage.itemsize

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
        >>> array.rows, array.num_classes, array.dtype, array.offset
        (5, 3, 'float32', 128)
    """
    path = Path(path)
    readers = {".npy": _locate_npy, ".npz": _locate_npz, ".safetensors": _locate_safetensors}
    if path.suffix not in readers:
        raise InputError(f"Expected `{path}` to end in one of {', '.join(SUFFIXES)}, but it does not.")
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
        raise InputError(f"Expected `{path}` to be a {path.suffix} file, but it cannot be read: {reason}.") from error


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
        with refusing_damage(array.path), open_compressed(array) as stream:
            stored = np.frombuffer(stream.read(), dtype=array.storage)
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


@contextlib.contextmanager
def open_compressed(array: StoredArray) -> Iterator[IO[bytes]]:
    """Open a compressed array of a `.npz` file as a stream that stands at its first byte."""
    with zipfile.ZipFile(array.path) as archive, archive.open(f"{array.name}.npy") as stream:
        _read_npy_header(stream, array.path)
        yield stream


def _locate_npy(path: Path, key: str | None) -> StoredArray:
    if key is not None:
        raise InputError(f"Expected no `key` for `{path}`, since a .npy file holds one array, but got {key!r}.")
    with path.open("rb") as stream:
        shape, dtype = _read_npy_header(stream, path)
        return _stored(path, "", shape, dtype.name, dtype, stream.tell())


def _locate_npz(path: Path, key: str | None) -> StoredArray:
    with zipfile.ZipFile(path) as archive:
        name = _choose(path, _npz_names(archive), key)
        information = archive.getinfo(f"{name}.npy")
        with archive.open(information) as stream:
            shape, dtype = _read_npy_header(stream, path)
            header_bytes = stream.tell()
    if information.file_size != header_bytes + math.prod(shape) * dtype.itemsize:
        raise InputError(f"Expected `{name}` in `{path}` to hold {shape} values of {dtype}, but its size differs.")
    offset = None
    if information.compress_type == zipfile.ZIP_STORED:
        offset = _stored_member_start(path, information.header_offset) + header_bytes
    return _stored(path, name, shape, dtype.name, dtype, offset)


def _npz_names(archive: zipfile.ZipFile) -> tuple[str, ...]:
    return tuple(member.removesuffix(".npy") for member in archive.namelist() if member.endswith(".npy"))


def _stored_member_start(path: Path, header_offset: int) -> int:
    """Find the first byte of an uncompressed member: it follows a header of varying length."""
    with path.open("rb") as file:
        file.seek(header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", file.read(4))
    return int(header_offset + 30 + name_length + extra_length)


def _read_safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """The entry of each tensor, and where the data starts."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(_MAX_HEADER_BYTES, path.stat().st_size):
            raise ValueError("its header is too long")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _locate_safetensors(path: Path, key: str | None) -> StoredArray:
    header, data_start = _read_safetensors_header(path)
    name = _choose(path, tuple(header), key)
    entry = header[name]
    try:
        kind, shape, (start, stop) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the entry of `{name}` is not complete") from error
    if kind not in _SAFETENSORS_DTYPES:
        raise InputError(f"Expected `{name}` in `{path}` to be floating-point logits, but it holds {kind}.")
    dtype = _SAFETENSORS_DTYPES[kind]
    storage = np.dtype("<u2" if dtype == "bfloat16" else f"<f{np.dtype(dtype).itemsize}")
    if not _are_lengths((*shape, start, stop)) or stop - start != math.prod(shape) * storage.itemsize:
        raise ValueError(f"the place of `{name}` does not fit its shape {shape}")
    return _stored(path, name, shape, dtype, storage, data_start + start)


def _read_npy_header(stream: IO[bytes], path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise InputError(f"Expected `{path}` to hold plain floating-point logits, but it is of another kind.")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(stream)
    if dtype.name not in _FLOATS:
        raise InputError(f"Expected `{path}` to hold float16, float32 or float64 logits, but it holds {dtype}.")
    if fortran_order:
        raise InputError(
            f"Expected `{path}` to be in C order, but it is in Fortran order: "
            "save numpy.ascontiguousarray(logits) instead."
        )
    return shape, dtype


def _choose(path: Path, names: Sequence[str], key: str | None) -> str:
    if key is not None:
        if key not in names:
            raise InputError(f"Expected `{path}` to hold an array `{key}`, but it holds: {_listed(names, key)}.")
        return key
    if len(names) == 1:
        return names[0]
    if "logits" not in names:
        raise InputError(f"Expected `key` to say which array of `{path}` to take; it holds: {_listed(names)}.")
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
        raise InputError(f"Expected `{path}` to be (rows, classes) or (images, proposals, classes), but got {shape}.")
    if 0 in shape:
        raise InputError(f"Expected `{path}` to hold at least one row of logits, but its shape is {shape}.")
    if array.offset is not None and array.offset + array.rows * array.row_bytes > array.size:
        missing = array.offset + array.rows * array.row_bytes - array.size
        raise InputError(f"Expected `{path}` to hold {shape} values of {array.dtype}, but {missing} bytes are missing.")
