"""Labels and COCO results: read, checked against the predictions, and put in their order of images and classes.

Classes are put in the order of the model: its statistics, maps and scores stay as they are, only labels are renumbered.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.files import atomic_path, require_file
from logn.base.strict_json import parse_json
from logn.data.class_names import ClassMatch, listed, match_classes
from logn.data.label_sources import find_labels
from logn.data.labels import Labels, fingerprint_images
from logn.errors import InputError
from logn.matching.truth import GROUPS, GroundTruth
from logn.predictions.detections import Detections
from logn.predictions.store import Predictions


def truth_of_predictions(
    source: str | os.PathLike[str] | Mapping[str, Any], store: Predictions | None = None, **options: Any
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
        options |= {
            "image_ids": store.image_ids.tolist(),
            "category_ids": store.header.category_ids,
            "class_names": store.head.class_names,
            "num_classes": store.head.num_classes,
        }
    truth = refuse_without_objects(load_ground_truth(source, **options))
    if store is not None:
        _check_sizes(truth, store)
    return truth


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
    if style not in ("auto", "lvis", "coco"):
        raise InputError(f'Expected `style` to be "auto", "lvis" or "coco", but got {style!r}.')
    labelled = Labels.load(source, outlines=masks)
    labelled.require("images", "categories")
    name, numbers, names = labelled.source, labelled.category_ids.tolist(), labelled.class_names
    style = labelled.protocol if style == "auto" else style
    letters = [category.frequency for category in labelled.categories]
    match = None if class_names is None else match_classes(class_names, names)
    class_of, entry_of = np.arange(len(names)), np.arange(len(names))
    in_model = np.ones(len(labelled), bool)
    if match is None:
        _check_categories(name, numbers, category_ids, num_classes)
    elif not match.identical:
        class_of, entry_of, names = match.model_of_label, match.label_of_model, match.model_names
        in_model = _in_model(labelled, match, allow_missing=allow_missing_classes)
    entries = _matching_images(labelled, image_ids, only_predicted=only_predicted)
    index_of = np.full(len(labelled.images), -1)
    index_of[entries] = np.arange(len(entries))
    objects = np.flatnonzero((index_of[labelled.image_index] >= 0) & in_model)
    image_index, labels = index_of[labelled.image_index[objects]], class_of[labelled.classes[objects]]
    # Classes of the model that the labels do not have were looked for in no image.
    verified = None if (entry_of >= 0).all() else np.broadcast_to(entry_of >= 0, (len(entries), len(names)))
    not_exhaustive = None
    if style == "lvis":
        verified, not_exhaustive = (
            np.where(entry_of >= 0, labelled.listed_classes(field)[entries][:, entry_of], False)
            for field in ("neg_category_ids", "not_exhaustive_category_ids")
        )
        verified[image_index, labels] = True
    left_out = _left_out(len(labelled.images), len(entries))
    return GroundTruth(
        source=name,
        style=style,
        image_ids=labelled.image_ids[entries],
        category_ids=np.array(numbers if match is None or match.identical else _new_ids(match, category_ids), np.int64),
        label_ids=np.where(entry_of >= 0, labelled.category_ids[entry_of], -1),
        class_names=names,
        frequency=_frequency([letters[entry] if entry >= 0 else "" for entry in entry_of.tolist()]),
        image_index=image_index,
        labels=labels,
        boxes=labelled.boxes[objects],
        areas=labelled.areas[objects],
        crowd=labelled.crowd[objects] & (style == "coco"),
        verified=verified,
        not_exhaustive=not_exhaustive,
        images=tuple(labelled.images[entry] for entry in entries.tolist()),
        outlines=None if labelled.outlines is None else tuple(labelled.outlines[row] for row in objects.tolist()),
        note=" ".join(filter(None, ["" if match is None else match.describe(), left_out])),
    )


def _frequency(letters: Sequence[str | None]) -> npt.NDArray[np.str_] | None:
    """The groups that the labels name; a class that they do not have is in none."""
    return np.array(letters) if any(letters) and all(letter in ("", *GROUPS) for letter in letters) else None


def _check_categories(
    name: str, annotated: Sequence[int], category_ids: Sequence[int] | None, num_classes: int | None
) -> None:
    remedy = "Predict again with `class_names`, and classes are matched by name."
    if category_ids is not None and list(category_ids) != annotated:
        raise InputError(
            f"The categories of `{name}` are not those of the predictions: "
            f"{_difference(category_ids, annotated, 'category')}. {remedy}"
        )
    if num_classes is not None and num_classes != len(annotated):
        raise InputError(f"`{name}` has {len(annotated)} classes, but the predictions have {num_classes}. {remedy}")


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


def _left_out(annotated: int, evaluated: int) -> str:
    count = annotated - evaluated
    return f"{count:,} of {annotated:,} annotated images have no predictions and are left out." if count else ""


def _difference(predicted: Sequence[int], annotated: Sequence[int], noun: str) -> str:
    """Name what one list has and the other lacks, with one example."""
    missing, extra = sorted(set(predicted) - set(annotated)), sorted(set(annotated) - set(predicted))
    parts = []
    if missing:
        parts.append(f"{len(missing)} predicted but not annotated (such as {noun} {missing[0]})")
    if extra:
        parts.append(f"{len(extra)} annotated but not predicted (such as {noun} {extra[0]})")
    return ", ".join(parts) or "they stand in another order"


def _in_model(labels: Labels, match: ClassMatch, *, allow_missing: bool) -> npt.NDArray[np.bool_]:
    """`(N,)` the objects whose class the model has; unless they are to be left out, others are refused."""
    in_model: npt.NDArray[np.bool_] = match.model_of_label[labels.classes] >= 0
    if not allow_missing and not in_model.all():
        names = [match.label_names[label] for label in np.unique(labels.classes[~in_model])]
        raise InputError(
            f"`{labels.source}` has {int((~in_model).sum())} objects of classes that the model does not have: "
            f"{listed(names)}. Take them out of the labels (in Python allow_missing_classes=True leaves them out)."
        )
    return in_model


def _new_ids(match: ClassMatch, model_ids: Sequence[int] | None) -> Sequence[int]:
    """Ids of the model's classes: those that the predictions were stored with, where they ascend, else from 1 on."""
    if model_ids is not None and (np.diff(model_ids) > 0).all():
        return model_ids
    return range(1, len(match.model_names) + 1)


