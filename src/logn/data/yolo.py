"""Labels of YOLO: a `data.yaml`, and beside each image a text file with a class and a box in each line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from logn.base.files import require_file
from logn.data.coco import Category, LabelledImage, LabelledObject, OutlinedObject
from logn.data.images import SUFFIXES, image_sizes
from logn.data.label_sources import DEFAULT_SPLIT, LabelSource
from logn.errors import InputError, warn

_SPLITS = ("train", "val", "test")
#: Shares are written with six digits or so: what is rounded may end this far outside.
ROUNDING = 1e-6


class DataYaml(msgspec.Struct):
    """The keys of a `data.yaml`."""

    path: str | None = None
    train: list[str] | str | None = None
    val: list[str] | str | None = None
    validation: list[str] | str | None = None
    test: list[str] | str | None = None
    names: list[str] | dict[int, str] | None = None
    nc: Annotated[int, msgspec.Meta(ge=1, lt=1_000_000)] | None = None
    kpt_shape: Any = None

    def splits(self) -> dict[str, tuple[str, ...]]:
        """The folders, lists or images of each split that there is."""
        listed = {"train": self.train, "val": self.val or self.validation, "test": self.test}
        return {name: (value,) if isinstance(value, str) else tuple(value) for name, value in listed.items() if value}


# Class, centre, width and height, in shares of the image.
Row = tuple[int, float, float, float, float]


class YoloReader:
    """Read the classes, images and objects of a split.

    An image without a text file, or with an empty one, has no objects. Ids of images are the numbers that their files
    are named by, where all are, else their places; class 0 gets id 1, as in the result files of Ultralytics. An outline
    gives the box around it.

    Args:
        source: The `data.yaml` and the split.
        sizes: Read the sizes of the images, without which there are no boxes.
        outlines: Keep the outlines of objects.
    """

    def __init__(self, source: LabelSource, *, sizes: bool = True, outlines: bool = False) -> None:
        self._source, self._outlines = source, outlines
        self.names, yaml_file = read_yolo_data(source.path)
        self._paths = split_images(source.path, yaml_file, source.split or DEFAULT_SPLIT)
        self._ids = numbered([Path(path).stem for path in self._paths])
        self._sizes = image_sizes(self._paths) if sizes else None

    def categories(self) -> list[Category]:
        """The classes."""
        return [Category(number, name) for number, name in enumerate(self.names, start=1)]

    def images(self) -> list[LabelledImage]:
        """The images of the split; their names start from the folder of the `data.yaml`."""
        names = [Path(os.path.relpath(path, self._source.root)).as_posix() for path in self._paths]
        sizes: Sequence[tuple[int | None, int | None]] = self._sizes or [(None, None)] * len(names)
        return [
            LabelledImage(number, name, width=width, height=height)
            for number, name, (width, height) in zip(self._ids, names, sizes, strict=True)
        ]

    def objects(self) -> list[LabelledObject]:
        """The objects of all images; a warning says when no image has a label file."""
        objects: list[LabelledObject] = []
        is_labelled = False
        for index, path in enumerate(self._paths):
            lines = _lines(Path(label_file(path)))
            is_labelled = is_labelled or lines is not None
            # A box that comes twice in a file counts once.
            rows = dict(self._row(label_file(path), number, line) for number, line in lines or ())
            objects += [self._object(index, row, outline) for row, outline in rows.items()]
        if not is_labelled:
            warn(
                f"None of the {len(self._paths)} images of `{self._source.path}` has a label file, so all count as "
                f"images without objects. The first was looked for at `{label_file(self._paths[0])}`."
            )
        return objects

    def _object(self, index: int, row: Row, outline: list[float]) -> LabelledObject:
        image_id, category_id = self._ids[index], row[0] + 1
        if self._sizes is None:
            return LabelledObject(image_id, category_id)
        size = self._sizes[index]
        width, height = row[3] * size[0], row[4] * size[1]
        box = (row[1] * size[0] - width / 2, row[2] * size[1] - height / 2, width, height)
        if not self._outlines:
            return LabelledObject(image_id, category_id, box)
        polygon = [share * size[place % 2] for place, share in enumerate(outline)]
        segmentation = msgspec.Raw(msgspec.json.encode([polygon])) if polygon else msgspec.Raw()
        return OutlinedObject(image_id, category_id, box, segmentation=segmentation)

    def _row(self, file: str, number: int, line: str) -> tuple[Row, list[float]]:
        """Class and box of a line, and its outline, which is empty where the label is a box."""
        try:
            label, *values = map(float, line.split())
        except ValueError:
            raise _fault(file, number, "numbers", line) from None
        if not (label.is_integer() and 0 <= label < len(self.names)):
            raise _fault(file, number, f"a class from 0 to {len(self.names) - 1}", line.split()[0])
        if len(values) != 4 and (len(values) < 6 or len(values) % 2):
            raise _fault(file, number, "a class and a box (5 numbers) or an outline (7, 9 and so on)", line)
        outside = [value for value in values if not -ROUNDING <= value <= 1 + ROUNDING]
        if outside:
            raise _fault(file, number, "coordinates from 0 to 1, as shares of the image", f"{outside[0]:g}")
        if len(values) == 4:
            return (int(label), values[0], values[1], values[2], values[3]), []
        left, right, top, bottom = min(values[0::2]), max(values[0::2]), min(values[1::2]), max(values[1::2])
        return (int(label), (left + right) / 2, (top + bottom) / 2, right - left, bottom - top), values


def _fault(file: str, number: int, expected: str, got: str) -> InputError:
    return InputError(f"Line {number} of `{file}` must have {expected}, but has {got.strip()!r:.60}.")


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


def read_yolo_data(file: Path) -> tuple[tuple[str, ...], DataYaml]:
    """The class names and the keys of a `data.yaml`; one whose classes are not clear is refused."""
    import yaml

    require_file(file)
    try:
        # This loader makes texts, lists and mappings only, so that a class may be called `no` or `1e3`.
        content = yaml.load(file.read_text(encoding="utf-8-sig"), Loader=yaml.BaseLoader)  # noqa: S506
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"`{file}` is not valid YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise InputError(f"`{file}` has no `key: value` lines, as a `data.yaml` has them.")
    try:
        data = msgspec.convert(
            {key: value for key, value in content.items() if value not in ("", "~", "null")}, DataYaml, strict=False
        )
    except msgspec.ValidationError as error:
        raise InputError(f"`{file}` is not as a `data.yaml` must be: {error}.") from error
    if data.kpt_shape is not None:  # the numbers of a pose would be taken for an outline
        raise InputError(f"`{file}` describes poses (`kpt_shape`): pass a data set of boxes or outlines.")
    return _class_names(file, data), data


def _class_names(file: Path, data: DataYaml) -> tuple[str, ...]:
    names = data.names
    if names is None and data.nc is not None:
        return tuple(f"class_{number}" for number in range(data.nc))
    if isinstance(names, dict):
        lacking = next((number for number in range(len(names)) if number not in names), None)
        if lacking is not None:
            raise InputError(
                f"`names` of `{file}` must number the classes from 0 to {len(names) - 1}, but lacks {lacking}."
            )
        names = [names[number] for number in range(len(names))]
    if not names or not all(names):
        raise InputError(f"`names` of `{file}` must name the classes.")
    if data.nc not in (None, len(names)):
        raise InputError(f"`nc` of `{file}` is {data.nc}, but `names` has {len(names)} classes: correct one of them.")
    return tuple(names)


def _folder(file: Path, path: str | None) -> Path:
    """Where splits start: `path`, from the folder of the file, from here, or from one up; the file's folder if none."""
    if path is None:
        return file.parent
    places = [file.parent / path, Path(path), file.absolute().parent.parent / path]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        tried = " or ".join(f"`{place}`" for place in dict.fromkeys(places))
        raise InputError(f"`path` of `{file}` is not a folder: nothing is at {tried}.")
    return folder


