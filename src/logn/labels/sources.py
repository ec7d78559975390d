"""Where labels are and in which form: a COCO or LVIS file, a YOLO `data.yaml`, or a folder of Pascal VOC."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

YAML_SUFFIXES = (".yaml", ".yml")
YAML_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
ROBOFLOW_NAME = "_annotations.coco.json"
#: The split that is measured where none is named, as in Ultralytics.
DEFAULT_SPLIT = "val"


@dataclass(frozen=True)
class LabelSource:
    """Labels on disk.

    Args:
        path: A JSON file, a `data.yaml`, or the folder of VOC's XML files.
        form: "json", "yolo" or "voc".
        split: Which part of them was named behind a colon, as in `data.yaml:test`; None for no word on it.
    """

    path: Path
    form: str
    split: str | None = None

    @property
    def root(self) -> Path:
        """The folder that the paths of the images start from."""
        return self.path if self.form == "voc" else self.path.parent

    @property
    def has_splits(self) -> bool:
        """Whether a split has to be named or assumed."""
        return self.form == "yolo" or (self.form == "voc" and image_sets(self.path).is_dir())


def image_sets(folder: Path) -> Path:
    """Where VOC keeps the lists of its splits."""
    return folder / "ImageSets" / "Main"


def find_labels(source: str | os.PathLike[str]) -> LabelSource:
    """See what a path stands for; what is nothing else is taken as a JSON file, whose reader says what is wrong.

    Example:
        >>> found = find_labels("coco/data.yaml:test")
        >>> found.path.name, found.form, found.split
        ('data.yaml', 'yolo', 'test')
        >>> find_labels("val.json").form
        'json'
    """
    path = Path(source)
    before, colon, split = os.fspath(source).rpartition(":")
    if colon and before and split.isidentifier() and not path.exists():
        named = _form_of(Path(before))
        if named is not None and named.form != "json":
            return LabelSource(named.path, named.form, split)
    return _form_of(path) or LabelSource(path, "json")


def with_split(source: str | os.PathLike[str], split: str) -> Path:
    """Labels that have splits with one of them named: `split`, unless the source names another itself.

    Example:
        >>> with_split("data.yaml", "train").name, with_split("data.yaml:val", "train").name
        ('data.yaml:train', 'data.yaml:val')
        >>> with_split("train.json", "train").name
        'train.json'
    """
    found = find_labels(source)
    if found.split is not None or not found.has_splits:
        return Path(source)
    return Path(f"{found.path}:{split}")


def are_labels(source: str | os.PathLike[str]) -> bool:
    """Whether a path is a `data.yaml` or a folder with one, or a folder of VOC; with or without a split."""
    return find_labels(source).form != "json"


def _form_of(path: Path) -> LabelSource | None:
    if path.suffix.lower() in YAML_SUFFIXES:
        return LabelSource(path, "yolo")
    if not path.is_dir():
        return None
    if file := _yaml_in(path):
        return LabelSource(file, "yolo")
    if (path / ROBOFLOW_NAME).is_file():
        return LabelSource(path / ROBOFLOW_NAME, "json")
    if (path / "Annotations").is_dir() or next(path.glob("*.xml"), None) is not None:
        return LabelSource(path, "voc")
    return None


def _yaml_in(folder: Path) -> Path | None:
    """The `data.yaml` of a folder, or the only file there that describes a data set of YOLO under another name."""
    for name in YAML_NAMES:
        if (folder / name).is_file():
            return folder / name
    files = [file for suffix in YAML_SUFFIXES for file in folder.glob(f"*{suffix}")]
    if len(files) == 1 and re.search(rb"(?m)^(names|nc)\s*:", files[0].read_bytes()):
        return files[0]
    return None
