"""Labels of YOLO: a `data.yaml`, and beside each image a text file with a class and a box in each line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logn.base.files import file_identity, require_file
from logn.data.images import SUFFIXES
from logn.data.json_stream import Element
from logn.data.label_sources import DEFAULT_SPLIT, LabelSource, image_sizes, numbered
from logn.errors import InputError, warn

_KEYS = ("path", "train", "val", "validation", "test", "names", "nc", "kpt_shape")
_SPLITS = ("train", "val", "test")
_MOST_DIGITS = 6  # of a number of classes
#: Shares are written with six digits or so: what is rounded may end this far outside.
ROUNDING = 1e-6


@dataclass(frozen=True)
class YoloData:
    """What a `data.yaml` describes.

    Args:
        file: The file.
        names: The classes by number.
        splits: What it says of each split: folders, lists or images.
        folder: Where relative paths of splits start.
    """

    file: Path
    names: tuple[str, ...]
    splits: Mapping[str, tuple[str, ...]]
    folder: Path


def yolo_elements(source: LabelSource, *, sizes: bool = True) -> Iterator[Element]:
    """The classes, images and objects of a split, as the elements of a COCO file.

    An image without a text file, or with an empty one, has no objects. Ids of images are the numbers that their files
    are named by, where all are, else their places; class 0 gets id 1, as in the result files of Ultralytics. An outline
    gives the box around it. Boxes that come twice in a file count once.

    Args:
        source: The `data.yaml` and the split.
        sizes: Read the sizes of the images, without which there are no boxes.
    """
    data = read_yolo_data(source.path)
    images = split_images(data, source.split or DEFAULT_SPLIT)
    for number, name in enumerate(data.names):
        yield Element("categories", {"id": number + 1, "name": name}, -1, -1)
    labelled, count = False, 0
    ids = numbered([Path(path).stem for path in images])
    measured = image_sizes(images) if sizes else [None] * len(images)
    for path, image_id, size in zip(images, ids, measured, strict=True):
        entry: dict[str, Any] = {"id": image_id, "file_name": Path(os.path.relpath(path, source.root)).as_posix()}
        if size is not None:
            entry |= {"width": size[0], "height": size[1]}
        yield Element("images", entry, -1, -1)
        rows = _rows(label_file(path), data)
        labelled = labelled or rows is not None
        for (label, *box), outline in dict(rows or ()).items():
            count += 1
            thing = {"id": count, "image_id": image_id, "category_id": int(label) + 1, "iscrowd": 0}
            yield Element("annotations", thing | (_in_pixels(box, outline, size) if size else {}), -1, -1)
    if not labelled:
        warn(
            f"None of the {len(images)} images of `{source.path}` has a label file, so all count as images without "
            f"objects. The first was looked for at `{label_file(images[0])}`."
        )


def label_file(image: str) -> str:
    """Where the labels of an image are: the last folder `images` of its path becomes `labels`.

    Example:
        >>> Path(label_file("coco8/images/val/000000000036.jpg")).as_posix()
        'coco8/labels/val/000000000036.txt'
    """
    path = Path(image)
    folders = list(path.parts[:-1])
    if "images" in folders:
        folders[len(folders) - 1 - folders[::-1].index("images")] = "labels"
    return str(Path(*folders, f"{path.stem}.txt"))


def read_yolo_data(file: Path) -> YoloData:
    """Read a `data.yaml`, and refuse one whose classes are not clear."""
    found = _read_yaml(file)
    if "kpt_shape" in found:  # the numbers of a pose would be taken for an outline
        raise InputError(f"`{file}` describes poses (`kpt_shape`): pass a data set of boxes or outlines.")
    found["val"] = found.get("val") or found.get("validation")
    splits = {name: _texts(file, name, found[name]) for name in _SPLITS if found.get(name)}
    return YoloData(file, _class_names(file, found), splits, _folder(file, found.get("path")))


def _read_yaml(file: Path) -> dict[str, Any]:
    """The keys of a `data.yaml`; every scalar is a text, so that a class may be called `no` or `1e3`."""
    import yaml

    class Loader(yaml.BaseLoader):  # type: ignore[misc]  # makes texts, lists and mappings only
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for item, _ in node.value:
                key = self.construct_object(item, deep=True)
                if isinstance(key, str) and key in seen:
                    line = item.start_mark.line + 1
                    raise InputError(f"Line {line} of `{file}` has `{key}` for the second time: remove one of them.")
                seen.update([key] if isinstance(key, str) else [])
            return super().construct_mapping(node, deep)

        def compose_node(self, parent: Any, index: Any) -> Any:
            is_alias = self.check_event(yaml.AliasEvent)
            node = super().compose_node(parent, index)
            if is_alias and not isinstance(node, yaml.ScalarNode):  # a few of lists in lists stand for millions
                raise InputError(f"`{file}` has an alias of a list or a mapping: write out what it stands for.")
            return node

    require_file(file, "a `data.yaml`")
    try:
        content = Loader(file.read_text(encoding="utf-8-sig")).get_single_data()
    except UnicodeDecodeError as error:
        raise InputError(f"`{file}` is not UTF-8 text: {error}.") from None
    except yaml.YAMLError as error:
        raise InputError(f"`{file}` is not valid YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise InputError(f"`{file}` is not a `data.yaml`: it is nested too deep.") from None
    if not isinstance(content, dict):
        raise InputError(f"`{file}` has no `key: value` lines, as a `data.yaml` has them.")
    return {key: content[key] for key in _KEYS if content.get(key) not in (None, "", "~", "null")}


def _texts(file: Path, key: str, value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    if isinstance(value, dict) or not all(isinstance(item, str) for item in listed):
        raise InputError(f"`{key}` of `{file}` must be a path or a list of paths, but is {value!r:.60}.")
    return tuple(listed)


def _class_names(file: Path, found: Mapping[str, Any]) -> tuple[str, ...]:
    names, number = found.get("names"), found.get("nc")
    if number is not None and not (isinstance(number, str) and number.isdecimal() and len(number) <= _MOST_DIGITS):
        raise InputError(f"`nc` of `{file}` must be a number of classes, but is {number!r:.60}.")
    if names is None and number is not None:
        return tuple(f"class_{place}" for place in range(int(number)))
    if isinstance(names, dict):
        keys = [str(place) for place in range(len(names))]
        if set(names) != set(keys):
            lacking = next(key for key in keys if key not in names)
            raise InputError(
                f"`names` of `{file}` must number the classes from 0 to {len(names) - 1}, but lacks {lacking}."
            )
        names = [names[key] for key in keys]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"`names` of `{file}` must name the classes, but is {names!r:.60}.")
    if number is not None and int(number) != len(names):
        raise InputError(f"`nc` of `{file}` is {number}, but `names` has {len(names)} classes: correct one of them.")
    return tuple(names)


def _folder(file: Path, path: Any) -> Path:
    """Where splits start: `path`, from the folder of the file, from here, or from one up; the file's folder if none."""
    if path is None:
        return file.parent
    if not isinstance(path, str):
        raise InputError(f"`path` of `{file}` must be a folder, but is {path!r:.60}.")
    places = [file.parent / path, Path(path), file.absolute().parent.parent / path]
    for place in places:
        if place.is_dir():
            return place
    tried = " or ".join(f"`{place}`" for place in dict.fromkeys(places))
    raise InputError(f"`path` of `{file}` is not a folder: nothing is at {tried}.")


