"""`open_images`: one function for all sources of labelled images, told apart by what lies in the folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

from logn.datasets.labelled_images import LabelledImages
from logn.errors import InputError

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
) -> LabelledImages:
    """Open one split of a set of labelled images.

    Args:
        source: One of: a folder that `logn data glyph-classes` wrote; the folder of CIFAR-100 or CIFAR-10 in the
            binary version; a folder of class folders, or of `train`, `val` and `test` with those in them; a list
            file with `path label` lines (`ImageNet_LT_train.txt`), or the folder of such lists.
        split: `"train"`, `"dev"` (validation) or `"test"`.
        root: The folder that the paths of list files start from; by default that of the list.
        imbalance: Thin the training images so that the most frequent class has so many times the images of the
            rarest; None keeps all. Only for CIFAR and class folders, and never for dev and test.
        seed: Which images thinning keeps.
        class_names: A file with one class name a line, for list files.
    """
    if split not in SPLITS:
        raise InputError(f"Expected `split` to be one of {SPLITS}, but got {split!r}.")
    raise InputError(f"Expected `source` to be a folder or list of labelled images, but got `{Path(source)}`.")
