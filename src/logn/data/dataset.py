"""The images and classes of a data set: with boxes (LVIS, COCO, YOLO), or with one class per image."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from logn.data.class_names import NoSharedNamesError, match_classes
from logn.data.class_tables import naming, read_table
from logn.data.coco import LabelledImage
from logn.data.images import ImageArray, images_in, is_image, read_rgb
from logn.data.label_sources import DEFAULT_SPLIT, LabelSource, find_labels, split_folders, subfolders
from logn.data.labels import IntArray, Labels, fingerprint_images
from logn.errors import InputError


class DetectionDataset:
    """The images and classes of a data set with boxes.

    Foreground classes are sorted by id; gaps in the ids, as COCO has them, are closed, and `category_ids` leads back.

    Args:
        annotation_file: An LVIS v1 or COCO JSON file; the `data.yaml` of YOLO labels, or its folder, whose split
            follows a colon, as in `data.yaml:train`; it is "val" by default.
        image_root: The folder that the paths in the file start from; by default the folder of the file. LVIS gives
            paths only as `coco_url`: its last two parts (`train2017/000000391895.jpg`) and its last part are tried.
        outlines: Keep the outlines of objects.

    Attributes:
        labels: What was read.
    """

    def __init__(
        self,
        annotation_file: str | os.PathLike[str],
        image_root: str | os.PathLike[str] | None = None,
        *,
        outlines: bool = False,
    ) -> None:
        self.annotation_file = Path(annotation_file)
        self.image_root = find_labels(annotation_file).root if image_root is None else Path(image_root)
        self.labels = Labels.load(annotation_file, outlines=outlines)
        self.labels.require("images", "categories")
        for image in self.labels.images:
            height, width = self._size(image)
            if min(height, width) < 1:
                raise InputError(
                    f"Image {image.id} of `{annotation_file}` has height {height} and width {width}: both must be at "
                    "least 1."
                )
            if not image.names:
                raise InputError(f"Image {image.id} of `{annotation_file}` has neither `file_name` nor `coco_url`.")

    def _size(self, image: LabelledImage) -> tuple[int, int]:
        if image.height is None or image.width is None:
            raise InputError(f"Image {image.id} of `{self.annotation_file}` has no `height` or no `width`.")
        return image.height, image.width

    def __len__(self) -> int:
        return len(self.labels.images)

    def __repr__(self) -> str:
        counts = f"{len(self)} images, {self.num_classes} classes, {len(self.labels)} annotations"
        return f"{type(self).__name__}({str(self.annotation_file)!r}: {counts})"

    @property
    def num_classes(self) -> int:
        """Number of foreground classes."""
        return len(self.labels.categories)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each foreground class."""
        return self.labels.class_names

    @property
    def category_ids(self) -> IntArray:
        """The id in the file of each foreground class."""
        return self.labels.category_ids

    @property
    def image_ids(self) -> IntArray:
        """The id in the file of each image."""
        return self.labels.image_ids

    @property
    def images_fingerprint(self) -> str:
        """Digest of the ids and file names of all images, which differs for two data sets with the same ids."""
        return fingerprint_images(self.labels.images)

    def image_path(self, index: int) -> Path:
        """Path of an image; an error that names the places tried if there is none."""
        image = self.labels.images[index]
        tried = [self.image_root / name for name in image.names]
        for path in tried:
            if path.is_file():
                return path
        places = " or ".join(f"`{path}`" for path in tried)
        raise InputError(
            f"Image {image.id} of `{self.annotation_file}` is not at {places}: put it there, or pass the "
            "folder that paths start from, `image_root`."
        )

    def image_paths(self) -> list[Path]:
        """Path of each image; an error that names the first that is missing."""
        return [self.image_path(index) for index in range(len(self))]

    def read_image(self, index: int) -> ImageArray:
        """An image as RGB, `(height, width, 3)`."""
        size = self._size(self.labels.images[index])
        path = self.image_path(index)
        image = read_rgb(path)
        if image.shape[:2] != size:
            raise InputError(
                f"`{path}` has height and width {image.shape[:2]}, but `{self.annotation_file}` says {size}: pass the "
                "images that were annotated."
            )
        return image


