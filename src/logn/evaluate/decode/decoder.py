"""Decode: from stored proposals to detections, for any number of methods in one pass.

The steps are those of torchvision and MMDetection: map the logits, activate, drop the background, keep scores above a
threshold, drop tiny boxes, suppress class by class, keep the best of the image.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.evaluate.decode.candidates import (
    BestPerClass,
    Candidates,
    SortedCandidates,
    best_candidates,
    boxes_of,
    has_small_boxes,
)
from logn.evaluate.decode.class_scores import Float32, ImageLogits, ScoreFunction, Scratch, Transform
from logn.evaluate.decode.detections import Detections
from logn.evaluate.decode.nms import AgnosticSuppression, ClassBoxSuppression, Suppression
from logn.evaluate.store.prediction_store import PredictionStore
from logn.logits.arrays import check_background, foreground_columns
from logn.logits.proposals import Proposals

# Images that one thread decodes at a time, and of which memory is let go together.
_IMAGES_AT_ONCE = 16


@dataclass(frozen=True)
class DecodeSettings:
    """What decides, apart from the scores, which proposals become detections.

    Args:
        score_threshold: Scores strictly greater than this are kept.
        nms_iou: Boxes of one class that overlap a better one by more than this are dropped.
        max_detections: How many detections an image may have, over all classes; None or -1 for all.
        max_per_class: How many detections a class may have over the whole data set (AP-Fixed uses 10,000); None
            for all.
        min_box_size: Boxes with a side shorter than this, in pixels, are dropped, as torchvision does; 0 drops none.
        activation: "softmax" or "sigmoid"; "recorded" takes what the store says.
        background: Place of the background column, None, 0 or -1; "recorded" takes what the store says.

    Example:
        >>> DecodeSettings(max_detections=-1).max_detections is None
        True
    """

    score_threshold: float = 1e-4
    nms_iou: float = 0.5
    max_detections: int | None = 300
    max_per_class: int | None = None
    min_box_size: float = 1e-2
    activation: str = "recorded"
    background: int | str | None = "recorded"

    def __post_init__(self) -> None:
        for name in ("max_detections", "max_per_class"):
            value = getattr(self, name)
            if value == -1:
                object.__setattr__(self, name, None)
            elif value is not None and value < 1:
                raise InputError(f"Expected `{name}` to be at least 1, or -1 for all, but got {value}.")
        if not 0 <= self.nms_iou <= 1:
            raise InputError(f"Expected `nms_iou` to be from 0 to 1, but got {self.nms_iou}.")
        if not self.score_threshold < 1:
            raise InputError(f"Expected `score_threshold` to be below 1, but got {self.score_threshold}.")
        if self.activation not in ("recorded", "softmax", "sigmoid"):
            raise InputError(
                f'Expected `activation` to be "recorded", "softmax" or "sigmoid", but got {self.activation!r}.'
            )
        if self.background != "recorded":
            check_background(self.background)


def decode(
    store: PredictionStore,
    transform: ClassAffine | Transform | None = None,
    settings: DecodeSettings | None = None,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Detections:
    """Decode the proposals of a store under one method.

    Args:
        store: The proposals.
        transform: A `ClassAffine`, any callable from float32 logits `(N, C)` to new logits, or None for no change.
        settings: Threshold, suppression and limits; `DecodeSettings()` by default, the LVIS protocol.
        threads: How many threads to use; by default one per processor. The result does not depend on it.
        progress: Called with the number of images that were decoded since the last call.

    Example:
        >>> import tempfile
        >>> from logn.evaluate.store.format import StoreHeader
        >>> from logn.evaluate.store.writer import PredictionWriter
        >>> folder = tempfile.mkdtemp()
        >>> with PredictionWriter(folder, StoreHeader(num_columns=2, activation="sigmoid")) as writer:
        ...     boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9]])
        ...     writer.append(17, Proposals(boxes, np.array([[1.0, -1.0], [0.0, -20.0]]), height=10, width=20))
        >>> found = decode(PredictionStore(folder))
        >>> found.proposal.tolist(), found.labels.tolist(), found.scores.round(2).tolist()
        ([0, 0], [0, 1], [0.7300000190734863, 0.27000001072883606])
    """
    return decode_many(store, [transform], settings, threads=threads, progress=progress)[0]


def decode_many(
    store: PredictionStore,
    transforms: Sequence[ClassAffine | Transform | None],
    settings: DecodeSettings | None = None,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[Detections]:
    """Decode under several methods in one pass; what does not depend on the scores is computed once.

    The arguments are those of `decode`; the result is the same as decoding under each method alone.
    """
    settings = settings or DecodeSettings()
    if settings.max_per_class is not None:
        best = [BestPerClass(store.num_classes, settings.max_per_class) for _ in transforms]
        floors = [of_method.floor for of_method in best]
        for found in _decode_chunks(store, transforms, settings, floors, threads, progress):
            for of_method, detections in zip(best, found, strict=True):
                of_method.add(detections)
        return [of_method.detections() for of_method in best]
    chunks = list(_decode_chunks(store, transforms, settings, None, threads, progress))
    return [Detections.concatenate([chunk[number] for chunk in chunks]) for number in range(len(transforms))]


def decode_chunks(
    store: PredictionStore,
    transforms: Sequence[ClassAffine | Transform | None],
    settings: DecodeSettings | None = None,
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[list[Detections]]:
    """Decode some images at a time, in order: for results that are too many to hold at once.

    The arguments are those of `decode_many`; `max_per_class`, which needs all images, is refused.
    """
    settings = settings or DecodeSettings()
    if settings.max_per_class is not None:
        raise InputError("Expected `max_per_class` to be None for decoding by chunks, since it needs all images.")
    return _decode_chunks(store, transforms, settings, None, threads, progress)


def _decode_chunks(
    store: PredictionStore,
    transforms: Sequence[ClassAffine | Transform | None],
    settings: DecodeSettings,
    floors: list[Float32] | None,
    threads: int | None,
    progress: Callable[[int], object] | None,
) -> Iterator[list[Detections]]:
    decoder = _Decoder(store, transforms, settings, floors)
    workers = threads or available_processors()
    waiting: deque[tuple[int, Future[list[Detections]]]] = deque()
    starts = iter(range(0, len(store), _IMAGES_AT_ONCE))
    with ThreadPoolExecutor(workers) as pool:
        while True:
            # Not all at once: results that have not been consumed yet would fill the memory.
            while len(waiting) < 2 * workers and (start := next(starts, None)) is not None:
                stop = min(start + _IMAGES_AT_ONCE, len(store))
                waiting.append((stop - start, pool.submit(decoder.decode_images, start, stop)))
            if not waiting:
                return
            images, chunk = waiting.popleft()
            yield chunk.result()
            if progress:
                progress(images)


def available_processors() -> int:
    """How many processors this process may use.

    Example:
        >>> available_processors() >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Decoder:
    """Decodes images of a store under all methods; threads share it, each with arrays and guesses of its own."""

    def __init__(
        self,
        store: PredictionStore,
        transforms: Sequence[ClassAffine | Transform | None],
        settings: DecodeSettings,
        floors: list[Float32] | None,
    ) -> None:
        self._store, self._settings, self._floors = store, settings, floors
        activation = store.header.activation if settings.activation == "recorded" else settings.activation
        background: Any = store.header.background if settings.background == "recorded" else settings.background
        foreground = foreground_columns(store.num_columns, background)
        self._num_classes = len(range(*foreground.indices(store.num_columns)))
        if self._num_classes != store.num_classes and store.header.class_boxes:
            raise InputError(
                f"Expected `background` to leave the {store.num_classes} classes that have boxes, "
                f"but it leaves {self._num_classes}."
            )
        self._functions = [
            ScoreFunction(transform, store.num_columns, activation, foreground) for transform in transforms
        ]
        self._local = threading.local()

    def decode_images(self, start: int, stop: int) -> list[Detections]:
        """Decode the images from `start` up to `stop`: one set of detections per method."""
        found: list[list[Detections]] = [[] for _ in self._functions]
        for index in range(start, stop):
            for number, detections in enumerate(self._decode_image(index, self._store[index])):
                found[number].append(detections)
        self._store.release(start, stop)
        return [Detections.concatenate(parts) for parts in found]

    def _decode_image(self, index: int, proposals: Proposals) -> Iterator[Detections]:
        scratch = self._local.__dict__.setdefault("scratch", Scratch())
        guesses = self._local.__dict__.setdefault("guesses", [0.0] * len(self._functions))
        boxes: Float32 = proposals.boxes
        suppression = _suppression(boxes, self._settings.nms_iou)
        image = ImageLogits(proposals.logits, scratch)
        smallest = self._settings.min_box_size
        if boxes.ndim == 2 and not has_small_boxes(boxes, smallest):
            smallest = 0.0  # looked at once instead of for each candidate of each method
        for number, function in enumerate(self._functions):
            floor = self._floors[number] if self._floors else None
            candidates = Candidates(function(image), boxes, self._num_classes, min_box_size=smallest, floor=floor)
            kept, guesses[number] = best_candidates(
                candidates,
                suppression,
                guesses[number],
                threshold=self._settings.score_threshold,
                limit=self._settings.max_detections,
            )
            yield _detections(index, kept, boxes)


def _suppression(boxes: Float32, threshold: float) -> Suppression:
    return AgnosticSuppression(boxes, threshold) if boxes.ndim == 2 else ClassBoxSuppression(boxes, threshold)


def _detections(index: int, kept: SortedCandidates, boxes: Float32) -> Detections:
    return Detections(
        image_index=np.full(len(kept.scores), index, np.int32),
        labels=kept.labels.astype(np.int32),
        scores=kept.scores,
        boxes=boxes_of(boxes, kept),
        proposal=kept.proposals.astype(np.int32),
    )
