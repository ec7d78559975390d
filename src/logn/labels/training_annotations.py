"""Which annotations of a folder are those of training."""

from __future__ import annotations

from pathlib import Path

from logn.errors import InputError
from logn.labels.sources import are_labels, find_labels, with_split

ANNOTATION_NAMES = ("train.json", "annotations/train.json", "lvis_v1_train.json", "annotations/lvis_v1_train.json")


def find_annotations(data: str | Path) -> Path:
    """The annotations that `data` is, or that lie in the folder `data`; of YOLO and VOC those of training.

    A folder with a single JSON file needs no particular name.
    """
    path = Path(data)
    if path.is_file() or not path.is_dir():
        return _training_labels(path)
    for name in ANNOTATION_NAMES:
        if (path / name).is_file():
            return path / name
    if are_labels(path) or find_labels(path).path != path:
        return _training_labels(path)
    found = sorted(path.glob("*.json"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(file.name for file in found[:5]) or "no JSON file at all"
    raise InputError(f"Expected `{path}` to hold `train.json`, but it holds {names}; name the file itself.")


def _training_labels(path: Path) -> Path:
    found = find_labels(path)
    if not found.path.exists():
        raise InputError(f"Expected `data` to be an annotation file or a folder, but there is no `{path}`.")
    return found.path if found.form == "json" else with_split(path, "train")
