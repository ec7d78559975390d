"""List files of ImageNet-LT, Places-LT and iNaturalist: one `path label` line an image, below one image root."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from logn.errors import InputError
from logn.logits.images import SUFFIXES
from logn_research.datasets.labelled_images import (
    FilePixels,
    LabelledImages,
    numbered_names,
    read_class_names,
)

#: Folder names by which splits are recognised, the first that is there.
SPLIT_FOLDERS = {
    "train": ("train", "training"),
    "dev": ("dev", "val", "valid", "validation"),
    "test": ("test", "testing"),
}


def split_folder(folder: str | os.PathLike[str], split: str) -> Path | None:
    """The subfolder of a split, if there is one.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> (root / "val").mkdir()
        >>> split_folder(root, "dev").name, split_folder(root, "test")
        ('val', None)
    """
    candidates = (Path(folder) / name for name in SPLIT_FOLDERS[split])
    return next((path for path in candidates if path.is_dir()), None)


def read_class_folders(folder: str | os.PathLike[str], split: str = "train") -> LabelledImages:
    """Read class folders, classes in the order of their names; pictures are opened when they are asked for.

    Args:
        folder: A folder of class folders, which is then all training images, or of `train`, `val` and `test` with class
            folders in each.
        split: `"train"`, `"dev"` or `"test"`. Without a `test` folder, `test` is the validation folder, as ImageNet's
            and iNaturalist's results are reported.
    """
    root = Path(folder)
    if split not in SPLIT_FOLDERS:
        raise InputError(f"Expected `split` to be one of {tuple(SPLIT_FOLDERS)}, but got {split!r}.")
    if not root.is_dir():
        raise InputError(f"Expected `{root}` to be a folder of class folders, but there is none.")
    training = split_folder(root, "train") or root
    names = _class_folders(training)
    if split == "train":
        return _read(training, names)
    chosen = split_folder(root, split) or (split_folder(root, "dev") if split == "test" else None)
    if chosen is None:
        wanted = " or ".join(f"`{name}`" for name in SPLIT_FOLDERS[split])
        raise InputError(f"Expected `{root}` to have a folder {wanted} for the {split} images, but it has none.")
    unknown = sorted(set(_class_folders(chosen)) - set(names))
    if unknown:
        raise InputError(f"Expected the classes of `{chosen}` to be in `{training}` too, but `{unknown[0]}` is not.")
    return _read(chosen, names)


def _class_folders(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))
    if not names:
        raise InputError(f"Expected `{folder}` to hold a folder for each class, but it holds none.")
    return names


def _read(folder: Path, names: tuple[str, ...]) -> LabelledImages:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        mine = sorted(
            path.relative_to(folder).as_posix()
            for path in (folder / name).rglob("*")
            if path.suffix.lower() in SUFFIXES and path.is_file()
        )
        paths += mine
        labels += [label] * len(mine)
    if not paths:
        raise InputError(
            f"Expected `{folder}` to hold images ({', '.join(SUFFIXES)}) in its class folders, but none is."
        )
    return LabelledImages(FilePixels(folder, tuple(paths)), np.array(labels, np.int64), names, source=str(folder))


def read_class_list(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    class_names: Sequence[str] | str | os.PathLike[str] | None = None,
    num_classes: int | None = None,
) -> LabelledImages:
    r"""Read a list file; images are opened when they are asked for.

    Args:
        path: The list, a line an image: its path, which may hold spaces, and its label, a whole number from 0.
        root: The folder that the paths start from; by default that of the list.
        class_names: The names of the classes, or a file with one a line.
        num_classes: How many classes there are; by default as many as there are names, or the largest label and one.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "ImageNet_LT_train.txt"
        >>> _ = path.write_text("train/n01440764/a.JPEG 0\ntrain/n01443537/b c.JPEG 1\n")
        >>> images = read_class_list(path)
        >>> images.pixels.paths[1], images.labels.tolist()
        ('train/n01443537/b c.JPEG', [0, 1])
    """
    file = Path(path)
    names = _names(class_names)
    if names is not None and num_classes is not None and len(names) != num_classes:
        raise InputError(f"Expected `class_names` to be {num_classes} names, but got {len(names)}.")
    limit = len(names) if names is not None else num_classes
    paths: list[str] = []
    labels: list[int] = []
    for image, label in _lines(file, limit):
        paths.append(image)
        labels.append(label)
    if not paths:
        raise InputError(f"Expected `{file}` to have one `path label` line an image, but it is empty.")
    return LabelledImages(
        FilePixels(file.parent if root is None else Path(root), tuple(paths)),
        np.array(labels, np.int64),
        names or numbered_names(max(labels) + 1 if limit is None else limit),
        source=str(file),
    )


def _names(class_names: Sequence[str] | str | os.PathLike[str] | None) -> tuple[str, ...] | None:
    if class_names is None:
        return None
    if isinstance(class_names, str | os.PathLike):
        return read_class_names(class_names)
    return tuple(class_names)


def _lines(file: Path, limit: int | None) -> Iterator[tuple[str, int]]:
    """Path and label of each line; empty lines are passed over."""
    if not file.is_file():
        raise InputError(f"Expected `{file}` to be a list of images, but there is none.")
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parse(line.strip(), f"line {number} of `{file}`", limit)
    except UnicodeDecodeError as error:
        raise InputError(f"Expected `{file}` to be text in UTF-8, but it is not ({error.reason}).") from error


def _parse(line: str, place: str, limit: int | None) -> tuple[str, int]:
    fields = line.rsplit(maxsplit=1)
    if len(fields) != 2:
        raise InputError(f"Expected {place} to be a path and a label, but got {line!r}.")
    try:
        label = int(fields[1])
    except ValueError:
        raise InputError(f"Expected {place} to end in a label, a whole number, but got {fields[1]!r}.") from None
    if label < 0:
        raise InputError(f"Expected the label on {place} to be 0 or more, but got {label}.")
    if limit is not None and label >= limit:
        raise InputError(f"Expected the label on {place} to be below {limit}, the number of classes, but got {label}.")
    return fields[0].strip(), label
