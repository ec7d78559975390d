"""COCO results: detections as a list of `image_id, category_id, bbox, score`, read and written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from logn.base.files import require_file
from logn.base.strict_json import parse_typed
from logn.data.label_sources import find_labels
from logn.errors import InputError
from logn.matching.ground_truth import GroundTruth
from logn.predictions.detections import Detections

Side = Annotated[float, msgspec.Meta(ge=0)]


class CocoResult(msgspec.Struct, frozen=True, gc=False):
    """One detection of a results file."""

    image_id: int | str
    category_id: int
    bbox: tuple[float, float, Side, Side]
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]


def read_results(path: str | os.PathLike[str], truth: GroundTruth) -> Detections:
    """Read a COCO results file: a list of `image_id, category_id, bbox, score`.

    An `image_id` may be the name of the image without its suffix, as Ultralytics writes it. Column `proposal` is the
    position in the file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from logn.matching.ground_truth import load_ground_truth
        >>> toy = {"images": [{"id": 4}], "categories": [{"id": 7}], "annotations": []}
        >>> file = Path(tempfile.mkdtemp()) / "results.json"
        >>> _ = file.write_text('[{"image_id": 4, "category_id": 7, "bbox": [1, 2, 3, 4], "score": 0.5}]')
        >>> read_results(file, load_ground_truth(toy, style="coco")).boxes.tolist()
        [[1.0, 2.0, 4.0, 6.0]]
    """
    require_file(path)
    results = parse_typed(Path(path).read_bytes(), list[CocoResult], os.fspath(path))
    image_ids = _ids_of(truth, [result.image_id for result in results])
    images = _positions(path, "image_id", image_ids, truth.image_ids)
    labels = _positions(path, "category_id", [result.category_id for result in results], truth.category_ids)
    scores = np.array([result.score for result in results], np.float64)
    boxes = np.array([result.bbox for result in results], np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    order = np.lexsort((-scores, images))
    # Full precision, unlike what the decoder gives: the file says exactly this.
    columns: dict[str, Any] = {"scores": scores[order], "boxes": boxes[order]}
    numbers = [column[order].astype(np.int32) for column in (images, labels, np.arange(len(order)))]
    return Detections(image_index=numbers[0], labels=numbers[1], proposal=numbers[2], **columns)


def _ids_of(truth: GroundTruth, named: Sequence[int | str]) -> Sequence[int | str]:
    """The ids of the images that results name: by id, or by name without its suffix, as Ultralytics writes it.

    It writes a name of digits as a number. So numbers are names, too, where any other image is named, or where the
    labels have no ids of their own.
    """
    stems = {Path(image.file_name or "").stem: image.id for image in truth.images}
    if len(stems) < truth.num_images:  # names that two images share identify neither
        return named
    if not any(isinstance(name, str) for name in named) and find_labels(truth.source).form == "json":
        return named
    ids: dict[int | str, int] = {}
    for stem, image in stems.items():
        ids[stem] = image
        if stem.isascii() and stem.isdecimal():
            ids[int(stem)] = image
    return [ids.get(name, str(name)) for name in named]


def _positions(
    path: str | os.PathLike[str], field: str, values: Sequence[int | str], annotated: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    position = {value: index for index, value in enumerate(annotated.tolist())}
    for value in values:
        if value not in position:
            raise InputError(f"`{path}` has a result with `{field}` {value!r}, which the annotations do not have.")
    return np.array([position[value] for value in values], np.int64)
