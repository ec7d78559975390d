"""Ground truth of a split: read once, checked against the predictions, shared by all methods.

Classes are put in the order of the model: its statistics, maps and scores stay as they are, only labels are renumbered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import nan_mean
from logn.base.files import require_file
from logn.base.strict_json import parse_json
from logn.data.annotations import FEDERATED_FIELDS, Annotations, label_protocol, read_annotations
from logn.data.class_counts import frequency_groups
from logn.data.class_names import ClassMatch, listed, match_classes
from logn.errors import InputError
from logn.predictions.detections import Detections
from logn.predictions.store import PredictionStore

GROUPS = ("r", "c", "f")
LVIS_BOUNDS = (10, 100)
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
        dataset: The annotations as parsed.
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
    areas: npt.NDArray[np.float64]
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
    def masks(self) -> list[dict[str, Any]]:
        """The mask of each box, run-length encoded."""
        from logn.data.masks import encode_segmentation

        masks = []
        for item, image in zip(self.dataset["annotations"], self.image_index.tolist(), strict=True):
            if not item.get("segmentation"):
                raise InputError(
                    f"Annotation {item['id']} of `{self.source}` has no `segmentation`. Mask AP needs one for every "
                    "object."
                )
            size = self.dataset["images"][image]
            masks.append(encode_segmentation(item["segmentation"], size["height"], size["width"]))
        return masks

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
            areas=self.areas[kept],
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
        logn.errors.InputError: Image 1 of `annotations` has no `neg_category_ids`, which the LVIS protocol needs. If every class is annotated in every image, evaluate as COCO (style="coco").
    """  # noqa: E501 - an error message is one line
    if style not in ("auto", "lvis", "coco"):
        raise InputError(f'Expected `style` to be "auto", "lvis" or "coco", but got {style!r}.')
    labelled = read_annotations(source, integers={"annotations": ("id",)}, entries=True, outlines=masks)
    labelled.require("images", "categories")
    name = labelled.source
    style = label_protocol(labelled) if style == "auto" else style
    _check_federated(name, labelled.images, style)
    match = _matched(labelled.categories, class_names)
    if match is None:
        _check_categories(name, labelled.categories, category_ids, num_classes)
    elif not match.identical:
        labelled = _in_classes_of_model(labelled, match, category_ids, allow_missing=allow_missing_classes)
    categories = sorted(labelled.categories, key=lambda category: category["id"])
    images = _matching_images(name, labelled.images, image_ids, only_predicted=only_predicted)
    ids = [image["id"] for image in images]
    kept = np.isin(labelled.image_ids, np.array(ids, np.int64))
    kept_entries = list(compress(labelled.entries, kept))
    image_index = labelled.positions("image", ids, of=kept)
    labels = labelled.positions("category", (category["id"] for category in categories), of=kept)
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
        boxes=labelled.boxes[kept],
        areas=_areas(name, kept_entries, labelled.boxes[kept]),
        crowd=labelled.crowd[kept] & (style == "coco"),
        verified=verified,
        not_exhaustive=not_exhaustive,
        dataset={
            "images": images,
            "categories": categories,
            "annotations": kept_entries,
        },
        note=" ".join(filter(None, ("" if match is None else match.describe(), _left_out(labelled.images, images)))),
    )