def split_images(file: Path, data: DataYaml, split: str) -> list[str]:
    """The images of a split, sorted by path; one that is listed twice counts once."""
    splits, folder = data.splits(), _folder(file, data.path)
    if split not in splits:
        available = ", ".join(f"`{file}:{name}`" for name in splits) or "none at all"
        raise InputError(f"`{file}` has no split `{split}`; it has {available}.")
    images: set[str] = set()
    for text in splits[split]:
        path = folder / text
        if not path.exists() and text.startswith("../"):  # Roboflow's files name the folder above their own
            path = folder / text[3:]
        if not path.exists():
            raise InputError(
                f"`{split}` of `{file}` leads to `{path}`, which does not exist: correct `path` or `{split}`."
            )
        if path.is_dir():
            images.update(_images_below(path))
        else:
            is_image = path.suffix.lower() in SUFFIXES
            images.update([str(path)] if is_image else _listed_images(path, folder))
    if not images:
        raise InputError(f"`{file}:{split}` has no images: there are none in {', '.join(splits[split])}.")
    return sorted(images)


def _images_below(folder: Path) -> list[str]:
    """The images of a folder and of those in it; links are followed, each folder once."""
    images: list[str] = []
    walked: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        if os.path.realpath(parent) in walked:
            folders.clear()
            continue
        walked.add(os.path.realpath(parent))
        images += [os.path.join(parent, name) for name in files if name.lower().endswith(SUFFIXES)]
    return images


def _listed_images(file: Path, folder: Path) -> list[str]:
    images = []
    for number, line in _lines(file) or ():
        places = [base / line.strip() for base in (file.parent, folder, Path())]
        image = next((place for place in places if place.is_file()), None)
        if image is None:
            raise InputError(f"Line {number} of `{file}` names an image that does not exist: `{places[0]}`.")
        images.append(str(image))
    return images


def _lines(file: Path) -> list[tuple[int, str]] | None:
    """The lines that are not empty, with their numbers from 1; None where there is no file."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InputError(f"`{file}` is not UTF-8 text: {error}.") from None
    return [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]


def numbered(stems: Sequence[str]) -> list[int]:
    """Ids of images by the names of their files: the numbers that they are, or else their places from 1 on.

    Example:
        >>> numbered(["000391", "000007"]), numbered(["a", "b"]), numbered(["1", "01"])
        ([391, 7], [1, 2], [1, 2])
    """
    if all(stem.isascii() and stem.isdecimal() and len(stem) < 19 for stem in stems):
        numbers = [int(stem) for stem in stems]
        if len(set(numbers)) == len(numbers):
            return numbers
    return list(range(1, len(stems) + 1))
