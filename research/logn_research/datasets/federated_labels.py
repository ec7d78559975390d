"""Federated labels from exhaustive ones: how a result depends on how many images were checked for each class.

LVIS verifies that a class is absent on a few images only and says nothing about the others, so most confusions between
classes are never counted. An exhaustive file can be cut down to any such number, the same images and boxes otherwise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.files import write_text
from logn.data.annotations import Annotations, read_annotations
from logn.errors import InputError

_NEGATIVES, _UNFINISHED = "neg_category_ids", "not_exhaustive_category_ids"


@dataclass(frozen=True)
class FederatedSummary:
    """What a federated file verifies.

    Args:
        images: Number of images.
        classes: Number of classes.
        boxes: Number of boxes; crowd regions are left out.
        crowds: Crowd regions that were left out; their class is marked as not exhaustive on the image.
        negatives: Pairs of an image and a class that is verified absent there.
        verified: Share of all pairs of an image and a class that say something, present or absent.
    """

    images: int
    classes: int
    boxes: int
    crowds: int
    negatives: int
    verified: float


def federate(
    content: Mapping[str, Any], negatives: int | None, *, seed: int = 0, source: str = "annotations"
) -> dict[str, Any]:
    """Cut exhaustive annotations down to a number of images per class on which its absence is verified.

    All boxes stay. With the same seed the images of a smaller number are among those of a larger one, and the images
    of a class do not depend on the other classes.

    Args:
        content: COCO annotations, or LVIS annotations in which every class is verified on every image.
        negatives: On how many images each class is verified absent (fewer where the class is nearly everywhere);
            None for all images without it.
        seed: Which images.
        source: What to call the annotations in messages.

    Example:
        >>> content = {
        ...     "images": [{"id": 1}, {"id": 2}, {"id": 3}],
        ...     "categories": [{"id": 5}, {"id": 9}],
        ...     "annotations": [{"id": 1, "image_id": 2, "category_id": 5, "bbox": [0, 0, 4, 4]}],
        ... }
        >>> [image["neg_category_ids"] for image in federate(content, 1)["images"]]
        [[5], [], [9]]
        >>> [image["neg_category_ids"] for image in federate(content, None)["images"]]
        [[5, 9], [9], [5, 9]]
    """
    _check_draw(negatives, seed)
    return _federate(read_annotations(content, boxes=False, entries=True, name=source), negatives, seed)


def _federate(exhaustive: Annotations, negatives: int | None, seed: int) -> dict[str, Any]:
    exhaustive.require("images", "categories")
    image_ids = sorted(image["id"] for image in exhaustive.images)
    category_ids = sorted(category["id"] for category in exhaustive.categories)
    present = np.zeros((len(image_ids), len(category_ids)), np.bool_)
    present[exhaustive.positions("image", image_ids), exhaustive.positions("category", category_ids)] = True
    _check_exhaustive(exhaustive.images, present, image_ids, category_ids, exhaustive.source)
    absent: dict[int, list[int]] = {image: [] for image in image_ids}
    for place, category in enumerate(category_ids):
        candidates = np.flatnonzero(~present[:, place])
        # One random state per class: a prefix of its order makes the images of a smaller number part of a larger one.
        order = np.random.default_rng((seed, place)).permutation(candidates)
        for image in order[:negatives].tolist():
            absent[image_ids[image]].append(category)
    crowded: dict[int, set[int]] = {image: set() for image in image_ids}
    for place in np.flatnonzero(exhaustive.crowd).tolist():
        crowded[int(exhaustive.image_ids[place])].add(int(exhaustive.category_ids[place]))
    return {
        **exhaustive.rest,
        "info": {
            "description": "federated labels drawn from exhaustive ones",
            "negatives": negatives,
            "seed": seed,
        },
        "images": [
            {**image, _NEGATIVES: absent[image["id"]], _UNFINISHED: sorted(crowded[image["id"]])}
            for image in exhaustive.images
        ],
        "categories": exhaustive.categories,
        # LVIS knows no crowds: a class with one is there, but not all of its objects have a box.
        "annotations": list(compress(exhaustive.entries, ~exhaustive.crowd)),
    }


def federate_file(
    source: str | os.PathLike[str], target: str | os.PathLike[str], negatives: int | None, *, seed: int = 0
) -> FederatedSummary:
    """Read exhaustive annotations, write federated ones in one step, and say what they verify.

    Args:
        source: The exhaustive annotation file.
        target: The file to write.
        negatives: As `federate` takes it.
        seed: As `federate` takes it.
    """
    _check_draw(negatives, seed)
    exhaustive = read_annotations(source, boxes=False, entries=True, outlines=True)
    result = _federate(exhaustive, negatives, seed)
    write_text(target, json.dumps(result, separators=(",", ":")))
    return summarise(result, crowds=int(exhaustive.crowd.sum()))


def summarise(federated: Mapping[str, Any], *, crowds: int = 0) -> FederatedSummary:
    """Count what federated annotations verify.

    Example:
        >>> content = {"images": [{"id": 1}, {"id": 2}], "categories": [{"id": 5}], "annotations": []}
        >>> summarise(federate(content, 1)).verified
        0.5
    """
    images, classes = len(federated["images"]), len(federated["categories"])
    negatives = sum(len(image[_NEGATIVES]) for image in federated["images"])
    marked = {(entry["image_id"], entry["category_id"]) for entry in federated["annotations"]}
    share = (negatives + len(marked)) / (images * classes)
    return FederatedSummary(images, classes, len(federated["annotations"]), crowds, negatives, share)


def _check_draw(negatives: int | None, seed: int) -> None:
    if negatives is not None and negatives < 0:
        raise InputError(f"Expected `negatives` to be 0 or more, or None for all, but got {negatives}.")
    if seed < 0:
        raise InputError(f"Expected `seed` to be 0 or more, but got {seed}.")


def _check_exhaustive(
    images: Sequence[Mapping[str, Any]],
    present: npt.NDArray[np.bool_],
    image_ids: Sequence[int],
    category_ids: Sequence[int],
    source: str,
) -> None:
    """Refuse annotations that are federated already; those without the fields of LVIS are taken at their word."""
    rows = {image: place for place, image in enumerate(image_ids)}
    for image in images:
        if _NEGATIVES not in image:
            continue
        known = {
            *image[_NEGATIVES],
            *(category_ids[place] for place in np.flatnonzero(present[rows[image["id"]]]).tolist()),
        }
        silent = sorted((set(category_ids) - known) | set(image.get(_UNFINISHED, ())))
        if silent:
            raise InputError(
                f"`{source}` is not exhaustive: on image {image['id']} category {silent[0]} was not looked for, or "
                "not to the end."
            )