class ClassificationDataset:
    """Images with one class each: a folder per class, as ImageNet has it, or a list of paths and classes.

    Args:
        source: A folder with a folder of images per class, or with such folders per split (`train`, `val`, `test`; the
            split follows a colon, as in `imagenet:test`, and is "val" by default). Or a `.txt` list with a path and a
            class per line, as ImageNet-LT has it; or a `.csv` table with columns `path` and `label`.
        image_root: Of a list: the folder that its paths start from; by default the folder of the list.

    Attributes:
        source: What it was read from.
        root: The folder that the paths start from.
        paths: Path of each image.
        classes: The classes by name, sorted.
        labels: `(N,)` index in `classes` of each image.
    """

    def __init__(self, source: str | os.PathLike[str], image_root: str | os.PathLike[str] | None = None) -> None:
        where = find_labels(source)
        self.source, self.is_list = Path(source), where.form == "list"
        if self.is_list:
            self.root = where.root if image_root is None else Path(image_root)
            names, texts = _read_list(where.path)
            self.paths = [self.root / name for name in names]
        else:
            if image_root is not None:
                raise InputError(f"`{source}` holds its images itself: leave out `images`.")
            self.root = _split_folder(where)
            self.paths, texts = _in_class_folders(self.root)
        self.classes = tuple(sorted(set(texts)))
        index_of = {name: index for index, name in enumerate(self.classes)}
        self.labels: IntArray = np.array([index_of[text] for text in texts], np.int64)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def numbers(self) -> list[int] | None:
        """The classes as numbers; None unless all are."""
        is_numbered = all(name.isascii() and name.isdecimal() for name in self.classes)
        return [int(name) for name in self.classes] if is_numbered else None

    def image_paths(self) -> list[Path]:
        """Path of each image; an error if the first is missing."""
        if not self.paths[0].is_file():
            raise InputError(
                f"The first image of `{self.source}` is not at `{self.paths[0]}`: pass the folder that its paths start "
                "from as `images`."
            )
        return self.paths

    def columns(self, class_names: Sequence[str] | None, num_columns: int, model: str = "the model") -> IntArray:
        """The column of the model that each of `classes` is: by name, never by place; -1 for one that it lacks.

        Numbers are columns, counted from 0: in a list, and as names of folders if the model has no names. Numbers that
        can be read in two ways are refused.

        Args:
            class_names: Name of each column; None if the model has none.
            num_columns: Columns of its logits.
            model: What to call it in messages.
        """
        numbers = self.numbers
        names = None if class_names is None or _are_places(class_names) else tuple(class_names)
        if numbers and (names is None or (self.is_list and not any(name.isdecimal() for name in names))):
            return self._numbered(numbers, num_columns, model)
        if numbers and self.is_list:
            raise InputError(
                f"The labels of `{self.source}` are numbers, and so are class names of {model}: write names or columns "
                "that cannot be mistaken for each other."
            )
        if names is None:
            raise InputError(
                f"`{self.source}` has class names, but {model} has none to match them with: pass `class_names`, "
                "one name per column in the order of training."
            )
        try:
            return match_classes(names, self.classes, "labels").model_of_label
        except NoSharedNamesError as error:
            raise NoSharedNamesError(f"{error} A list of paths and numbers is matched by column.") from error

    def _numbered(self, numbers: Sequence[int], num_columns: int, model: str) -> IntArray:
        """Numbers as columns; those out of range, twice, or of folders that sort in another order are refused."""
        if max(numbers) >= num_columns:
            raise InputError(
                f"The classes of `{self.source}` go up to {max(numbers)}, but {model} has {num_columns} columns, "
                "counted from 0."
            )
        widths = {len(name) for name in self.classes}
        is_sorted = num_columns <= 10 or (len(widths) == 1 and min(widths) >= len(str(num_columns - 1)))
        if len({*numbers}) < len(numbers) or not (self.is_list or is_sorted):
            raise InputError(
                f"The classes of `{self.source}` can be columns, or names that training sorted as text (10 before 2): "
                "pass `class_names`, one name per column."
            )
        return np.array(numbers, np.int64)


def _are_places(names: Sequence[str]) -> bool:
    """Whether names only number the columns from 0, as exporters write them that know none."""
    return all(re.fullmatch(rf"(?:class|label)?[ _-]?0*{column}", name, re.I) for column, name in enumerate(names))


def _split_folder(source: LabelSource) -> Path:
    """The folder of class folders: that of the split, where there are any."""
    splits = split_folders(source.path)
    if not splits and source.split is None:
        return source.path
    split = source.split or DEFAULT_SPLIT
    if split not in splits:
        raise InputError(f"`{source.path}` has no split `{split}`; it has {', '.join(splits) or 'none'}.")
    return splits[split]


def _in_class_folders(root: Path) -> tuple[list[Path], list[str]]:
    """The images of each class folder, and their classes; other contents are refused."""
    if any(is_image(path) for path in root.iterdir()):
        raise InputError(
            f"`{root}` holds images outside of class folders: put each into the folder of its class, name the file "
            "of its boxes (.json, data.yaml), or pass images without labels as `images`."
        )
    pairs = [(path, folder.name) for folder in subfolders(root) for path in images_in(folder)]
    if len({name for _, name in pairs}) < 2:
        what = f"images of one class only ({pairs[0][1]})" if pairs else "no folder of images per class"
        raise InputError(f"`{root}` holds {what}: pass a folder with a folder of images for each class.")
    return [path for path, _ in pairs], [name for _, name in pairs]


def _read_list(path: Path) -> tuple[list[str], list[str]]:
    """The path and the class of each image in a list: the last word of a line, or the columns of a table."""
    with naming(path):
        if path.suffix.lower() == ".csv":
            pairs = [[row.get("path", "").strip(), row.get("label", "").strip()] for row in read_table(path)]
        else:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            pairs = [line.strip().rsplit(None, 1) for line in lines if line.strip()]
        wrong = next((number for number, pair in enumerate(pairs, 1) if len(pair) < 2 or not all(pair)), None)
        if wrong is not None:
            raise InputError(f"Entry {wrong} is not a path and a class; in a table these are `path` and `label`.")
        labels = [label for _, label in pairs]
        if len({*labels}) < 2:
            raise InputError(f"It lists {f'images of one class only ({labels[0]})' if labels else 'no images'}.")
        return [name for name, _ in pairs], labels


def open_dataset(
    source: str | os.PathLike[str], image_root: str | os.PathLike[str] | None = None
) -> DetectionDataset | ClassificationDataset:
    """The images that labels of any form name: of a detector, or of a classifier."""
    kind = ClassificationDataset if find_labels(source).is_of_classifier else DetectionDataset
    return kind(source, image_root)
