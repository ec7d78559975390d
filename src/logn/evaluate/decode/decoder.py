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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

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
from logn.evaluate.decode.class_scores import Float32, ImageLogits, ScoreFunction, Scores, Scratch, Transform
from logn.evaluate.decode.detections import Detections
from logn.evaluate.decode.nms import make_suppression
from logn.evaluate.decode.score_filters import BestClassScores, ChosenClassScores, LateFactorScores, PowerScores
from logn.evaluate.store.format import StoreHeader
from logn.evaluate.store.prediction_store import PredictionStore
from logn.logits.arrays import check_background, foreground_columns
from logn.logits.proposals import Postprocessing, Proposals, check_nms

# Images that one thread decodes at a time, and of which memory is let go together.
_IMAGES_AT_ONCE = 16


@dataclass(frozen=True)
class DecodeSettings:
    """What decides, apart from the scores, which proposals become detections.

    Args:
        score_threshold: Scores strictly greater than this are kept.
        nms_iou: Boxes that overlap a better one by more than this are dropped; None takes what the store says, 0.5
            where it says nothing.
        max_detections: How many detections an image may have, over all classes; None or -1 for all.
        max_per_class: How many detections a class may have over the whole data set (AP-Fixed uses 10,000); None
            for all.
        min_box_size: Boxes with a side shorter than this, in pixels, are dropped, 0 drops none; None takes what the
            store says, 0.01 as torchvision where it says nothing.
        activation: "softmax" or "sigmoid"; "recorded" takes what the store says.
        background: Place of the background column, None, 0 or -1; "recorded" takes what the store says.
        nms: "class-wise", "class-agnostic" or "none"; None takes what the store says, "class-wise" where it says
            nothing.
        multi_label: Whether a proposal may be detected as several classes, or as its best one alone; None takes what
            the store says, True where it says nothing.

    Example:
        >>> DecodeSettings(max_detections=-1).max_detections is None
        True
    """

    score_threshold: float = 1e-4
    nms_iou: float | None = None
    max_detections: int | None = 300
    max_per_class: int | None = None
    min_box_size: float | None = None
    activation: str = "recorded"
    background: int | str | None = "recorded"
    nms: str | None = None
    multi_label: bool | None = None

    def __post_init__(self) -> None:
        for name in ("max_detections", "max_per_class"):
            value = getattr(self, name)
            if value == -1:
                object.__setattr__(self, name, None)
            elif value is not None and value < 1:
                raise InputError(f"Expected `{name}` to be at least 1, or -1 for all, but got {value}.")
        check_nms("none" if self.nms is None else self.nms, 0.5 if self.nms_iou is None else self.nms_iou)
        if not self.score_threshold < 1:
            raise InputError(f"Expected `score_threshold` to be below 1, but got {self.score_threshold}.")
        if self.activation not in ("recorded", "softmax", "sigmoid"):
            raise InputError(
                f'Expected `activation` to be "recorded", "softmax" or "sigmoid", but got {self.activation!r}.'
            )
        if self.background != "recorded":
            check_background(self.background)

    @classmethod
    def of_framework(cls, postprocessing: Postprocessing) -> DecodeSettings:
        """The settings with which decoding gives what the framework of the model itself gives.

        Example:
            >>> DecodeSettings.of_framework(Postprocessing(score_threshold=0.25)).score_threshold
            0.25
        """
        names = ("nms", "nms_iou", "multi_label", "score_threshold", "max_detections", "min_box_size")
        return cls(**{name: getattr(postprocessing, name) for name in names})

    def resolved(self, header: StoreHeader) -> DecodeSettings:
        """Put what the store says of its model in the place of what is None.

        Only how boxes suppress each other and become classes: the threshold and the limits say what is measured.

        Example:
            >>> DecodeSettings(nms_iou=0.7).resolved(StoreHeader(num_columns=2)).nms
            'class-wise'
        """
        said = header.postprocessing or Postprocessing()
        names = ("nms", "nms_iou", "multi_label", "min_box_size")
        return replace(self, **{name: getattr(said, name) for name in names if getattr(self, name) is None})


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
        self._store, self._settings = store, settings.resolved(store.header)
        # Where classes suppress each other, what is too low for its own class may still suppress another.
        self._floors = None if self._settings.nms == "class-agnostic" else floors
        activation = store.header.activation if settings.activation == "recorded" else settings.activation
        background: Any = store.header.background if settings.background == "recorded" else settings.background
        foreground = foreground_columns(store.num_columns, background)
        columns = range(*foreground.indices(store.num_columns))
        self._class_of = _class_of_columns(store.header, columns)
        self._num_columns = len(columns)
        self._num_classes = len(columns) if self._class_of is None else store.num_classes
        if self._num_classes != store.num_classes and store.header.class_boxes:
            raise InputError(
                f"Expected `background` to leave the {store.num_classes} classes that have boxes, "
                f"but it leaves {self._num_classes}."
            )
        self._said = store.header.postprocessing or Postprocessing()
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
        suppression = make_suppression(self._settings.nms or "", boxes, self._settings.nms_iou or 0.0)
        image = ImageLogits(proposals.logits, scratch, proposals.objectness, added=self._said.objectness == "added")
        smallest = self._settings.min_box_size or 0.0
        if boxes.ndim == 2 and not has_small_boxes(boxes, smallest):
            smallest = 0.0  # looked at once instead of for each candidate of each method
        for number, function in enumerate(self._functions):
            floor = self._floors[number] if self._floors else None
            scores, threshold = self._filtered(function(image), image.factors)
            candidates = Candidates(scores, boxes, self._num_classes, min_box_size=smallest, floor=floor)
            kept, guesses[number] = best_candidates(
                candidates,
                suppression,
                guesses[number],
                threshold=threshold,
                limit=self._settings.max_detections,
            )
            found = _detections(index, kept, boxes)
            if self._said.clip_boxes:
                np.clip(found.boxes, 0, np.tile([proposals.width, proposals.height], 2), out=found.boxes)
            yield found

    def _filtered(self, scores: Scores, factors: Float32 | None) -> tuple[Scores, float]:
        """The scores as the framework makes them, and what they must exceed."""
        threshold = self._settings.score_threshold
        if factors is not None and self._said.objectness == "late factor":
            scores, threshold = LateFactorScores(scores, factors, self._num_columns, threshold), min(threshold, 0.0)
        if self._said.score_power != 1:
            scores = PowerScores(scores, self._said.score_power)
        # Classes without labels compete for a proposal, too, where it can be of one class only.
        if not self._settings.multi_label:
            scores = BestClassScores(scores, self._num_columns)
        if self._class_of is not None:
            scores = ChosenClassScores(scores, self._class_of, self._num_classes)
        return scores, threshold


def _class_of_columns(header: StoreHeader, columns: range) -> npt.NDArray[np.intp] | None:
    """Per foreground column the class that it stands for, -1 for none; None where it is simply its place."""
    if header.class_columns is None:
        return None
    class_of = np.full(header.num_columns, -1, np.intp)
    class_of[list(header.class_columns)] = np.arange(header.num_classes)
    return class_of[columns.start : columns.stop]


def _detections(index: int, kept: SortedCandidates, boxes: Float32) -> Detections:
    return Detections(
        image_index=np.full(len(kept.scores), index, np.int32),
        labels=kept.labels.astype(np.int32),
        scores=kept.scores,
        boxes=boxes_of(boxes, kept),
        proposal=kept.proposals.astype(np.int32),
    )
