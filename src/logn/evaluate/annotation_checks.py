"""What an annotation file must hold before it is evaluated; the first entry that does not is named."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError

# What every entry of a section must have, whatever the protocol.
ENTRY_FIELDS = {
    "images": ("id",),
    "categories": ("id",),
    "annotations": ("id", "image_id", "category_id", "bbox"),
}
LVIS_IMAGE_FIELDS = ("neg_category_ids", "not_exhaustive_category_ids")


def check_fields(name: str, content: Mapping[str, Sequence[Any]], style: str) -> None:
    """Refuse annotations that lack a field of the protocol, or whose ids are no numbers.

    Example:
        >>> check_fields("a.json", {"images": [{"id": "7"}], "categories": [], "annotations": []}, "coco")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `id` of every entry of `images` in `a.json` to be an integer, but got '7'.
    """
    for section, fields in ENTRY_FIELDS.items():
        for place, entry in enumerate(content[section]):
            _check_entry(name, section, fields, place, entry)
    for section in ("images", "categories"):
        if not content[section]:
            raise InputError(f"Expected `{name}` to list `{section}`, but it lists none.")
    for field in LVIS_IMAGE_FIELDS if style == "lvis" else ():
        lacking = [image["id"] for image in content["images"] if not isinstance(image.get(field), list)]
        if lacking:
            raise InputError(
                f"Expected the images of `{name}` to have `{field}` for the LVIS protocol, but image {lacking[0]} "
                f"has none; evaluate as COCO (`--coco`) if every class is annotated in every image."
            )


def _check_entry(name: str, section: str, fields: Sequence[str], place: int, entry: Any) -> None:
    for field in fields:
        if not isinstance(entry, dict) or field not in entry:
            raise InputError(
                f"Expected every entry of `{section}` in `{name}` to have `{field}`, but entry {place} has none."
            )
        if field != "bbox" and not isinstance(entry[field], int | np.integer):
            raise InputError(
                f"Expected `{field}` of every entry of `{section}` in `{name}` to be an integer, "
                f"but got {entry[field]!r}."
            )


def check_labels(name: str, annotations: Sequence[Mapping[str, Any]], label: Mapping[int, int]) -> None:
    """Refuse an annotation of a category that is not listed."""
    for item in annotations:
        if item["category_id"] not in label:
            raise InputError(
                f"Expected the annotations of `{name}` to use its categories, "
                f"but annotation {item['id']} is of category {item['category_id']}."
            )


def annotated_boxes(name: str, annotations: Sequence[Mapping[str, Any]]) -> npt.NDArray[np.float64]:
    """The boxes as an array `(N, 4)`; one that is not four finite numbers is refused."""
    boxes = _four_numbers([item["bbox"] for item in annotations])
    if boxes is None:
        bad = next(item for item in annotations if _four_numbers([item["bbox"]]) is None)
        raise InputError(
            f"Expected `bbox` of annotation {bad['id']} of `{name}` to be four finite numbers, but got {bad['bbox']!r}."
        )
    return boxes


def _four_numbers(listed: Sequence[Any]) -> npt.NDArray[np.float64] | None:
    if not listed:
        return np.empty((0, 4))
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        boxes = np.array(listed, np.float64)
        return boxes if boxes.shape == (len(listed), 4) and np.isfinite(boxes).all() else None
    return None
