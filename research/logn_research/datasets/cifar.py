"""CIFAR-10 and CIFAR-100 from the files of their binary version.

Their python version is pickled: to read such a file is to run what is in it, so LogN does not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.labels.image_file import ImageArray
from logn_research.datasets.labelled_images import IntArray, LabelledImages, array_images, read_class_names

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class _Version:
    """How one of the two data sets is laid out: a record is its label bytes (the last is the class), then pixels."""

    classes: int
    label_bytes: int
    splits: dict[str, tuple[str, ...]]
    names: str
    binary: str
    pickled: str  # a file that only the python version has


CIFAR_10 = _Version(
    10,
    1,
    {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)},
    "batches.meta.txt",
    "cifar-10-binary.tar.gz",
    "data_batch_1",
)
CIFAR_100 = _Version(
    100,
    2,
    {"train": ("train.bin",), "test": ("test.bin",)},
    "fine_label_names.txt",
    "cifar-100-binary.tar.gz",
    "meta",
)
_VERSIONS = (CIFAR_100, CIFAR_10)


def is_cifar(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds CIFAR-10 or CIFAR-100, in the binary or in the python version."""
    root = Path(folder)
    return any(_has(root, version) or _is_pickled(root, version) for version in _VERSIONS)


def read_cifar(folder: str | os.PathLike[str], split: str = "train") -> LabelledImages:
    """Read all images of a split of CIFAR-10 or CIFAR-100, whichever lies in the folder.

    Args:
        folder: What `cifar-10-binary.tar.gz` or `cifar-100-binary.tar.gz` unpacks to.
        split: `"train"` or `"test"`; there is no validation split (`long_tail.held_out` makes one).
    """
    root = Path(folder)
    version = _version(root)
    if split not in version.splits:
        raise InputError(f"Expected `split` to be 'train' or 'test', all that CIFAR has, but got {split!r}.")
    parts = [_read_records(root / name, version) for name in version.splits[split]]
    labels = np.concatenate([labels for labels, _ in parts])
    # Of one file the pixels stay where they are; several must be joined.
    pixels = parts[0][1] if len(parts) == 1 else np.concatenate([pixels for _, pixels in parts])
    names_file = root / version.names
    names = read_class_names(names_file) if names_file.is_file() else None
    if names is not None and len(names) != version.classes:
        raise InputError(f"Expected `{names_file}` to have {version.classes} names, but it has {len(names)}.")
    return array_images(pixels, labels, names or [str(label) for label in range(version.classes)], source=str(root))


def _version(root: Path) -> _Version:
    for version in _VERSIONS:
        if _has(root, version):
            return version
    for version in _VERSIONS:
        if _is_pickled(root, version):
            raise InputError(
                f"Expected `{root}` to hold CIFAR's binary version (`{version.binary}`), but it holds the python "
                f"version, whose pickled files can run any code when they are read; fetch the binary one."
            )
    raise InputError(f"Expected `{root}` to hold CIFAR's binary version (`train.bin` or `data_batch_1.bin`).")


def _has(root: Path, version: _Version) -> bool:
    return (root / version.splits["train"][0]).is_file()


def _is_pickled(root: Path, version: _Version) -> bool:
    return (root / version.pickled).is_file() and any((root / name).is_file() for name in ("train", "batches.meta"))


def _read_records(path: Path, version: _Version) -> tuple[IntArray, ImageArray]:
    if not path.is_file():
        raise InputError(f"Expected `{path}` to be a file of CIFAR's binary version, but there is none.")
    record = version.label_bytes + _PIXELS
    size = path.stat().st_size
    if size == 0 or size % record:
        raise InputError(
            f"Expected `{path}` to hold records of {record} bytes, but its {size} bytes are not a whole number of them."
        )
    records: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r").reshape(-1, record)
    labels = records[:, version.label_bytes - 1].astype(np.int64)
    outside = np.flatnonzero(labels >= version.classes)
    if len(outside):
        raise InputError(
            f"Expected the labels of `{path}` to be below {version.classes}, "
            f"but got {labels[outside[0]]} in record {outside[0]}."
        )
    planes = records[:, version.label_bytes :].reshape(-1, 3, _SIDE, _SIDE)
    return labels, planes.transpose(0, 2, 3, 1)
