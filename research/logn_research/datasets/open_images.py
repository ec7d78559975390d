"""`open_images`: one function for all sources of labelled images, distinguished by what the folder holds."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from logn.errors import InputError
from logn_research.datasets.cifar import is_cifar, read_cifar
from logn_research.datasets.class_lists import SPLIT_FOLDERS, read_class_folders, read_class_list
from logn_research.datasets.glyphs.classes import is_glyph_classes, read_glyph_classes
from logn_research.datasets.labelled_images import LabelledImages
from logn_research.datasets.long_tail import held_out, thinned

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


def open_images(
    source: str | os.PathLike[str],
    split: str = "train",
    *,
    root: str | os.PathLike[str] | None = None,
    imbalance: float | None = None,
    seed: int = 0,
    class_names: str | os.PathLike[str] | None = None,
    dev_each: int | None = None,
) -> LabelledImages:
    """Open one split of a set of labelled images.

    Args:
        source: One of: a folder that `logn data glyph-classes` wrote; the folder of CIFAR-100 or CIFAR-10 in the
            binary version; a folder of class folders, or of `train`, `val` and `test` with those in them; a list
            file with `path label` lines (`ImageNet_LT_train.txt`), or the folder of such lists.
        split: `"train"`, `"dev"` (validation) or `"test"`.
        root: The folder that the paths of list files start from; by default that of the list.
        imbalance: Thin out the training images until the first class has this many times the images of the last; None
            keeps all. Only for CIFAR and class folders, and never for dev and test.
        seed: Which images are held out and which thinning keeps.
        class_names: A file with one class name a line, for list files.
        dev_each: Hold out this many training images of each class as dev, for CIFAR and class folders without one.

    Example:
        >>> import tempfile
        >>> from logn_research.datasets.glyphs.classes import GlyphClassSettings, generate_glyph_classes
        >>> settings = GlyphClassSettings(classes=3, most=4, fewest=2, dev=1, test=2)
        >>> folder = generate_glyph_classes(tempfile.mkdtemp(), settings)
        >>> open_images(folder, "test").image_counts.tolist()
        [2, 2, 2]
    """
    path = Path(source)
    if split not in SPLITS:
        raise InputError(f"Expected `split` to be one of {SPLITS}, but got {split!r}.")
    if not path.exists():
        raise InputError(f"Expected `{path}` to be a folder or a list of labelled images, but there is none.")
    lists = _list_files(path)
    if lists is None and (root is not None or class_names is not None):
        raise InputError(f"Expected `root` and `class_names` to come with list files only, but `{path}` holds none.")
    if lists is not None or is_glyph_classes(path):
        for name, value in (("imbalance", imbalance), ("dev_each", dev_each)):
            if value is not None:
                raise InputError(f"Expected `{name}` for CIFAR and class folders only, but `{path}` is long-tailed.")
        return read_glyph_classes(path, split) if lists is None else _open_list(path, lists, split, root, class_names)
    return _open_balanced(path, split, imbalance, seed, dev_each)


def _open_balanced(path: Path, split: str, imbalance: float | None, seed: int, dev_each: int | None) -> LabelledImages:
    """Sources that are not long-tailed by themselves: thin the training images, hold some out for dev."""
    read = read_cifar if is_cifar(path) else read_class_folders
    if split == "test" or (split == "dev" and dev_each is None):
        return read(path, split)
    images = read(path, "train")
    if dev_each is not None:
        images, out = held_out(images, dev_each, seed=seed)
        if split == "dev":
            return replace(out, source=f"{path}, held out")
    return images if imbalance is None else thinned(images, imbalance, seed=seed)


def _list_files(path: Path) -> dict[str, Path] | None:
    """The list file of each split; None where the source is no list."""
    if path.is_file():
        if path.suffix != ".txt":
            raise InputError(
                f"Expected `{path}` to be a list (.txt) or a folder of labelled images, but it is neither."
            )
        split, pattern = _split_and_rest(path)
        if split is None:
            return {"train": path}
        return _by_split([file for file in sorted(path.parent.glob("*.txt")) if _split_and_rest(file)[1] == pattern])
    if is_cifar(path):  # its class names are text files too
        return None
    found = _by_split(sorted(path.glob("*.txt")))
    return found if "train" in found else None


def _split_and_rest(file: Path) -> tuple[str | None, str]:
    """Which split the last such word of a file's name says, and the name without it."""
    splits = {word: split for split, words in SPLIT_FOLDERS.items() for word in words}
    words = re.split(r"[_\-. ]", file.stem.lower())
    for place in reversed(range(len(words))):
        if words[place] in splits:
            return splits[words[place]], "_".join([*words[:place], "*", *words[place + 1 :]])
    return None, "_".join(words)


def _by_split(files: list[Path]) -> dict[str, Path]:
    """Sort files by the split that their names say: `ImageNet_LT_val.txt` is dev."""
    found: dict[str, Path] = {}
    for file in files:
        split = _split_and_rest(file)[0]
        if split is None:
            continue
        if split in found:
            raise InputError(
                f"Expected `{file.parent}` to have one list of {split} images, but it has `{found[split].name}` and "
                f"`{file.name}`; name the training list itself."
            )
        found[split] = file
    return found


def _open_list(
    path: Path,
    lists: dict[str, Path],
    split: str,
    root: str | os.PathLike[str] | None,
    class_names: str | os.PathLike[str] | None,
) -> LabelledImages:
    chosen = lists.get(split) or (lists.get("dev") if split == "test" else None)
    if chosen is None:
        raise InputError(f"Expected a list of {split} images next to `{lists.get('train', path)}`, but there is none.")
    training = lists.get("train", chosen)
    images = read_class_list(training, root, class_names=class_names)
    if chosen == training:
        return images
    # The training list says how many classes there are, so that a label beyond them is found.
    return read_class_list(chosen, root, class_names=images.class_names)
