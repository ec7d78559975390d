"""What a path to labels is: COCO or LVIS, a YOLO `data.yaml`, a folder per class, a list; which split."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from logn.errors import InputError

YAML_SUFFIXES = (".yaml", ".yml")
YAML_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
ROBOFLOW_NAME = "_annotations.coco.json"
#: Files that list a path and a class per line, as ImageNet-LT does.
LIST_SUFFIXES = (".txt", ".csv")
#: The split that is measured if none is named, as in Ultralytics.
DEFAULT_SPLIT = "val"
# What folders of a split may be called.
_SPLIT_FOLDERS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True)
class LabelSource:
    """Labels on disk.

    Args:
        path: A JSON file, a `data.yaml`, a folder per class or a list of paths.
        form: "json", "yolo", "folders" or "list"; of classifiers the last two.
        split: The part named behind a colon, as in `data.yaml:test`; None if none is.
    """

    path: Path
    form: str
    split: str | None = None

    @property
    def root(self) -> Path:
        """The folder that the paths of the images start from."""
        return self.path if self.form == "folders" else self.path.parent

    @property
    def has_splits(self) -> bool:
        """Whether a split has to be named or assumed."""
        if self.form == "folders":
            return bool(split_folders(self.path))
        return self.form == "yolo"

    @property
    def is_of_classifier(self) -> bool:
        """Whether each image has one class and no boxes."""
        return self.form in ("folders", "list")


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, in the order of their names; hidden ones are left out."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def split_folders(folder: Path) -> dict[str, Path]:
    """The folder of each split, where a folder holds splits of class folders and nothing else; else none."""
    inside = {path.name: path for path in subfolders(folder)}
    if not {*inside} <= {name for names in _SPLIT_FOLDERS.values() for name in names}:
        return {}
    # A class may be called "train": its folder holds images, that of a split holds folders.
    if not inside or not all(subfolders(path) for path in inside.values()):
        return {}
    named = {split: [inside[name] for name in names if name in inside] for split, names in _SPLIT_FOLDERS.items()}
    return {split: folders[0] for split, folders in named.items() if folders}


def find_labels(source: str | os.PathLike[str]) -> LabelSource:
    """Recognise labels by their path; anything unknown is taken as a JSON file, whose reader says what is wrong.

    Example:
        >>> labels = find_labels("coco/data.yaml:test")
        >>> labels.path.name, labels.form, labels.split
        ('data.yaml', 'yolo', 'test')
        >>> find_labels("val.json").form, find_labels("ImageNet_LT_test.txt").form
        ('json', 'list')
    """
    path = Path(source)
    before, colon, split = os.fspath(source).rpartition(":")
    if colon and before and split.isidentifier() and not path.exists():
        named = _form_of(Path(before))
        if named is not None and named.form in ("yolo", "folders"):
            return LabelSource(named.path, named.form, split)
    return _form_of(path) or LabelSource(path, "json")


def with_split(source: str | os.PathLike[str], split: str) -> Path:
    """Name a split of labels that have splits, unless the source names one itself.

    Example:
        >>> with_split("data.yaml", "train").name, with_split("data.yaml:val", "train").name
        ('data.yaml:train', 'data.yaml:val')
        >>> with_split("train.json", "train").name
        'train.json'
    """
    labels = find_labels(source)
    return Path(source) if labels.split is not None or not labels.has_splits else Path(f"{labels.path}:{split}")


def _form_of(path: Path) -> LabelSource | None:
    if path.suffix.lower() in YAML_SUFFIXES:
        return LabelSource(path, "yolo")
    if path.suffix.lower() in LIST_SUFFIXES and not path.is_dir():
        return LabelSource(path, "list")
    if not path.is_dir():
        return None
    if file := _yaml_in(path):
        return LabelSource(file, "yolo")
    if (path / ROBOFLOW_NAME).is_file():
        return LabelSource(path / ROBOFLOW_NAME, "json")
    if (path / "Annotations").is_dir() or next(path.glob("*.xml"), None) is not None:
        raise InputError(
            f"`{path}` holds labels of Pascal VOC, which are not read: convert them to COCO's format first, as "
            "labelformat and supervision do."
        )
    return LabelSource(path, "folders")


def _yaml_in(folder: Path) -> Path | None:
    """The `data.yaml` of a folder, or its only YAML file if that describes a YOLO data set."""
    for name in YAML_NAMES:
        if (folder / name).is_file():
            return folder / name
    files = [file for suffix in YAML_SUFFIXES for file in folder.glob(f"*{suffix}")]
    if len(files) == 1 and re.search(rb"(?m)^(names|nc)\s*:", files[0].read_bytes()):
        return files[0]
    return None