def split_images(data: YoloData, split: str) -> list[str]:
    """The images of a split, sorted by path; one that is listed twice counts once."""
    if split not in data.splits:
        known = ", ".join(f"`{data.file}:{name}`" for name in data.splits) or "none at all"
        raise InputError(f"`{data.file}` has no split `{split}`; it has {known}.")
    images = sorted({image for text in data.splits[split] for image in _images_at(data, split, text)})
    if not images:
        places = ", ".join(f"`{_resolved(data, text)}`" for text in data.splits[split])
        raise InputError(f"`{data.file}:{split}` has no images: there are none in {places}.")
    return images


def _resolved(data: YoloData, text: str) -> Path:
    place = data.folder / text
    if not place.exists() and text.startswith("../"):  # Roboflow's files name the folder above their own
        place = data.folder / text[3:]
    return place


def _images_at(data: YoloData, split: str, text: str) -> list[str]:
    place = _resolved(data, text)
    if place.is_dir():
        return list(_images_below(str(place)))
    if not place.is_file():
        raise InputError(
            f"`{split}` of `{data.file}` leads to `{place}`, which does not exist: correct `path` or `{split}`."
        )
    return [str(place)] if place.suffix.lower() in SUFFIXES else _listed_images(place, data.folder)


def _images_below(folder: str, above: frozenset[object] = frozenset()) -> Iterator[str]:
    """The images of a folder and of those in it; links are followed, but not back into a folder `above`."""
    here = above | {file_identity(folder)}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if file_identity(entry.path) not in here:
                    yield from _images_below(entry.path, here)
            elif entry.name.lower().endswith(SUFFIXES):
                yield entry.path


