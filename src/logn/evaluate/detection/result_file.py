"""COCO-style result files: the detections of any other tool, ready for the same metrics."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.classes.counts import ClassCounts
from logn.errors import InputError, import_extra
from logn.evaluate.comparison.comparison import Comparison, DetectionScope, detection_classes
from logn.evaluate.comparison.provenance import Provenance
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.bootstrap import Interval
from logn.evaluate.detection.class_groups import groups_of_classes
from logn.evaluate.detection.fixed_and_pool import fixed_protocol
from logn.evaluate.detection.ground_truth import GroundTruth, load_ground_truth, refuse_without_objects
from logn.evaluate.detection.measurement import Measurement, MethodDetections
from logn.files import require_file
from logn.strict_json import parse_json


def read_results(path: str | os.PathLike[str], truth: GroundTruth) -> tuple[Detections, list[dict[str, Any]] | None]:
    """Read a list of `image_id, category_id, bbox, score` and, where all have one, the segmentations.

    An `image_id` may be the name of the image without its suffix, as Ultralytics writes it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from logn.evaluate.detection.ground_truth import load_ground_truth, refuse_without_objects
        >>> toy = {"images": [{"id": 4}], "categories": [{"id": 7}], "annotations": []}
        >>> truth = load_ground_truth(toy, style="coco")
        >>> file = Path(tempfile.mkdtemp()) / "results.json"
        >>> _ = file.write_text('[{"image_id": 4, "category_id": 7, "bbox": [1, 2, 3, 4], "score": 0.5}]')
        >>> read_results(file, truth)[0].boxes.tolist()
        [[1.0, 2.0, 4.0, 6.0]]
    """
    entries = _with_image_numbers(_entries(path), truth)
    images = _positions(path, entries, "image_id", truth.image_ids)
    labels = _positions(path, entries, "category_id", truth.category_ids)
    masks = _masks(path, entries, truth)
    boxes = _boxes(path, entries, masks)
    boxes[:, 2:] += boxes[:, :2]
    scores = _numbers(path, entries, "score", ())
    order = np.lexsort((-scores, images))
    # Full precision, unlike what the decoder gives: the file says exactly this.
    columns: dict[str, Any] = {"scores": scores[order], "boxes": boxes[order]}
    detections = Detections(
        image_index=images[order].astype(np.int32),
        labels=labels[order].astype(np.int32),
        proposal=order.astype(np.int32),
        **columns,
    )
    return detections, None if masks is None else [masks[place] for place in order.tolist()]


def _with_image_numbers(entries: Sequence[dict[str, Any]], truth: GroundTruth) -> list[dict[str, Any]]:
    names = [(Path(str(image.get("file_name", ""))).stem, image["id"]) for image in truth.dataset["images"]]
    number = dict(names) if len(dict(names)) == len(names) else {}  # a name that two images have says nothing
    return [
        {**entry, "image_id": number[entry["image_id"]]}
        if isinstance(entry["image_id"], str) and entry["image_id"] in number
        else entry
        for entry in entries
    ]


def _masks(
    path: str | os.PathLike[str], entries: Sequence[dict[str, Any]], truth: GroundTruth
) -> list[dict[str, Any]] | None:
    """The mask of each result, run-length encoded; None unless all have one."""
    area = import_extra("hotcoco", extra="evaluate").mask.area

    if not entries or not all(entry.get("segmentation") for entry in entries):
        return None
    sizes = {image["id"]: [image.get("height"), image.get("width")] for image in truth.dataset["images"]}
    numbers = dict(zip(truth.image_ids.tolist(), truth.image_numbers.tolist(), strict=True))
    masks = []
    for place, entry in enumerate(entries):
        mask = entry["segmentation"]
        try:
            mask = (
                mask
                if isinstance(mask, dict)
                else truth.evaluator_dataset.ann_to_rle({**entry, "image_id": numbers[entry["image_id"]]})
            )
            area(mask)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"Expected `segmentation` of every result of `{path}` to be polygons or run lengths, but that of entry "
                f"{place} is neither ({error})."
            ) from error
        expected, got = sizes[entry["image_id"]], list(mask["size"])
        if None not in expected and got != expected:
            raise InputError(
                f"Expected the masks of `{path}` to have the size of their images, but that of entry {place} has "
                f"height and width {got} where image {entry['image_id']} has {expected}."
            )
        masks.append(mask)
    return masks


def _boxes(
    path: str | os.PathLike[str], entries: Sequence[dict[str, Any]], masks: list[dict[str, Any]] | None
) -> npt.NDArray[np.float64]:
    """The box of each result, or where there is none that of its mask."""
    to_bbox = import_extra("hotcoco", extra="evaluate").mask.to_bbox

    missing = next((place for place, entry in enumerate(entries) if "bbox" not in entry), None)
    if missing is not None and masks is not None:
        return np.asarray(to_bbox(masks), np.float64).reshape(-1, 4)
    if missing is not None:
        raise InputError(f"Expected every result of `{path}` to have `bbox`, but entry {missing} has none.")
    return _numbers(path, entries, "bbox", (4,))


def _numbers(
    path: str | os.PathLike[str], entries: Sequence[dict[str, Any]], field: str, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """What all entries have in a field: a finite number, or `shape` of them."""
    if not entries:
        return np.zeros((0, *shape))
    try:
        values = np.array([entry[field] for entry in entries], np.float64)
        if values.shape[1:] == shape and np.isfinite(values).all():
            return values
    except (TypeError, ValueError):
        pass  # found again below, one by one
    place = next(place for place, entry in enumerate(entries) if not _fits(entry[field], shape))
    what, got = "four finite numbers" if shape else "a finite number", entries[place][field]
    raise InputError(f"Expected `{field}` of every result of `{path}` to be {what}, but entry {place} has {got!r}.")


def _fits(value: Any, shape: tuple[int, ...]) -> bool:
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError):
        return False
    return array.shape == shape and bool(np.isfinite(array).all())


def evaluate_results(
    path: str | os.PathLike[str],
    annotations: str | os.PathLike[str] | Mapping[str, Any],
    *,
    settings: CompareSettings | None = None,
    group_counts: npt.ArrayLike | None = None,
    counts: ClassCounts | None = None,
) -> Comparison:
    """Measure a result file of any tool; the one row has the file's name.

    Args:
        path: The result file.
        annotations: Ground truth: LVIS, COCO, YOLO or VOC annotations, or the content of a file.
        settings: What is measured; what concerns decoding, draws and halves does not apply.
        group_counts: Training images of each class, for the groups; by default the field `frequency` says them.
        counts: The same, for annotations without that field.
    """
    settings = settings or CompareSettings()
    truth = refuse_without_objects(load_ground_truth(annotations, style=settings.style, masks=True))
    detections, masks = read_results(path, truth)
    if settings.only_predicted:
        truth = truth.part(np.bincount(detections.image_index, minlength=truth.num_images) > 0)
        detections, masks = read_results(path, truth)
    if group_counts is None and truth.frequency is None and counts is not None:
        group_counts = counts.aligned_to(truth.class_names).image_counts
    groups, source = groups_of_classes(truth, group_counts, settings.group_bounds)
    protocol = settings.protocol(truth, source, decoded=False)
    measurement = Measurement(
        truth, protocol, fixed_protocol(protocol), groups, settings.errors, mask_errors=settings.mask_errors
    )
    fixed = detections if settings.fixed else None
    row, _ = measurement.measure(MethodDetections(Path(path).name, detections, fixed, masks))
    protocols = measurement.protocols(masks=masks is not None, fixed=settings.fixed)
    return Comparison(
        rows=(replace(row, differences={name: Interval(0.0, math.nan, math.nan) for name in row.values}),),
        scope=DetectionScope(protocol, protocols),
        classes=detection_classes(truth, groups),
        settings=replace(settings, num_bootstrap=0, style=truth.style),
        seconds={"metrics": row.seconds},
        provenance=Provenance.now({"results": os.fspath(path), "annotations": truth.source}),
    )


def _entries(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    require_file(path)
    try:
        entries = parse_json(Path(path).read_bytes())
    except ValueError as error:
        raise InputError(f"Expected `{path}` to be JSON, but it cannot be read ({error}).") from error
    if not isinstance(entries, list):
        raise InputError(f"Expected `{path}` to hold a list of results, but it holds a {type(entries).__name__}.")
    for place, entry in enumerate(entries):
        for field in ("image_id", "category_id", "score"):
            if not isinstance(entry, dict) or field not in entry:
                raise InputError(f"Expected every result of `{path}` to have `{field}`, but entry {place} has none.")
    return entries


def _positions(
    path: str | os.PathLike[str], entries: Sequence[dict[str, Any]], field: str, known: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    position = {value: place for place, value in enumerate(known.tolist())}
    for entry in entries:
        if not isinstance(entry[field], int | float) or entry[field] not in position:
            raise InputError(f"Expected every `{field}` of `{path}` to be annotated, but {entry[field]!r} is not.")
    return np.array([position[entry[field]] for entry in entries], np.int64)
