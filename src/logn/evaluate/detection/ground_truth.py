"""Ground truth of a split: read once, checked against the predictions, shared by all methods."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.classes.matching import ClassMatch, match_classes
from logn.errors import InputError, import_extra
from logn.evaluate.detection.model_classes import in_classes_of_model
from logn.labels.annotations import FEDERATED_FIELDS, label_protocol, read_annotations


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """Annotated boxes of the evaluated images, column by column.

    Image and class indices are those of the predictions: positions in `image_ids` and in `category_ids`.

    Args:
        source: Where it came from, for messages.
        style: "lvis" or "coco".
        image_ids: `(I,)` ids in the order of the predictions.
        category_ids: `(F,)` ids in ascending order.
        class_names: `(F,)` names; those of the predictions, where they are known.
        frequency: `(F,)` "r", "c" or "f", or nothing for a class that the labels do not have; None when the annotations
            have no such field.
        image_index: `(G,)` image of each box.
        labels: `(G,)` class of each box.
        boxes: `(G, 4)` as `x, y, width, height`.
        crowd: `(G,)` whether a box marks a crowd (COCO only): what falls into it is not counted.
        verified: `(I, F)` whether a class was looked for in an image, which a class of the model that the labels do not
            have was nowhere; None where all were.
        not_exhaustive: `(I, F)` whether objects of a class may lack a box in an image; None where never.
        dataset: The annotations as parsed, for the evaluator.
        note: Which classes of model and labels, and which images, are left out, in one line; empty for none.
    """

    source: str
    style: str
    image_ids: npt.NDArray[np.int64]
    category_ids: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    frequency: npt.NDArray[np.str_] | None
    image_index: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float64]
    crowd: npt.NDArray[np.bool_]
    verified: npt.NDArray[np.bool_] | None
    not_exhaustive: npt.NDArray[np.bool_] | None
    dataset: Mapping[str, Any]
    note: str = ""

    @property
    def num_images(self) -> int:
        """How many images are evaluated."""
        return len(self.image_ids)

    @property
    def num_classes(self) -> int:
        """How many foreground classes there are."""
        return len(self.category_ids)

    @property
    def boxes_per_class(self) -> npt.NDArray[np.int64]:
        """`(F,)` boxes of each class that a detector is asked to find."""
        return np.bincount(self.labels[~self.crowd], minlength=self.num_classes)

    @cached_property
    def image_numbers(self) -> npt.NDArray[np.int64]:
        """`(I,)` number of each image for the evaluator: from 1 on, in the order of the ids."""
        return np.argsort(np.argsort(self.image_ids)) + 1

    @cached_property
    def evaluator_dataset(self) -> Any:
        """The annotations as hotcoco holds them: made once, used for every method.

        Images, classes (by position) and annotations are numbered from 1 on: hotcoco takes results as floats, which
        round ids above 2**53, and keeps one annotation of each id.
        """
        hotcoco = import_extra("hotcoco", extra="evaluate")

        label = {number: place for place, number in enumerate(self.category_ids.tolist(), start=1)}
        images = [
            {**image, "id": number}
            | {
                field: [label[category] for category in image[field] if category in label]
                for field in FEDERATED_FIELDS
                if isinstance(image.get(field), list)
            }
            for image, number in zip(self.dataset["images"], self.image_numbers.tolist(), strict=True)
        ]
        categories = [{**category, "id": place} for place, category in enumerate(self.dataset["categories"], start=1)]
        try:
            return hotcoco.COCO({"images": images, "categories": categories, "annotations": self._annotations})
        except (TypeError, ValueError) as error:  # a field that is of another type than in LVIS and COCO
            raise InputError(
                f"Expected `{self.source}` to be LVIS or COCO annotations, but the evaluator refuses {error}."
            ) from error

    @cached_property
    def masks(self) -> list[dict[str, Any]]:
        """The mask of each box, run-length encoded."""
        annotations = self.dataset["annotations"]
        missing = next((item["id"] for item in annotations if not item.get("segmentation")), None)
        if missing is not None:
            raise InputError(
                f"Expected every annotation of `{self.source}` to have a `segmentation`, "
                f"but annotation {missing} has none."
            )
        return [self.evaluator_dataset.ann_to_rle(item) for item in self._annotations]

    @property
    def _annotations(self) -> list[dict[str, Any]]:
        """The annotations in the evaluator's numbers."""
        numbers = zip(self.image_numbers[self.image_index].tolist(), (self.labels + 1).tolist(), strict=True)
        return [
            {**item, "id": place, "image_id": image, "category_id": category}
            for place, (item, (image, category)) in enumerate(
                zip(self.dataset["annotations"], numbers, strict=True), start=1
            )
        ]

    def part(self, images: npt.NDArray[np.bool_]) -> GroundTruth:
        """Give the ground truth of the images that the mask `(I,)` names; they are renumbered."""
        position = np.cumsum(images) - 1
        kept = images[self.image_index]
        ids = set(self.image_ids[images].tolist())
        dataset = {
            **self.dataset,
            "images": [image for image in self.dataset["images"] if image["id"] in ids],
            "annotations": [item for item in self.dataset["annotations"] if item["image_id"] in ids],
        }
        return replace(
            self,
            image_ids=self.image_ids[images],
            image_index=position[self.image_index[kept]],
            labels=self.labels[kept],
            boxes=self.boxes[kept],
            crowd=self.crowd[kept],
            verified=None if self.verified is None else self.verified[images],
            not_exhaustive=None if self.not_exhaustive is None else self.not_exhaustive[images],
            dataset=dataset,
        )


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
        source: LVIS, COCO, YOLO or VOC annotations, as `read_annotations` takes them.
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
        logn.errors.InputError: Expected the images of `annotations` to have `neg_category_ids` for the LVIS protocol, but image 1 has none; evaluate as COCO (style='coco') if every class is annotated in every image.
    """  # noqa: E501 - an error message is one line
    if style not in ("auto", "lvis", "coco"):
        raise InputError(f'Expected `style` to be "auto", "lvis" or "coco", but got {style!r}.')
    found = read_annotations(source, integers={"annotations": ("id",)}, entries=True, outlines=masks)
    found.require("images", "categories")
    name = found.source
    style = label_protocol(found) if style == "auto" else style
    _check_federated(name, found.images, style)
    match = _matched(found.categories, class_names)
    if match is None:
        _check_categories(name, found.categories, category_ids, num_classes)
    elif not match.identical:
        found = in_classes_of_model(found, match, category_ids, allow_missing=allow_missing_classes)
    categories = sorted(found.categories, key=lambda category: category["id"])
    images = _matching_images(name, found.images, image_ids, only_predicted=only_predicted)
    ids = [image["id"] for image in images]
    kept = np.isin(found.image_ids, np.array(ids, np.int64))
    image_index = found.positions("image", ids, of=kept)
    labels = found.positions("category", (category["id"] for category in categories), of=kept)
    verified, not_exhaustive = _looked_for(match, len(images)), None
    if style == "lvis":
        label = {category["id"]: index for index, category in enumerate(categories)}
        verified = _marks(images, "neg_category_ids", label)
        verified[image_index, labels] = True
        not_exhaustive = _marks(images, "not_exhaustive_category_ids", label)
    return GroundTruth(
        source=name,
        style=style,
        image_ids=np.array(ids, np.int64),
        category_ids=np.array([category["id"] for category in categories], np.int64),
        class_names=tuple(str(category.get("name", category["id"])) for category in categories),
        frequency=_frequency(categories, match),
        image_index=image_index,
        labels=labels,
        boxes=found.boxes[kept],
        crowd=found.crowd[kept] & (style == "coco"),
        verified=verified,
        not_exhaustive=not_exhaustive,
        dataset={
            "images": images,
            "categories": categories,
            "annotations": list(compress(found.entries, kept)),
        },
        note=" ".join(filter(None, ("" if match is None else match.describe(), _left_out(found.images, images)))),
    )


def refuse_without_objects(truth: GroundTruth) -> GroundTruth:
    """Give `truth` back, or say that it has nothing that could be found: every AP would be undefined.

    Example:
        >>> toy = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "cup"}], "annotations": []}
        >>> refuse_without_objects(load_ground_truth(toy, style="coco"))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `annotations` to have objects in the evaluated images, but there are none, so no AP is defined.
    """  # noqa: E501 - an error message is one line
    if not np.any(~truth.crowd):
        raise InputError(
            f"Expected `{truth.source}` to have objects in the evaluated images, but there are none, so no AP is "
            "defined."
        )
    return truth


def _check_federated(name: str, images: Sequence[Mapping[str, Any]], style: str) -> None:
    for field in FEDERATED_FIELDS if style == "lvis" else ():
        lacking = next((image["id"] for image in images if not isinstance(image.get(field), list)), None)
        if lacking is not None:
            raise InputError(
                f"Expected the images of `{name}` to have `{field}` for the LVIS protocol, but image {lacking} "
                f"has none; evaluate as COCO (style='coco') if every class is annotated in every image."
            )


def _matched(categories: Sequence[Mapping[str, Any]], class_names: Sequence[str] | None) -> ClassMatch | None:
    if class_names is None:
        return None
    ordered = sorted(categories, key=lambda category: category["id"])
    return match_classes(class_names, [str(category.get("name", category["id"])) for category in ordered])


def _frequency(categories: Sequence[Mapping[str, Any]], match: ClassMatch | None) -> npt.NDArray[np.str_] | None:
    left_out = set() if match is None else set(np.flatnonzero(match.label_of_model < 0).tolist())
    letters = ["" if place in left_out else entry.get("frequency") for place, entry in enumerate(categories)]
    if any(letters) and all(letter in ("", "r", "c", "f") for letter in letters):
        return np.array(letters)
    return None


def _looked_for(match: ClassMatch | None, num_images: int) -> npt.NDArray[np.bool_] | None:
    """Classes of the model that the labels do not have were looked for in no image."""
    if match is None or not match.only_in_model:
        return None
    return np.broadcast_to(match.label_of_model >= 0, (num_images, len(match.model_names)))


def _check_categories(
    name: str,
    categories: Sequence[Mapping[str, Any]],
    category_ids: Sequence[int] | None,
    num_classes: int | None,
) -> None:
    found = sorted(category["id"] for category in categories)
    if category_ids is not None and list(category_ids) != found:
        raise InputError(
            f"Expected the categories of `{name}` to be those of the predictions, "
            f"but {_difference(category_ids, found, 'category')}."
        )
    if num_classes is not None and num_classes != len(categories):
        raise InputError(
            f"Expected `{name}` to have the {num_classes} classes of the predictions, but it has {len(categories)}."
        )


def _matching_images(
    name: str, images: Sequence[Mapping[str, Any]], image_ids: Sequence[int] | None, *, only_predicted: bool
) -> list[Mapping[str, Any]]:
    by_id = {image["id"]: image for image in images}
    if image_ids is None:
        return list(images)
    predicted = [int(image) for image in image_ids]
    if (only_predicted and set(predicted) <= by_id.keys()) or set(predicted) == by_id.keys():
        return [by_id[image] for image in predicted]
    hint = "; evaluate only the predicted images to leave the others out" if set(predicted) < by_id.keys() else ""
    raise InputError(
        f"Expected the images of `{name}` to be those of the predictions, "
        f"but {_difference(predicted, list(by_id), 'image')}{hint}."
    )


def _left_out(annotated: Sequence[Any], images: Sequence[Any]) -> str:
    count = len(annotated) - len(images)
    return f"{count:,} of {len(annotated):,} annotated images have no predictions and are left out." if count else ""


def _difference(expected: Sequence[int], found: Sequence[int], noun: str) -> str:
    """Name what one list has and the other lacks, with one example."""
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    parts = []
    if missing:
        parts.append(f"{len(missing)} of them, {noun} {missing[0]} for one, are not annotated")
    if extra:
        parts.append(f"{len(extra)} annotated ones, {noun} {extra[0]} for one, are not predicted")
    return " and ".join(parts) or "they stand in another order"


def _marks(images: Sequence[Mapping[str, Any]], field: str, label: Mapping[int, int]) -> npt.NDArray[np.bool_]:
    marks = np.zeros((len(images), len(label)), bool)
    for index, image in enumerate(images):
        marks[index, [label[category] for category in image[field] if category in label]] = True
    return marks
