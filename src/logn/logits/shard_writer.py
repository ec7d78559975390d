"""Write logits that are too big for memory to a `.npy` or `.safetensors` file, stretch after stretch."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.files import atomic_path

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