def _listed_images(file: Path, folder: Path) -> list[str]:
    found = []
    for number, line in enumerate(_lines(str(file)) or (), start=1):
        if not line.strip():
            continue
        places = [base / line.strip() for base in (file.parent, folder, Path())]
        image = next((place for place in places if place.is_file()), None)
        if image is None:
            raise InputError(f"Line {number} of `{file}` names an image that does not exist: `{places[0]}`.")
        found.append(str(image))
    return found


# Class, centre, width and height; and the outline, empty where the label is a box.
Row = tuple[tuple[float, float, float, float, float], list[float]]


def _rows(file: str, data: YoloData) -> list[Row] | None:
    """The objects of an image; None where it has no file."""
    lines = _lines(file)
    if lines is None:
        return None
    return [_row(file, number, line, data) for number, line in enumerate(lines, start=1) if line.strip()]


def _row(file: str, number: int, line: str, data: YoloData) -> Row:
    """Class, box and outline of a line."""
    try:
        label, *values = map(float, line.split())
    except ValueError:
        raise _fault(file, number, "numbers", line) from None
    if not (label.is_integer() and 0 <= label < len(data.names)):
        raise _fault(file, number, f"a class from 0 to {len(data.names) - 1}", line.split()[0])
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise _fault(file, number, "a class and a box (5 numbers) or an outline (7, 9 and so on)", line)
    if not all(-ROUNDING <= value <= 1 + ROUNDING for value in values):
        outside = next(value for value in values if not -ROUNDING <= value <= 1 + ROUNDING)
        raise _fault(file, number, "coordinates from 0 to 1, as shares of the image", f"{outside:g}")
    if len(values) == 4:
        return (label, values[0], values[1], values[2], values[3]), []
    across, down = values[0::2], values[1::2]
    left, right, top, bottom = min(across), max(across), min(down), max(down)
    return (label, (left + right) / 2, (top + bottom) / 2, right - left, bottom - top), values


def _fault(file: str, number: int, expected: str, got: str) -> InputError:
    return InputError(f"Line {number} of `{file}` must have {expected}, but has {got.strip()!r:.60}.")


def _lines(file: str) -> list[str] | None:
    try:
        with open(file, "rb") as opened:
            return opened.read().decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InputError(f"`{file}` is not UTF-8 text: {error}.") from None


def _in_pixels(box: Sequence[float], outline: Sequence[float], size: tuple[int, int]) -> dict[str, Any]:
    across, down, width, height = box
    width, height = width * size[0], height * size[1]
    corner = [across * size[0] - width / 2, down * size[1] - height / 2]
    polygon = [share * size[place % 2] for place, share in enumerate(outline)]
    masks = {"segmentation": [polygon]} if polygon else {}
    return {"bbox": [*corner, width, height], "area": width * height, **masks}
