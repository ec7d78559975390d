"""Ground truth: the labelled boxes of the evaluated images as arrays, and the groups of their classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from logn.base.arrays import nan_mean
from logn.data.class_counts import frequency_groups
from logn.data.coco import LabelledImage
from logn.errors import InputError

GROUPS = ("r", "c", "f")
LVIS_BOUNDS = (10, 100)
# Areas in pixels of small, medium and large objects.
SIZES = {"s": (0.0, 32.0**2), "m": (32.0**2, 96.0**2), "l": (96.0**2, 1e10)}
Groups = npt.NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """Annotated boxes of the evaluated images, column by column.

    Image and class indices are those of the predictions: positions in `image_ids` and in `category_ids`.

    Args:
        source: Where it came from, for messages.
        style: "lvis" or "coco".
        image_ids: `(I,)` ids in the order of the predictions.
        category_ids: `(F,)` ids in ascending order.
        label_ids: `(F,)` the id of each class in the annotations; -1 for one that they do not have.
        class_names: `(F,)` names; those of the predictions, where they are known.
        frequency: `(F,)` "r", "c" or "f", or nothing for a class that the labels do not have; None when the annotations
            have no such field.
        image_index: `(G,)` image of each box.
        labels: `(G,)` class of each box.
        boxes: `(G, 4)` as `x, y, width, height`.
        areas: `(G,)` area of each object, which may be that of its mask.
        crowd: `(G,)` whether a box marks a crowd (COCO only): what falls into it is not counted.
        verified: `(I, F)` whether a class was looked for in an image, which a class of the model that the labels do not
            have was nowhere; None where all were.
        not_exhaustive: `(I, F)` whether objects of a class may lack a box in an image; None where never.
        images: `(I,)` their entries in the labels.
        outlines: `(G,)` the outline of each box as JSON; None unless masks were asked for.
        note: Which classes of model and labels, and which images, are left out, in one line; empty for none.
    """

    source: str
    style: str
    image_ids: npt.NDArray[np.int64]
    category_ids: npt.NDArray[np.int64]
    label_ids: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    frequency: npt.NDArray[np.str_] | None
    image_index: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float64]
    areas: npt.NDArray[np.float64]
    crowd: npt.NDArray[np.bool_]
    verified: npt.NDArray[np.bool_] | None
    not_exhaustive: npt.NDArray[np.bool_] | None
    images: tuple[LabelledImage, ...] = ()
    outlines: tuple[msgspec.Raw, ...] | None = None
    note: str = ""

    @property
    def num_images(self) -> int:
        """How many images are evaluated."""
        return len(self.image_ids)

    @property
    def num_classes(self) -> int:
        """How many foreground classes there are."""
        return len(self.category_ids)

    @cached_property
    def corners_and_areas(self) -> npt.NDArray[np.float64]:
        """`(5, G)` corners of each box, then its area."""
        x, y, width, height = self.boxes.T
        return np.stack([x, y, x + width, y + height, width * height])

    @cached_property
    def boxes_per_class(self) -> npt.NDArray[np.int64]:
        """`(F,)` boxes of each class that a detector is asked to find."""
        return np.bincount(self.labels[~self.crowd], minlength=self.num_classes)

    @cached_property
    def objects_per_size(self) -> npt.NDArray[np.int64]:
        """`(3 F,)` boxes of each class that are small, then medium, then large."""
        counts = []
        for low, high in SIZES.values():
            fits = ~self.crowd & (self.areas >= low) & (self.areas <= high)
            counts.append(np.bincount(self.labels[fits], minlength=self.num_classes))
        return np.concatenate(counts)

    def looked_for(self, image: npt.NDArray[Any], label: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether anybody looked for objects of these classes in these images."""
        return np.ones(len(image), bool) if self.verified is None else self.verified[image, label]

    @cached_property
    def _by_image(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        order = np.argsort(self.image_index, kind="stable")
        return order, np.searchsorted(self.image_index[order], np.arange(self.num_images + 1))

    def rows_of_images(self, start: int, stop: int) -> npt.NDArray[np.intp]:
        """Rows of the objects of images that follow each other, ascending in each image."""
        order, starts = self._by_image
        return order[starts[start] : starts[min(stop, self.num_images)]]

    @cached_property
    def masks(self) -> list[dict[str, Any]]:
        """The mask of each box, run-length encoded."""
        from logn.data.masks import encode_segmentation

        masks = []
        for outline, index in zip(self.outlines or (), self.image_index.tolist(), strict=True):
            image, segmentation = self.images[index], msgspec.json.decode(outline) if outline else None
            if not segmentation:
                raise InputError(
                    f"An object in image {image.id} of `{self.source}` has no `segmentation`. Mask AP needs one for "
                    "every object."
                )
            if image.height is None or image.width is None:
                raise InputError(f"Image {image.id} of `{self.source}` has no `height` and `width`, as masks need.")
            masks.append(encode_segmentation(segmentation, image.height, image.width))
        return masks

    def part(self, images: npt.NDArray[np.bool_]) -> GroundTruth:
        """Give the ground truth of the images that the mask `(I,)` names; they are renumbered."""
        position = np.cumsum(images) - 1
        kept = images[self.image_index]
        outlines = None if self.outlines is None else tuple(compress(self.outlines, kept))
        return replace(
            self,
            image_ids=self.image_ids[images],
            image_index=position[self.image_index[kept]],
            labels=self.labels[kept],
            boxes=self.boxes[kept],
            areas=self.areas[kept],
            crowd=self.crowd[kept],
            verified=None if self.verified is None else self.verified[images],
            not_exhaustive=None if self.not_exhaustive is None else self.not_exhaustive[images],
            images=tuple(compress(self.images, images)),
            outlines=outlines,
        )


def groups_of_classes(
    truth: GroundTruth, counts: npt.ArrayLike | None = None, bounds: tuple[int, int] = LVIS_BOUNDS
) -> tuple[Groups | None, str | None]:
    """The group of each class and where it comes from; both None for COCO annotations without counts.

    Args:
        truth: Its `frequency` field is used when there are no counts.
        counts: Training images of each foreground class.
        bounds: The last rare and the last common count.
    """
    if counts is not None:
        values: npt.NDArray[Any] = np.asarray(counts)
        if values.shape != (truth.num_classes,):
            raise InputError(
                f"Expected `counts` to have one number for each of the {truth.num_classes} classes, "
                f"but got shape {values.shape}."
            )
        if bounds[0] >= bounds[1]:
            raise InputError(f"Expected `bounds` to ascend, but got {bounds[0]} and {bounds[1]}.")
        return frequency_groups(values, bounds), f"training counts up to {bounds[0]}, up to {bounds[1]}, above"
    if truth.frequency is None and truth.style == "lvis":
        raise InputError(
            f"A category of `{truth.source}` has no `frequency` (r, c or f), which the LVIS protocol needs. "
            'Pass `counts` (in Python, or evaluate as COCO: style="coco").'
        )
    if truth.frequency is None:
        return None, None
    return truth.frequency, "the field `frequency`"


def group_members(groups: Groups | None, num_classes: int) -> dict[str, npt.NDArray[np.bool_]]:
    """`(F,)` all classes, under "", and those of each group, where the groups are known.

    Example:
        >>> list(group_members(None, 2)), group_members(np.array(["r", "f"]), 2)["r"].tolist()
        ([''], [True, False])
    """
    members = {"": np.ones(num_classes, bool)}
    return members if groups is None else members | {group: groups == group for group in GROUPS}


def mean_per_group(values: npt.NDArray[np.float64], groups: Groups | None) -> dict[str, float]:
    """Mean of the values that are there, over all classes, under "", and over those of each group.

    Example:
        >>> mean_per_group(np.array([0.2, 0.4, np.nan]), np.array(["r", "f", "f"]))
        {'': 0.30000000000000004, 'r': 0.2, 'c': nan, 'f': 0.4}
    """
    members = group_members(groups, len(values))
    return {group: float(nan_mean(values[classes])) for group, classes in members.items()}
