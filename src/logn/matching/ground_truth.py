"""Ground truth: labels in the predictions' order of images and classes, and the groups of their classes.

Classes are put in the order of the model: its statistics, maps and scores stay as they are, only labels are renumbered.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from logn.base.arrays import nan_mean
from logn.base.checks import OneOf, check
from logn.data.class_counts import frequency_groups
from logn.data.class_names import ClassMatch, listed, match_classes
from logn.data.coco import LabelledImage
from logn.data.labels import Labels, fingerprint_images
from logn.errors import InputError
from logn.predictions.store import Predictions

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


def truth_of_predictions(
    source: str | os.PathLike[str] | Mapping[str, Any], store: Predictions | None = None, **options: Any
) -> GroundTruth:
    """Ground truth to measure predictions by; truth without objects and a store without images are refused.

    Args:
        source: The labels.
        store: The predictions, whose images and classes the labels must have; None for a results file.
        options: Further arguments of `load_ground_truth`.

    Example:
        >>> truth_of_predictions({"images": [{"id": 1}], "categories": [{"id": 1}], "annotations": []})
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `annotations` has no objects in the evaluated images, so AP is undefined. Use the labels of the split that was predicted.
    """  # noqa: E501 - an error message is one line
    if store is not None:
        if not len(store):
            raise InputError(f"`{store.path}` holds no predictions yet. Run `logn predict` again.")
        options |= {
            "image_ids": store.image_ids.tolist(),
            "category_ids": store.header.category_ids,
            "class_names": store.head.class_names,
            "num_classes": store.head.num_classes,
        }
    truth = load_ground_truth(source, **options)
    if truth.crowd.all():
        raise InputError(
            f"`{truth.source}` has no objects in the evaluated images, so AP is undefined. Use the labels of the split "
            "that was predicted."
        )
    if store is not None:
        _check_sizes(truth, store)
    return truth


def load_ground_truth(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    style: str = "auto",
    image_ids: Sequence[int] | None = None,
    category_ids: Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    num_classes: int | None = None,
    only_predicted: bool = False,
    masks: bool = False,
    allow_missing_classes: bool = False,
) -> GroundTruth:
    """Read annotations and check that they fit the predictions.

    Classes are matched by name where the predictions have names: they may stand in another order, and the labels may
    have only some of them; the others are left out. Without names the ids or the number of classes must be the same.

    Args:
        source: LVIS, COCO or YOLO labels, as `Labels.load` takes them.
        style: "lvis" needs the federated fields; "coco" takes every class as annotated in every image; "auto" takes
            "lvis" where there are federated fields.
        image_ids: Images of the predictions, in their order; None takes the images of the annotations.
        category_ids: Category ids of the predictions; None when they are not known.
        class_names: Class names of the predictions; None when they are not known.
        num_classes: Foreground classes of the predictions; None when not known.
        only_predicted: Evaluate only the predicted images when the annotations have more.
        masks: Keep the segmentations.
        allow_missing_classes: Leave out objects of classes that the predictions do not have, instead of refusing them.

    Example:
        >>> toy = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "cup"}], "annotations": []}
        >>> load_ground_truth(toy).class_names
        ('cup',)
        >>> load_ground_truth(toy, style="lvis")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Image 1 of `annotations` has no `neg_category_ids`, which the LVIS protocol needs. If every class is annotated in every image, leave such fields out everywhere (in Python style="coco" passes over them).
    """  # noqa: E501 - an error message is one line
    check("style", style, OneOf("auto", "lvis", "coco"))
    labels = Labels.load(source, outlines=masks)
    labels.require("images", "categories")
    style = labels.protocol if style == "auto" else style
    names = labels.class_names
    if class_names is None:
        _check_categories(labels, category_ids, num_classes)
    match = (
        ClassMatch(names, names, np.arange(len(names))) if class_names is None else match_classes(class_names, names)
    )
    if not allow_missing_classes:
        _refuse_other_classes(labels, match)
    images = _matching_images(labels, image_ids, only_predicted=only_predicted)
    index_of = np.full(len(labels.images), -1)
    index_of[images] = np.arange(len(images))
    image_index, classes = index_of[labels.image_index], match.model_of_label[labels.classes]
    objects = np.flatnonzero((image_index >= 0) & (classes >= 0))
    image_index, classes = image_index[objects], classes[objects]
    # Classes of the model that the labels do not have were looked for in no image.
    column, has_label = match.label_of_model, match.label_of_model >= 0
    verified = None if has_label.all() else np.broadcast_to(has_label, (len(images), len(has_label)))
    not_exhaustive = None
    if style == "lvis":
        verified, not_exhaustive = (
            labels.listed_classes(field)[images][:, column] & has_label
            for field in ("neg_category_ids", "not_exhaustive_category_ids")
        )
        verified[image_index, classes] = True
    letters = [labels.categories[label].frequency if label >= 0 else "" for label in column.tolist()]
    has_letters = any(letters) and all(letter in ("", *GROUPS) for letter in letters)
    if match.identical:
        ids: Sequence[int] = labels.category_ids.tolist()
    else:  # those that the predictions were stored with, if they ascend
        has_ids = category_ids is not None and bool((np.diff(category_ids) > 0).all())
        ids = category_ids if has_ids and category_ids is not None else range(1, len(column) + 1)
    number, total = len(images), len(labels.images)
    left_out = f"{total - number:,} of {total:,} annotated images have no predictions and are left out."
    notes = ["" if class_names is None else match.describe(), left_out if number < total else ""]
    return GroundTruth(
        source=labels.source,
        style=style,
        image_ids=labels.image_ids[images],
        category_ids=np.array(ids, np.int64),
        label_ids=np.where(has_label, labels.category_ids[column], -1),
        class_names=match.model_names,
        frequency=np.array(letters) if has_letters else None,
        image_index=image_index,
        labels=classes,
        boxes=labels.boxes[objects],
        areas=labels.areas[objects],
        crowd=labels.crowd[objects] & (style == "coco"),
        verified=verified,
        not_exhaustive=not_exhaustive,
        images=tuple(labels.images[image] for image in images.tolist()),
        outlines=None if labels.outlines is None else tuple(labels.outlines[row] for row in objects.tolist()),
        note=" ".join(filter(None, notes)),
    )


def _check_categories(labels: Labels, category_ids: Sequence[int] | None, num_classes: int | None) -> None:
    remedy = "Predict again with `class_names`, and classes are matched by name."
    numbers = labels.category_ids.tolist()
    if category_ids is not None and list(category_ids) != numbers:
        raise InputError(
            f"The categories of `{labels.source}` are not those of the predictions: "
            f"{_difference(category_ids, numbers, 'category')}. {remedy}"
        )
    if num_classes is not None and num_classes != len(numbers):
        raise InputError(
            f"`{labels.source}` has {len(numbers)} classes, but the predictions have {num_classes}. {remedy}"
        )


def _refuse_other_classes(labels: Labels, match: ClassMatch) -> None:
    """Refuse objects of classes that the model does not have."""
    missing = labels.classes[match.model_of_label[labels.classes] < 0]
    if len(missing):
        names = [match.label_names[label] for label in np.unique(missing)]
        raise InputError(
            f"`{labels.source}` has {len(missing)} objects of classes that the model does not have: {listed(names)}. "
            "Take them out of the labels (in Python allow_missing_classes=True leaves them out)."
        )


def _matching_images(labels: Labels, image_ids: Sequence[int] | None, *, only_predicted: bool) -> npt.NDArray[np.int64]:
    """`(I,)` which of the labelled images are evaluated, in the order of the predictions."""
    if image_ids is None:
        return np.arange(len(labels.images))
    position = {number: index for index, number in enumerate(labels.image_ids.tolist())}
    predicted = [int(image) for image in image_ids]
    if (only_predicted and set(predicted) <= position.keys()) or set(predicted) == position.keys():
        return np.array([position[image] for image in predicted], np.int64)
    some = set(predicted) < position.keys()
    remedy = f"Use the labels of the predicted split{' (in Python only_predicted=True is enough)' if some else ''}"
    raise InputError(
        f"The images of `{labels.source}` are not those of the predictions: "
        f"{_difference(predicted, list(position), 'image')}. {remedy}."
    )


def _difference(predicted: Sequence[int], annotated: Sequence[int], noun: str) -> str:
    """Name what one list has and the other lacks, with one example."""
    missing, extra = sorted(set(predicted) - set(annotated)), sorted(set(annotated) - set(predicted))
    parts = []
    if missing:
        parts.append(f"{len(missing)} predicted but not annotated (such as {noun} {missing[0]})")
    if extra:
        parts.append(f"{len(extra)} annotated but not predicted (such as {noun} {extra[0]})")
    return ", ".join(parts) or "they stand in another order"


def _check_sizes(truth: GroundTruth, store: Predictions) -> None:
    """Refuse labels of images of other sizes than those that were predicted, where they tell sizes."""
    labelled = [[image.height, image.width] for image in truth.images]
    pairs = zip(truth.image_ids.tolist(), labelled, store.sizes.tolist(), strict=True)
    differing = [(number, ours, theirs) for number, ours, theirs in pairs if None not in ours and ours != theirs]
    if differing:
        number, ours, theirs = differing[0]
        raise InputError(
            f"`{truth.source}` and `{store.path}` are of images of different sizes: image {number} has height and "
            f"width {ours} in the labels, but was predicted with {theirs} ({len(differing):,} such images). Predict "
            "the images that were labelled."
        )


def other_images(store: Predictions, truth: GroundTruth) -> str:
    """A warning if the annotated images have the ids of the predicted ones but other file names; else empty."""
    metadata = store.header.metadata
    if metadata.get("images") is None or not store.is_complete:  # a source of the user's own may have no names
        return ""
    if not all(image.names for image in truth.images) or fingerprint_images(truth.images) == metadata["images"]:
        return ""
    return (
        f"The images of `{truth.source}` have the ids of the predicted ones but other file names (the predictions were "
        f"made from `{metadata.get('data', 'another file')}`). Check that it is the same split."
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
