"""Instance masks for several methods at once: each (image, proposal, class) that any of them keeps is made once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.data.masks import BoolArray
from logn.errors import InputError
from logn.models.images import as_tensor
from logn.models.proposals import ProposingDetector
from logn.predictions.detections import Detections
from logn.predictions.predict import ImageSource
from logn.predictions.store import PredictionStore
from logn_research.datasets.masks import encode_mask

# A pixel belongs to the object from here on, as in torchvision's reference evaluation.
_THRESHOLD = 0.5


def mask_maker(
    detector: ProposingDetector,
    dataset: ImageSource,
    store: PredictionStore | str | os.PathLike[str],
    *,
    batch: int = 4,
    progress: Callable[[int], object] = lambda count: None,
) -> Callable[[Sequence[Detections]], list[list[dict[str, Any]]]]:
    """Give the function from the detections of several methods to their masks.

    The masks are run-length encoded, in the order of the detections. Methods that keep the same proposal for the
    same class share one mask.

    Args:
        detector: Its `predict_masks` is called once per image, with all that any method kept there.
        dataset: The images.
        store: The store that the detections were decoded from.
        batch: Images per forward pass.
        progress: Called with the number of images whenever some are done.
    """
    store = store if isinstance(store, PredictionStore) else PredictionStore(store)
    place_of = {image_id: place for place, image_id in enumerate(dataset.image_ids.tolist())}
    missing = [image_id for image_id in store.image_ids.tolist() if image_id not in place_of]
    if missing:
        raise InputError(f"The predictions have image {missing[0]}, but `dataset` does not.")
    places = np.array([place_of[image_id] for image_id in store.image_ids.tolist()], np.intp)

    def make(methods: Sequence[Detections]) -> list[list[dict[str, Any]]]:
        distinct, references = distinct_detections(methods)
        encoded: list[dict[str, Any]] = []
        for images, parts in _batches(distinct, batch):
            encoded += _encoded_masks(detector, dataset, places[images], parts)
            progress(len(parts))
        return [[encoded[number] for number in rows.tolist()] for rows in references]

    return make


def distinct_detections(methods: Sequence[Detections]) -> tuple[Detections, list[npt.NDArray[np.intp]]]:
    """Each (image, proposal, class) of any method once, sorted so, and for each method where its rows are.

    Example:
        >>> one = Detections(np.zeros(1, np.int32), np.array([3], np.int32), np.ones(1, np.float32),
        ...     np.zeros((1, 4), np.float32), np.array([7], np.int32))
        >>> union, references = distinct_detections([one, one])
        >>> len(union), references
        (1, [array([0]), array([0])])
    """
    everything = Detections.concatenate(methods)
    if not len(everything):
        return everything, [np.empty(0, np.intp) for _ in methods]
    classes, proposals = int(everything.labels.max()) + 1, int(everything.proposal.max()) + 1
    key = (everything.image_index.astype(np.int64) * proposals + everything.proposal) * classes + everything.labels
    _, first, reference = np.unique(key, return_index=True, return_inverse=True)
    ends = np.cumsum([len(method) for method in methods])
    return everything.take(first), np.split(reference.astype(np.intp), ends[:-1])


def _batches(distinct: Detections, size: int) -> Iterator[tuple[npt.NDArray[np.intp], list[Detections]]]:
    if not len(distinct):
        return
    images, starts = np.unique(distinct.image_index, return_index=True)
    stops = np.append(starts[1:], len(distinct))
    parts = [distinct.take(slice(int(start), int(stop))) for start, stop in zip(starts, stops, strict=True)]
    for begin in range(0, len(images), size):
        yield images[begin : begin + size].astype(np.intp), parts[begin : begin + size]


def _encoded_masks(
    detector: Any, dataset: ImageSource, places: npt.NDArray[np.intp], parts: Sequence[Detections]
) -> list[dict[str, Any]]:
    images = [as_tensor(dataset.read_image(int(place))) for place in places]
    masks = detector.predict_masks(images, [part.boxes for part in parts], [part.labels for part in parts])
    return [
        encode_mask(paste_mask(mask, box, int(image.shape[-2]), int(image.shape[-1])))
        for image, part, of_image in zip(images, parts, masks, strict=True)
        for mask, box in zip(of_image, part.boxes, strict=True)
    ]


def paste_mask(mask: npt.NDArray[np.float32], box: npt.NDArray[np.float32], height: int, width: int) -> BoolArray:
    """Bring a mask `(R, R)` from the frame of its box to the image, as torchvision does.

    The mask gets a border of one empty pixel, its box grows accordingly and is cut to whole pixels, and the mask is
    interpolated linearly over it.

    Example:
        >>> pasted = paste_mask(np.ones((28, 28), np.float32), np.array([10, 10, 40, 30], np.float32), 50, 60)
        >>> int(pasted.sum()), pasted[20, 8:12].tolist()
        (640, [False, True, True, True])
    """
    bordered = np.pad(np.asarray(mask, np.float32), 1)
    scale = np.float32(len(bordered) / len(mask))
    centre, half = (box[:2] + box[2:]) * np.float32(0.5), (box[2:] - box[:2]) * np.float32(0.5) * scale
    left, top = (centre - half).astype(np.int64).tolist()
    right, bottom = (centre + half).astype(np.int64).tolist()
    pasted = np.zeros((height, width), np.bool_)
    columns, rows = slice(max(left, 0), min(right + 1, width)), slice(max(top, 0), min(bottom + 1, height))
    if columns.start >= columns.stop or rows.start >= rows.stop:
        return pasted
    across = _interpolation(bordered.shape[1], max(right - left + 1, 1))[columns.start - left : columns.stop - left]
    down = _interpolation(bordered.shape[0], max(bottom - top + 1, 1))[rows.start - top : rows.stop - top]
    pasted[rows, columns] = down @ bordered @ across.T > _THRESHOLD
    return pasted


def _interpolation(source: int, target: int) -> npt.NDArray[np.float32]:
    """The matrix `(target, source)` of linear interpolation between pixel centres, constant beyond the outer ones."""
    position = np.maximum((np.arange(target) + 0.5) * source / target - 0.5, 0.0)
    below = np.minimum(position.astype(np.intp), source - 1)
    share = (position - below).astype(np.float32)
    matrix = np.zeros((target, source), np.float32)
    place = np.arange(target)
    matrix[place, below] += 1 - share
    matrix[place, np.minimum(below + 1, source - 1)] += share
    return matrix