def _areas(
    source: str, entries: Sequence[Mapping[str, Any]], boxes: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """What the annotations say, or the area of the box."""
    areas: npt.NDArray[np.float64] = boxes[:, 2:].prod(axis=1)
    for row, entry in enumerate(entries):
        area = entry.get("area")
        if area is not None and not isinstance(area, int | float):
            raise InputError(f"`area` of annotation {entry['id']} of `{source}` is not a number: {area!r}.")
        areas[row] = areas[row] if area is None else area
    return areas


def refuse_without_objects(truth: GroundTruth) -> GroundTruth:
    """Give `truth` back; raise InputError where it has no objects, so that every AP would be undefined.

    Example:
        >>> toy = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "cup"}], "annotations": []}
        >>> refuse_without_objects(load_ground_truth(toy, style="coco"))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `annotations` has no objects in the evaluated images, so AP is undefined. Use the labels of the split that was predicted.
    """  # noqa: E501 - an error message is one line
    if not np.any(~truth.crowd):
        raise InputError(
            f"`{truth.source}` has no objects in the evaluated images, so AP is undefined. Use the labels of the split "
            "that was predicted."
        )
    return truth


def truth_of_predictions(
    source: str | os.PathLike[str] | Mapping[str, Any], store: PredictionStore | None = None, **options: Any
) -> GroundTruth:
    """Ground truth to measure predictions by; truth without objects and a store without images are refused.

    Args:
        source: The labels.
        store: The predictions, whose images and classes the labels must have; None for a results file.
        options: Further arguments of `load_ground_truth`.
    """
    if store is not None:
        if not len(store):
            raise InputError(f"`{store.path}` holds no predictions yet. Run `logn predict` again.")
        names = ("category_ids", "class_names", "num_classes")
        options |= {"image_ids": store.image_ids.tolist(), **{name: getattr(store.header, name) for name in names}}
    return refuse_without_objects(load_ground_truth(source, **options))


def _check_federated(name: str, images: Sequence[Mapping[str, Any]], style: str) -> None:
    for field in FEDERATED_FIELDS if style == "lvis" else ():
        lacking = next((image["id"] for image in images if not isinstance(image.get(field), list)), None)
        if lacking is not None:
            raise InputError(
                f"Image {lacking} of `{name}` has no `{field}`, which the LVIS protocol needs. If every class is "
                'annotated in every image, evaluate as COCO (style="coco").'
            )


def _matched(categories: Sequence[Mapping[str, Any]], class_names: Sequence[str] | None) -> ClassMatch | None:
    if class_names is None:
        return None
    ordered = sorted(categories, key=lambda category: category["id"])
    return match_classes(class_names, [str(category.get("name", category["id"])) for category in ordered])


def _frequency(categories: Sequence[Mapping[str, Any]], match: ClassMatch | None) -> npt.NDArray[np.str_] | None:
    left_out = set() if match is None else set(np.flatnonzero(match.label_of_model < 0).tolist())
    letters = ["" if index in left_out else entry.get("frequency") for index, entry in enumerate(categories)]
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
    annotated = sorted(category["id"] for category in categories)
    remedy = "Predict again with `class_names` (`--class-names`), and classes are matched by name."
    if category_ids is not None and list(category_ids) != annotated:
        raise InputError(
            f"The categories of `{name}` are not those of the predictions: "
            f"{_difference(category_ids, annotated, 'category')}. {remedy}"
        )
    if num_classes is not None and num_classes != len(categories):
        raise InputError(f"`{name}` has {len(categories)} classes, but the predictions have {num_classes}. {remedy}")


def _matching_images(
    name: str, images: Sequence[Mapping[str, Any]], image_ids: Sequence[int] | None, *, only_predicted: bool
) -> list[Mapping[str, Any]]:
    by_id = {image["id"]: image for image in images}
    if image_ids is None:
        return list(images)
    predicted = [int(image) for image in image_ids]
    if (only_predicted and set(predicted) <= by_id.keys()) or set(predicted) == by_id.keys():
        return [by_id[image] for image in predicted]
    some = set(predicted) < by_id.keys()
    remedy = "Pass only_predicted=True to leave the others out" if some else "Use the labels of the predicted split"
    raise InputError(
        f"The images of `{name}` are not those of the predictions: {_difference(predicted, list(by_id), 'image')}. "
        f"{remedy}."
    )


def _left_out(annotated: Sequence[Any], images: Sequence[Any]) -> str:
    count = len(annotated) - len(images)
    return f"{count:,} of {len(annotated):,} annotated images have no predictions and are left out." if count else ""


def _difference(predicted: Sequence[int], annotated: Sequence[int], noun: str) -> str:
    """Name what one list has and the other lacks, with one example."""
    missing, extra = sorted(set(predicted) - set(annotated)), sorted(set(annotated) - set(predicted))
    parts = []
    if missing:
        parts.append(f"{len(missing)} predicted but not annotated (such as {noun} {missing[0]})")
    if extra:
        parts.append(f"{len(extra)} annotated but not predicted (such as {noun} {extra[0]})")
    return ", ".join(parts) or "they stand in another order"


def _marks(images: Sequence[Mapping[str, Any]], field: str, label: Mapping[int, int]) -> npt.NDArray[np.bool_]:
    marks = np.zeros((len(images), len(label)), bool)
    for index, image in enumerate(images):
        marks[index, [label[category] for category in image[field] if category in label]] = True
    return marks


def _in_classes_of_model(
    labelled: Annotations, match: ClassMatch, model_ids: Sequence[int] | None, *, allow_missing: bool
) -> Annotations:
    """Annotations whose categories are all classes of the model, in its order; those it lacks are left out.

    Args:
        labelled: Annotations with entries.
        match: Which of their classes, sorted by id, is which class of the model.
        model_ids: Category ids that the predictions were stored with; the classes are numbered from 1 on without them,
            and where these do not ascend.
        allow_missing: Leave out objects of classes that the model lacks; they are refused otherwise.
    """
    ids = _ids(match, model_ids)
    categories = sorted(labelled.categories, key=lambda category: category["id"])
    labels = labelled.positions("category", (category["id"] for category in categories))
    in_model = match.model_of_label >= 0
    kept = in_model[labels]
    if not allow_missing and not kept.all():
        _refuse(labelled.source, match, labels[~kept])
    new_id = {
        category["id"]: ids[model_class]
        for category, model_class in zip(categories, match.model_of_label.tolist(), strict=True)
        if model_class >= 0
    }
    entries = [{**entry, "category_id": new_id[entry["category_id"]]} for entry in compress(labelled.entries, kept)]
    return replace(
        labelled,
        images=[_image(image, new_id) for image in labelled.images],
        categories=[_category(match, model_class, ids, categories) for model_class in range(len(ids))],
        entries=entries,
        ids=labelled.ids[kept],
        image_ids=labelled.image_ids[kept],
        category_ids=np.array([entry["category_id"] for entry in entries], np.int64),
        boxes=labelled.boxes[kept],
        crowd=labelled.crowd[kept],
        places=labelled.places[kept],
    )


def _ids(match: ClassMatch, model_ids: Sequence[int] | None) -> list[int]:
    if model_ids is not None and (np.diff(model_ids) > 0).all():
        return [int(number) for number in model_ids]
    return list(range(1, len(match.model_names) + 1))


def _refuse(source: str, match: ClassMatch, labels: npt.NDArray[np.int64]) -> None:
    names = [match.label_names[label] for label in np.unique(labels)]
    raise InputError(
        f"`{source}` has {len(labels)} objects of classes that the model does not have: {listed(names)}. Pass "
        "allow_missing_classes=True to leave them out."
    )


def _image(image: Mapping[str, Any], new_id: Mapping[int, int]) -> dict[str, Any]:
    lists = {
        field: [new_id[number] for number in image[field] if number in new_id]
        for field in FEDERATED_FIELDS
        if isinstance(image.get(field), list)
    }
    return {**image, **lists}


def _category(
    match: ClassMatch, model_class: int, ids: Sequence[int], categories: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    label = int(match.label_of_model[model_class])
    category = categories[label] if label >= 0 else {}
    return {**category, "id": ids[model_class], "name": match.model_names[model_class]}


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
        lacking = next(item["id"] for item in truth.dataset["categories"] if item.get("frequency") not in GROUPS)
        raise InputError(
            f"Category {lacking} of `{truth.source}` has no `frequency` (r, c or f), which the LVIS protocol needs. "
            'Pass training counts (`--counts`), or evaluate as COCO (style="coco").'
        )
    if truth.frequency is None:
        return None, None
    return truth.frequency, "the field `frequency`"


def mean_per_group(values: npt.NDArray[np.float64], groups: Groups | None) -> dict[str, float]:
    """Mean of the values that are there, over the classes of each group.

    Example:
        >>> mean_per_group(np.array([0.2, 0.4, np.nan]), np.array(["r", "f", "f"]))
        {'r': 0.2, 'c': nan, 'f': 0.4}
    """
    if groups is None:
        return {}
    return {group: mean_of_present(values[groups == group]) for group in GROUPS}


def mean_of_present(values: npt.NDArray[np.float64]) -> float:
    """Mean of what is not NaN; NaN when nothing is left."""
    return float(nan_mean(values))


def read_results(path: str | os.PathLike[str], truth: GroundTruth) -> Detections:
    """Read a COCO results file: a list of `image_id, category_id, bbox, score`.

    An `image_id` may be the name of the image without its suffix, as Ultralytics writes it. Column `proposal` is the
    position in the file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> toy = {"images": [{"id": 4}], "categories": [{"id": 7}], "annotations": []}
        >>> file = Path(tempfile.mkdtemp()) / "results.json"
        >>> _ = file.write_text('[{"image_id": 4, "category_id": 7, "bbox": [1, 2, 3, 4], "score": 0.5}]')
        >>> read_results(file, load_ground_truth(toy, style="coco")).boxes.tolist()
        [[1.0, 2.0, 4.0, 6.0]]
    """
    require_file(path)
    try:
        entries = parse_json(Path(path).read_bytes())
        fields = {"image_id", "category_id", "bbox", "score"}
        lacking = next((row for row, entry in enumerate(entries) if not fields <= entry.keys()), None)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"`{path}` is not a JSON list of COCO results: {error}.") from error
    if lacking is not None:
        raise InputError(f"Result {lacking} of `{path}` lacks one of {', '.join(sorted(fields))}.")
    names = [(Path(str(image.get("file_name", ""))).stem, image["id"]) for image in truth.dataset["images"]]
    # Names that two images share identify neither.
    ids: dict[Any, int] = dict(names) if len(dict(names)) == len(names) else {}
    image_ids = [ids.get(entry["image_id"], entry["image_id"]) for entry in entries]
    images = _positions(path, "image_id", image_ids, truth.image_ids)
    labels = _positions(path, "category_id", [entry["category_id"] for entry in entries], truth.category_ids)
    scores, boxes = _numbers(path, entries, "score", ()), _numbers(path, entries, "bbox", (4,))
    boxes[:, 2:] += boxes[:, :2]
    order = np.lexsort((-scores, images))
    # Full precision, unlike what the decoder gives: the file says exactly this.
    columns: dict[str, Any] = {"scores": scores[order], "boxes": boxes[order]}
    numbers = [column[order].astype(np.int32) for column in (images, labels, np.arange(len(order)))]
    return Detections(image_index=numbers[0], labels=numbers[1], proposal=numbers[2], **columns)


def _positions(
    path: str | os.PathLike[str], field: str, values: Sequence[Any], annotated: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    position = {value: index for index, value in enumerate(annotated.tolist())}
    for value in values:
        if not isinstance(value, int | float) or value not in position:
            raise InputError(f"`{path}` has a result with `{field}` {value!r}, which the annotations do not have.")
    return np.array([position[value] for value in values], np.int64)


def _numbers(
    path: str | os.PathLike[str], entries: Sequence[Mapping[str, Any]], field: str, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """What all entries have in a field: a finite number, or `shape` of them."""
    rows = np.full((len(entries), *shape), np.nan)
    for row, entry in enumerate(entries):
        with contextlib.suppress(TypeError, ValueError):
            rows[row] = np.array(entry[field], np.float64).reshape(shape)
        if not np.isfinite(rows[row]).all():
            what = "four finite numbers" if shape else "a finite number"
            raise InputError(f"`{field}` of result {row} of `{path}` must be {what}, but it is {entry[field]!r}.")
    return rows
