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

from logn.classes.counts import frequency_groups
from logn.classes.matching import ClassMatch, listed, match_classes
from logn.errors import InputError
from logn.evaluate.decode.detections import Detections
from logn.files import require_file
from logn.labels.annotations import FEDERATED_FIELDS, Annotations, label_protocol, read_annotations
from logn.strict_json import parse_json

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
        from logn.labels.masks import encode_segmentation

        masks = []
        for item, image in zip(self.dataset["annotations"], self.image_index.tolist(), strict=True):
            if not item.get("segmentation"):
                raise InputError(
                    f"Expected every annotation of `{self.source}` to have a `segmentation`, but annotation "
                    f"{item['id']} has none."
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
        logn.errors.InputError: Expected the images of `annotations` to have `neg_category_ids` for the LVIS protocol, but image 1 has none; evaluate as COCO (style="coco") if every class is annotated in every image.
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
        found = _in_classes_of_model(found, match, category_ids, allow_missing=allow_missing_classes)
    categories = sorted(found.categories, key=lambda category: category["id"])
    images = _matching_images(name, found.images, image_ids, only_predicted=only_predicted)
    ids = [image["id"] for image in images]
    kept = np.isin(found.image_ids, np.array(ids, np.int64))
    kept_entries = list(compress(found.entries, kept))
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
        areas=_areas(name, kept_entries, found.boxes[kept]),
        crowd=found.crowd[kept] & (style == "coco"),
        verified=verified,
        not_exhaustive=not_exhaustive,
        dataset={
            "images": images,
            "categories": categories,
            "annotations": kept_entries,
        },
        note=" ".join(filter(None, ("" if match is None else match.describe(), _left_out(found.images, images)))),
    )


def _areas(
    source: str, entries: Sequence[Mapping[str, Any]], boxes: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """What the annotations say, or the area of the box."""
    areas: npt.NDArray[np.float64] = boxes[:, 2:].prod(axis=1)
    for place, entry in enumerate(entries):
        area = entry.get("area")
        if area is not None and not isinstance(area, int | float):
            raise InputError(
                f"Expected `area` of annotation {entry['id']} of `{source}` to be a number, but got {area!r}."
            )
        areas[place] = areas[place] if area is None else area
    return areas


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
                'has none; evaluate as COCO (style="coco") if every class is annotated in every image.'
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
    hint = "; only_predicted=True leaves the others out" if set(predicted) < by_id.keys() else ""
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


def _in_classes_of_model(
    found: Annotations, match: ClassMatch, model_ids: Sequence[int] | None, *, allow_missing: bool
) -> Annotations:
    """Annotations whose categories are all classes of the model, in its order; those it lacks are left out.

    Args:
        found: Annotations with entries.
        match: Which of their classes, sorted by id, is which class of the model.
        model_ids: Category ids that the predictions were stored with; the classes are numbered from 1 on without them,
            and where these do not ascend.
        allow_missing: Leave out objects of classes that the model lacks; they are refused otherwise.
    """
    ids = _ids(match, model_ids)
    categories = sorted(found.categories, key=lambda category: category["id"])
    labels = found.positions("category", (category["id"] for category in categories))
    known = match.model_of_label >= 0
    kept = known[labels]
    if not allow_missing and not kept.all():
        _refuse(found.source, match, labels[~kept])
    new_id = {
        category["id"]: ids[place]
        for category, place in zip(categories, match.model_of_label.tolist(), strict=True)
        if place >= 0
    }
    entries = [{**entry, "category_id": new_id[entry["category_id"]]} for entry in compress(found.entries, kept)]
    return replace(
        found,
        images=[_image(image, new_id) for image in found.images],
        categories=[_category(match, place, ids[place], categories) for place in range(len(ids))],
        entries=entries,
        ids=found.ids[kept],
        image_ids=found.image_ids[kept],
        category_ids=np.array([entry["category_id"] for entry in entries], np.int64),
        boxes=found.boxes[kept],
        crowd=found.crowd[kept],
        places=found.places[kept],
    )


def _ids(match: ClassMatch, model_ids: Sequence[int] | None) -> list[int]:
    if model_ids is not None and (np.diff(model_ids) > 0).all():
        return [int(number) for number in model_ids]
    return list(range(1, len(match.model_names) + 1))


def _refuse(source: str, match: ClassMatch, labels: npt.NDArray[np.int64]) -> None:
    names = [match.label_names[place] for place in np.unique(labels)]
    raise InputError(
        f"Expected the classes of `{source}` to be classes of the model, but the model has no "
        f"{listed(names)}, of which there are {len(labels)} objects; to leave them out, pass "
        "allow_missing_classes=True."
    )


def _image(image: Mapping[str, Any], new_id: Mapping[int, int]) -> dict[str, Any]:
    lists = {
        field: [new_id[number] for number in image[field] if number in new_id]
        for field in FEDERATED_FIELDS
        if isinstance(image.get(field), list)
    }
    return {**image, **lists}


def _category(match: ClassMatch, place: int, number: int, categories: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    label = int(match.label_of_model[place])
    known = categories[label] if label >= 0 else {}
    return {**known, "id": number, "name": match.model_names[place]}


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
            f"Expected the categories of `{truth.source}` to have `frequency` (r, c or f) for the LVIS protocol, but "
            f'category {lacking} has none; give training counts (`--counts`), or evaluate as COCO (style="coco").'
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
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else float("nan")


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
        known = {"image_id", "category_id", "bbox", "score"}
        lacking = next((place for place, entry in enumerate(entries) if not known <= entry.keys()), None)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"Expected `{path}` to be a JSON list of COCO results, but it is not ({error}).") from error
    if lacking is not None:
        raise InputError(
            f"Expected every result of `{path}` to have {', '.join(sorted(known))}; entry {lacking} lacks one."
        )
    names = [(Path(str(image.get("file_name", ""))).stem, image["id"]) for image in truth.dataset["images"]]
    ids: dict[Any, int] = (
        dict(names) if len(dict(names)) == len(names) else {}
    )  # names that two images share say nothing
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
    path: str | os.PathLike[str], field: str, values: Sequence[Any], known: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    position = {value: place for place, value in enumerate(known.tolist())}
    for value in values:
        if not isinstance(value, int | float) or value not in position:
            raise InputError(f"Expected every `{field}` of `{path}` to be annotated, but {value!r} is not.")
    return np.array([position[value] for value in values], np.int64)


def _numbers(
    path: str | os.PathLike[str], entries: Sequence[Mapping[str, Any]], field: str, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """What all entries have in a field: a finite number, or `shape` of them."""
    rows = np.full((len(entries), *shape), np.nan)
    for place, entry in enumerate(entries):
        with contextlib.suppress(TypeError, ValueError):
            rows[place] = np.array(entry[field], np.float64).reshape(shape)
        if not np.isfinite(rows[place]).all():
            what = "four finite numbers" if shape else "a finite number"
            raise InputError(
                f"Expected `{field}` of every result of `{path}` to be {what}, but entry {place} has {entry[field]!r}."
            )
    return rows
