"""How large a prediction store will be, said before it is written."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from logn.errors import LogNWarning
from logn.evaluate.store.format import PICTURE_BYTES, StoreHeader
from logn.logits.proposals import Proposals

# A number of boxes that costs about as much as the logits of LVIS's classes: docs/predictions-store.md measures it.
SUGGESTED_CLASS_BOXES = 40
# From here on a size is worth a word, and from here on boxes of each class are worth a warning.
_WORTH_A_WORD, _LARGE = 10**9, 10**10


def image_bytes(header: StoreHeader, proposals: float) -> float:
    """Bytes of an image with so many proposals; where boxes of candidates alone are kept, at most.

    Example:
        >>> lvis = StoreHeader(num_columns=1204, background=0, class_boxes=True)
        >>> round(image_bytes(lvis, 1000) / 1e6, 1)
        21.7
    """
    size = proposals * sum(header.row_files.values()) + header.record.itemsize + PICTURE_BYTES
    if header.kept_class_boxes is not None:
        # Best classes of each proposal in two ways, best proposals of each class, and as many of all as of proposals.
        pairs = header.kept_class_boxes * (3 * proposals + header.num_classes)
        size += min(pairs, proposals * header.num_classes) * sum(header.pair_files.values())
    return size


def say_size(
    header: StoreHeader,
    found: Sequence[Proposals],
    path: str | os.PathLike[str],
    announce: Callable[[str], object] | None = None,
) -> None:
    """Say how large the store will be, and how it gets smaller where boxes of each class make it large.

    Args:
        header: Of the store.
        found: The first images.
        path: Folder of the store.
        announce: Called with the sentence; by default a warning says it, where there is something to do about it.
    """
    rows = sum(len(proposals.logits) for proposals in found) / max(len(found), 1)
    each = image_bytes(header, rows)
    total = each * (header.num_images or 0)
    if total < _WORTH_A_WORD:
        return
    most = "at most" if header.kept_class_boxes is not None else "about"
    sentence = f"The predictions will take {most} {_size(total)} ({header.num_images:,} images of {_size(each)})"
    is_large = header.class_boxes and header.kept_class_boxes is None and total > _LARGE
    if is_large:
        fewer = image_bytes(replace(header, kept_class_boxes=SUGGESTED_CLASS_BOXES), rows) * (header.num_images or 0)
        boxes = rows * header.boxes_row_bytes * (header.num_images or 0)
        sentence += (
            f", of which {_size(boxes)} are boxes of each class; `--class-boxes {SUGGESTED_CLASS_BOXES}` (in Python "
            f"`class_boxes={SUGGESTED_CLASS_BOXES}`) keeps those that corrections may need, in at most {_size(fewer)}"
        )
    free = shutil.disk_usage(next(place for place in (Path(path), *Path(path).absolute().parents) if place.exists()))
    if free.free < total:
        sentence += f"; {_size(free.free)} are free there"
    if announce is not None:
        announce(sentence + ".")
    elif is_large:
        warnings.warn(sentence + ".", LogNWarning, stacklevel=2)


def _size(number: float) -> str:
    return f"{number / 1e9:,.0f} GB" if number >= 1e10 else f"{number / 1e6:,.1f} MB"
