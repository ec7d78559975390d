"""Class folders (torchvision's ImageFolder): each folder is a class, each picture below it an image."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from logn.datasets.labelled_images import FilePixels, LabelledImages
from logn.errors import InputError
from logn.logits.image_folder import SUFFIXES

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