def write_results(path: Path, detections: Detections, masks: Sequence[Mapping[str, Any]], truth: GroundTruth) -> None:
    """Write detections with masks as LVIS and COCO take them: a list of `image_id, category_id, score, segmentation`.

    Classes that the annotations do not have are left out. There is no `bbox`: both packages take the box and the area
    from the mask then.
    """
    columns = (truth.image_ids[detections.image_index], truth.label_ids[detections.labels], detections.scores)
    rows = zip(*(column.tolist() for column in columns), masks, strict=True)
    names = ("image_id", "category_id", "score", "segmentation")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        lines = (json.dumps(dict(zip(names, row, strict=True))) for row in rows if row[1] >= 0)
        file.write("[" + next(lines, ""))
        file.writelines(f",\n{line}" for line in lines)
        file.write("]\n")


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
    except ValueError as error:
        raise InputError(f"`{path}` is not a JSON list of COCO results: {error}.") from error
    fields = {"image_id", "category_id", "bbox", "score"}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        is_labels = isinstance(entries, dict) and "annotations" in entries
        holds = "labels" if is_labels else "a JSON object" if isinstance(entries, dict) else "other values"
        wanted = f"a JSON list of objects with {', '.join(sorted(fields))}"
        raise InputError(f"`{path}` holds {holds}, not COCO results, which are {wanted}.")
    lacking = next((row for row, entry in enumerate(entries) if not fields <= entry.keys()), None)
    if lacking is not None:
        raise InputError(f"Result {lacking} of `{path}` lacks one of {', '.join(sorted(fields))}.")
    image_ids = _ids_of(truth, [entry["image_id"] for entry in entries])
    images = _positions(path, "image_id", image_ids, truth.image_ids)
    labels = _positions(path, "category_id", [entry["category_id"] for entry in entries], truth.category_ids)
    scores, boxes = _numbers(path, entries, "score", ()), _numbers(path, entries, "bbox", (4,))
    boxes[:, 2:] += boxes[:, :2]
    for row in np.flatnonzero((scores < 0) | (scores > 1))[:1].tolist():
        raise InputError(
            f"`score` of result {row} of `{path}` must be from 0 to 1, but is {scores[row]:g}: divide scores in "
            "percent by 100, and put logits through the model's sigmoid or softmax."
        )
    for row in np.flatnonzero((boxes[:, 2:] < boxes[:, :2]).any(axis=1))[:1].tolist():
        raise InputError(
            f"`bbox` of result {row} of `{path}` must be x, y, width and height, the last two at least 0, but is "
            f"{entries[row]['bbox']!r:.80}."
        )
    order = np.lexsort((-scores, images))
    # Full precision, unlike what the decoder gives: the file says exactly this.
    columns: dict[str, Any] = {"scores": scores[order], "boxes": boxes[order]}
    numbers = [column[order].astype(np.int32) for column in (images, labels, np.arange(len(order)))]
    return Detections(image_index=numbers[0], labels=numbers[1], proposal=numbers[2], **columns)


def _ids_of(truth: GroundTruth, named: Sequence[Any]) -> list[Any]:
    """The ids of the images that results name: by id, or by name without its suffix, as Ultralytics writes it.

    It writes a name of digits as a number. So numbers are names, too, where any other image is named, or where the
    labels have no ids of their own.
    """
    stems = {Path(image.file_name or "").stem: image.id for image in truth.images}
    if len(stems) < truth.num_images:  # names that two images share identify neither
        return list(named)
    if not any(isinstance(name, str) for name in named) and find_labels(truth.source).form == "json":
        return list(named)
    numbers = {int(stem): image for stem, image in stems.items() if stem.isascii() and stem.isdecimal()}
    ids: dict[Any, int] = {**stems, **numbers}
    return [ids.get(name, str(name)) for name in named]


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
