"""Images with one class each: glyph classes, class folders, and the list files of ImageNet-LT and its like."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from logn.data.images import SUFFIXES, ImageArray, read_rgb
from logn.errors import InputError

IntArray = npt.NDArray[np.int64]
SPLITS = ("train", "dev", "test")
#: Words of folders and files by which splits are recognised.
SPLIT_WORDS = {
    "train": ("train", "training"),
    "dev": ("dev", "val", "valid", "validation"),
    "test": ("test", "testing"),
}


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images with one class each, in one array or one file an image.

    Args:
        pixels: uint8 `(N, height, width, 3)`, which may be mapped from a file, or the path of each image.
        labels: The class of each image, int64 `(N,)`.
        class_names: One name a class; also says how many classes there are.
        families: The look-alike family of each class, where the source knows it.
        source: Where all this was read from, for messages.

    Example:
        >>> images = LabelledImages(np.zeros((3, 8, 8, 3), np.uint8), [0, 2, 0], ("a", "b", "c"))
        >>> len(images), images.image_counts.tolist(), images.image(1).shape
        (3, [2, 0, 1], (8, 8, 3))
        >>> images.subset([1]).labels.tolist()
        [2]
    """

    pixels: npt.NDArray[np.uint8] | tuple[Path, ...]
    labels: IntArray
    class_names: tuple[str, ...]
    families: tuple[int, ...] | None = None
    source: str = "images"

    def __post_init__(self) -> None:
        pixels = self.pixels
        if isinstance(pixels, np.ndarray) and (pixels.shape[3:] != (3,) or pixels.dtype != np.uint8):
            raise InputError(
                f"Expected `pixels` to be uint8 of shape (images, height, width, 3), but got {pixels.dtype} of shape "
                f"{pixels.shape}."
            )
        labels: npt.NDArray[Any] = np.asarray(self.labels)
        if labels.shape != (len(pixels),) or (labels.size and not np.issubdtype(labels.dtype, np.integer)):
            raise InputError(
                f"Expected `labels` to be {len(pixels)} whole numbers, one an image, but got {labels.dtype} of shape "
                f"{labels.shape}."
            )
        outside = np.flatnonzero((labels < 0) | (labels >= len(self.class_names)))
        if len(outside):
            raise InputError(
                f"Expected the labels of `{self.source}` to be from 0 to {len(self.class_names) - 1}, but got "
                f"{labels[outside[0]]} for image {outside[0]}."
            )
        object.__setattr__(self, "labels", labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"LabelledImages({self.source!r}: {len(self)} images, {self.num_classes} classes)"

    @property
    def num_classes(self) -> int:
        """How many classes there are, with or without images."""
        return len(self.class_names)

    @cached_property
    def image_counts(self) -> IntArray:
        """How many images each class has here, int64 `(C,)`."""
        return np.bincount(self.labels, minlength=self.num_classes).astype(np.int64)

    def image(self, index: int) -> ImageArray:
        """One image as uint8 RGB of shape `(height, width, 3)`; an error names a file that is missing or broken."""
        chosen = self.pixels[index]
        return read_rgb(chosen) if isinstance(chosen, Path) else np.array(chosen)

    def stack(self, indices: Iterable[int]) -> ImageArray:
        """Several images of one size as uint8 `(B, height, width, 3)`; quick where they lie in one array."""
        if isinstance(self.pixels, np.ndarray):
            return np.asarray(self.pixels[np.fromiter(indices, np.int64)])
        return np.stack([self.image(index) for index in indices])

    def labels_per_image(self) -> list[IntArray]:
        """The one class of each image as an array, as the samplers want them."""
        return list(self.labels[:, None])

    def subset(self, indices: npt.ArrayLike) -> LabelledImages:
        """The images at these places, with all classes; files are not read."""
        rows = np.asarray(indices, np.int64)
        if isinstance(self.pixels, np.ndarray):
            return replace(self, pixels=self.pixels[rows], labels=self.labels[rows])
        return replace(self, pixels=tuple(self.pixels[row] for row in rows.tolist()), labels=self.labels[rows])


def array_images(
    array: npt.ArrayLike,
    labels: npt.ArrayLike,
    class_names: Sequence[str] | None = None,
    *,
    families: Sequence[int] | None = None,
    source: str = "images",
) -> LabelledImages:
    """Images from an array `(N, height, width, 3)` of uint8 and one label each.

    Args:
        array: The images; a memory map stays one.
        labels: Whole numbers from 0.
        class_names: Names of the classes; by default the numbers up to the largest label.
        families: The look-alike family of each class, if known.
        source: What to call the images in messages.

    Example:
        >>> array_images(np.zeros((2, 4, 4, 3), np.uint8), [0, 1]).class_names
        ('0', '1')
    """
    classes = np.asarray(labels)
    names = _numbered(int(classes.max()) + 1 if classes.size else 0) if class_names is None else tuple(class_names)
    of_classes = None if families is None else tuple(families)
    return LabelledImages(cast("Any", np.asanyarray(array)), cast(IntArray, classes), names, of_classes, source)


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


def require_every_class(images: LabelledImages) -> None:
    """Refuse images to train on that lack a class, and name it.

    Example:
        >>> require_every_class(array_images(np.zeros((1, 4, 4, 3), np.uint8), [1], ["cat", "dog"]))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `images` has no image of class 0 (`cat`).
    """
    for label in np.flatnonzero(images.image_counts == 0).tolist():
        raise InputError(f"`{images.source}` has no image of class {label} (`{images.class_names[label]}`).")


def open_images(
    source: str | os.PathLike[str],
    split: str = "train",
    *,
    root: str | os.PathLike[str] | None = None,
    class_names: str | os.PathLike[str] | None = None,
) -> LabelledImages:
    """Open one split of a set of labelled images.

    Args:
        source: One of: a folder that `logn data glyph-classes` wrote; a folder of class folders, or of `train`, `val`
            and `test` with those in them; a list file with `path label` lines (`ImageNet_LT_train.txt`), or the folder
            of such lists.
        split: `"train"`, `"dev"` (validation) or `"test"`. Without test images, `test` is the validation split, as
            ImageNet's and iNaturalist's results are reported.
        root: The folder that the paths of list files start from; by default that of the list.
        class_names: A file with one class name a line, for list files.

    Example:
        >>> import tempfile
        >>> from logn_research.datasets.glyphs.classes import GlyphClassSettings, generate_glyph_classes
        >>> settings = GlyphClassSettings(classes=3, most=4, fewest=2, dev=1, test=2)
        >>> folder = generate_glyph_classes(tempfile.mkdtemp(), settings)
        >>> open_images(folder, "test").image_counts.tolist()
        [2, 2, 2]
    """
    from logn_research.datasets.glyphs.classes import is_glyph_classes, read_glyph_classes

    path = Path(source)
    if split not in SPLITS:
        raise InputError(f"Expected `split` to be one of {SPLITS}, but got {split!r}.")
    if not path.exists() or (path.is_file() and path.suffix != ".txt"):
        raise InputError(f"`{path}` is neither a folder nor a list (.txt) of labelled images.")
    if path.is_dir() and is_glyph_classes(path):
        return read_glyph_classes(path, split)
    lists = _list_files(path)
    if lists:
        training = _chosen(lists, "train", path)
        images = read_class_list(training, root, class_names)
        # The training list says how many classes there are, so that a label beyond them is found.
        chosen = _chosen(lists, split, path)
        return images if chosen == training else read_class_list(chosen, root, images.class_names)
    if root is not None or class_names is not None:
        raise InputError(f"`root` and `class_names` are for list files, but `{path}` holds none.")
    return read_class_folders(path, split)


def _list_files(path: Path) -> dict[str, Path]:
    """The list file of each split, by the words in its name: `ImageNet_LT_val.txt` is dev."""
    words = {word: split for split, spellings in SPLIT_WORDS.items() for word in spellings}
    pattern = re.compile(rf"(?:^|[_\-. ])({'|'.join(words)})(?=[_\-. ]|$)")
    files = sorted((path if path.is_dir() else path.parent).glob("*.txt"))
    if path.is_file():
        files = [file for file in files if pattern.sub("*", file.stem.lower()) == pattern.sub("*", path.stem.lower())]
    splits = [(words[match[1]], file) for file in files if (match := pattern.search(file.stem.lower()))]
    if len({split for split, _ in splits}) < len(splits):
        raise InputError(f"`{path}` has several lists for one split: name the training list itself.")
    return dict(splits) or ({"train": path} if path.is_file() else {})


def _chosen(of_splits: dict[str, Path], split: str, source: Path) -> Path:
    chosen = of_splits.get(split) or (of_splits.get("dev") if split == "test" else None)
    if chosen is None:
        raise InputError(f"`{source}` has no {split} images.")
    return chosen


def read_class_folders(folder: str | os.PathLike[str], split: str = "train") -> LabelledImages:
    """Read class folders, classes in the order of their names; pictures are opened when they are asked for.

    Args:
        folder: A folder of class folders, which is then all training images, or of `train`, `val` and `test` with class
            folders in each.
        split: `"train"`, `"dev"` or `"test"`.
    """
    root = Path(folder)
    parts = {
        name: root / word for name, words in SPLIT_WORDS.items() for word in reversed(words) if (root / word).is_dir()
    }
    training = parts.get("train", root)
    names = tuple(sorted(path.name for path in training.iterdir() if path.is_dir() and path.name[0] != "."))
    chosen = _chosen({"train": training, **parts}, split, root)
    unknown = sorted({path.name for path in chosen.iterdir() if path.is_dir()} - set(names))
    if unknown:
        raise InputError(f"The class `{unknown[0]}` of `{chosen}` is not among those of `{training}`.")
    files = [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((chosen / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    if not files:
        raise InputError(f"`{chosen}` holds no images: put those of each class into a folder of its own.")
    paths, labels = zip(*files, strict=True)
    return LabelledImages(paths, np.array(labels, np.int64), names, source=str(chosen))


def read_class_list(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    class_names: Sequence[str] | str | os.PathLike[str] | None = None,
) -> LabelledImages:
    r"""Read a list file; images are opened when they are asked for.

    Args:
        path: The list, a line an image: its path, which may hold spaces, and its label, a whole number from 0.
        root: The folder that the paths start from; by default that of the list.
        class_names: The names of the classes, or a file with one a line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "ImageNet_LT_train.txt"
        >>> _ = path.write_text("train/n01440764/a.JPEG 0\ntrain/n01443537/b c.JPEG 1\n")
        >>> images = read_class_list(path)
        >>> images.pixels[1].name, images.labels.tolist()
        ('b c.JPEG', [0, 1])
    """
    file = Path(path)
    folder = file.parent if root is None else Path(root)
    if isinstance(class_names, str | os.PathLike):
        class_names = tuple(line for _, line in _lines(Path(class_names)))
    lines = [_parse(line, f"line {number} of `{file}`") for number, line in _lines(file)]
    paths, labels = zip(*lines, strict=True)
    names = _numbered(max(labels) + 1) if class_names is None else tuple(class_names)
    images = tuple(folder / image for image in paths)
    return LabelledImages(images, np.array(labels, np.int64), names, source=str(file))


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not empty; a file without any is refused."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"`{file}` cannot be read as text in UTF-8: {error}.") from error
    if not text.strip():
        raise InputError(f"`{file}` is empty.")
    yield from ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip())


def _parse(line: str, where: str) -> tuple[str, int]:
    image, *label = line.rsplit(maxsplit=1)
    if not label or not label[0].isdecimal():
        raise InputError(f"Expected {where} to be a path and a label, a whole number from 0, but got {line!r}.")
    return image, int(label[0])
