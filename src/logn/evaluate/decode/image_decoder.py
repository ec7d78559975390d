"""From the proposals of an image to its detections, under several methods and for several purposes at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.evaluate.decode.best_per_class import PlaceHolders
from logn.evaluate.decode.candidate_boxes import Boxes, boxes_at, boxes_in, has_one_each
from logn.evaluate.decode.candidates import (
    Candidates,
    SortedCandidates,
    best_candidates,
    has_small_boxes,
    sort_candidates,
)
from logn.evaluate.decode.class_scores import Float32, ImageLogits, Level, ScoreFunction, Scores, Scratch, Transform
from logn.evaluate.decode.detections import Detections
from logn.evaluate.decode.nms import Suppression, make_suppression, overlaps_itself
from logn.evaluate.decode.score_filters import BestClassScores, ChosenClassScores, LateFactorScores, PowerScores
from logn.evaluate.decode.settings import DecodeSettings
from logn.evaluate.store.store import PredictionStore, StoreHeader
from logn.logits.arrays import foreground_columns
from logn.logits.proposals import Postprocessing, Proposals

Method = ClassAffine | Transform | None
Mask = npt.NDArray[np.bool_]
# Of each method: per class, the score below which detections are of no use; None where there is none.
Floors = Sequence[Float32 | None]
# Class and score of detections that only use up places.
_Holders = tuple[npt.NDArray[np.integer[Any]], Float32]
# What is kept, what only uses up places, and how many candidates that decided it had no box of their own.
_FoundInImage = tuple[Detections, _Holders | None]
_Chosen = tuple[SortedCandidates, _Holders]


@dataclass(frozen=True, eq=False)
class ImageTask:
    """Some images to decode, with what is known of them beforehand.

    Args:
        start: Position of the first image in the store.
        stop: Position behind the last one.
        kept: For each purpose which classes are looked at in each image, `(stop - start, F)`; None for all.
        floors: For each purpose and method, per class, the score below which detections are of no use; None
            where there is none.
    """

    start: int
    stop: int
    kept: tuple[Mask | None, ...]
    floors: tuple[Floors, ...]


@dataclass(frozen=True, eq=False)
class Decoded:
    """What one method found in some images for one purpose.

    Args:
        detections: Those that are looked at.
        holders: Those that only use up places, of their image or their class; None where all are looked at, and no
            class has a limit.
    """

    detections: Detections
    holders: PlaceHolders | None = None


class ImageDecoder:
    """Decodes images of a store under all methods; threads share it, each with arrays and guesses of its own.

    Args:
        store: The proposals.
        transforms: The methods.
        purposes: Limits and thresholds; everything else is that of the first.
    """

    def __init__(
        self, store: PredictionStore, transforms: Sequence[Method], purposes: Sequence[DecodeSettings]
    ) -> None:
        settings = purposes[0].resolved(store.header)
        self.store, self.transforms, self.purposes = store, tuple(transforms), tuple(purposes)
        self._settings = settings
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

    @property
    def num_classes(self) -> int:
        """How many classes detections may have."""
        return self._num_classes

    def decode(self, task: ImageTask) -> list[list[Decoded]]:
        """Decode some images: for each purpose what each method found."""
        found: list[list[list[_FoundInImage]]] = [[[] for _ in self._functions] for _ in self.purposes]
        for index in range(task.start, task.stop):
            for purpose, method, of_image in self._decode_image(task, index, self.store[index]):
                found[purpose][method].append(of_image)
        self.store.release(task.start, task.stop)
        return [[_together(parts) for parts in of_purpose] for of_purpose in found]

    def _decode_image(
        self, task: ImageTask, index: int, proposals: Proposals
    ) -> Iterator[tuple[int, int, _FoundInImage]]:
        scratch = self._local.__dict__.setdefault("scratch", Scratch())
        boxes = boxes_in(proposals, self._num_classes)
        suppression = make_suppression(self._settings.nms or "", boxes, self._settings.nms_iou or 0.0)
        image = ImageLogits(proposals.logits, scratch, proposals.objectness, added=self._said.objectness == "added")
        smallest = self._settings.min_box_size or 0.0
        if has_one_each(boxes) and not has_small_boxes(proposals.boxes, smallest):
            smallest = 0.0  # looked at once instead of for each candidate of each method
        # Where classes suppress each other, the best class of a box suppresses its others, or what suppresses it does.
        one_class_each = self._settings.nms == "class-agnostic" and overlaps_itself(
            boxes, self._settings.nms_iou or 0.0
        )
        for method, function in enumerate(self._functions):
            scores = function(image)
            for purpose, limits in enumerate(self.purposes):
                filtered, threshold = self._filtered(scores, image.factors, limits.score_threshold)
                if one_class_each:
                    filtered = BestClassScores(filtered, self._num_classes)
                mask = task.kept[purpose]
                choice = _Choice(
                    Candidates(filtered, boxes, self._num_classes, min_box_size=smallest),
                    suppression,
                    threshold,
                    task.floors[purpose][method],
                    None if mask is None else mask[index - task.start],
                    self._num_classes,
                )
                if limits.max_detections is None:
                    kept, holders = choice.all(floor_first=self._settings.nms != "class-agnostic")
                else:
                    kept, holders = self._best(choice, limits.max_detections, (purpose, method))
                found = _detections(index, kept, boxes)
                if self._said.clip_boxes:
                    np.clip(found.boxes, 0, np.tile([proposals.width, proposals.height], 2), out=found.boxes)
                counts = mask is not None or limits.max_per_class is not None
                yield purpose, method, (found, holders if counts else None)

    def _best(self, choice: _Choice, limit: int, place: tuple[int, int]) -> _Chosen:
        guesses: dict[tuple[int, int], float] = self._local.__dict__.setdefault("guesses", {})
        best = best_candidates(
            choice.candidates,
            choice.suppression,
            guesses.get(place, 0.0),
            threshold=choice.threshold,
            limit=limit,
        )
        guesses[place] = best.guess
        return choice.looked_at(best.kept)

    def _filtered(self, scores: Scores, factors: Float32 | None, threshold: float) -> tuple[Scores, float]:
        """The scores as the framework makes them, and what they must exceed."""
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


@dataclass(frozen=True, eq=False)
class _Choice:
    """What is to be chosen from the candidates of one image under one method, for one purpose."""

    candidates: Candidates
    suppression: Suppression
    threshold: float
    floor: Float32 | None  # of each class
    classes: Mask | None  # those that are looked at, None for all
    num_classes: int

    def all(self, *, floor_first: bool) -> _Chosen:
        """Every candidate that suppression leaves and that is not below the floor of its class.

        Where classes suppress each other, what is too low for its own class may still suppress another: then the
        floor comes last.
        """
        level: Level = self.threshold
        if self.floor is not None and floor_first and self.floor.any():
            at_floor = np.nextafter(self.floor, np.float32(-np.inf))
            level = np.maximum(at_floor, np.float32(self.threshold))
        flat, scores = self.candidates.unsorted(level)
        survivors = self.suppression.survivors(flat, scores, self.num_classes)
        flat, scores = flat.take(survivors), scores.take(survivors)
        labels = flat % self.num_classes
        if self.floor is not None and not floor_first:
            useful = np.flatnonzero(scores >= self.floor.take(labels))
            flat, scores, labels = flat.take(useful), scores.take(useful), labels.take(useful)
        if self.classes is None:
            return sort_candidates(flat, scores, self.num_classes), _NO_HOLDERS
        looked_at = self.classes.take(labels)
        rows, others = np.flatnonzero(looked_at), np.flatnonzero(~looked_at)
        kept = sort_candidates(flat.take(rows), scores.take(rows), self.num_classes)
        return kept, (_small(labels.take(others), self.num_classes), scores.take(others))

    def looked_at(self, found: SortedCandidates) -> tuple[SortedCandidates, _Holders]:
        """Those of the candidates whose class is looked at, and what is left of the others."""
        if self.classes is None:
            return found, _NO_HOLDERS
        looked_at = self.classes.take(found.labels)
        others = np.flatnonzero(~looked_at)
        holders = _small(found.labels.take(others), self.num_classes), found.scores.take(others)
        return found.take(np.flatnonzero(looked_at)), holders


_NO_HOLDERS: _Holders = (np.empty(0, np.uint16), np.empty(0, np.float32))


def _small(labels: npt.NDArray[np.intp], num_classes: int) -> npt.NDArray[np.integer[Any]]:
    """Labels in as little memory as they need: there are millions."""
    return labels.astype(np.uint16 if num_classes <= 2**16 else np.int32)


def _together(parts: Sequence[_FoundInImage]) -> Decoded:
    """What was found in images that follow each other."""
    found, held = zip(*parts, strict=True)
    detections = Detections.concatenate(found)
    holders = [of_image for of_image in held if of_image is not None]
    if not holders:
        return Decoded(detections)
    labels, scores = (np.concatenate(column) for column in zip(*holders, strict=True))
    numbers = np.array([len(of_image[1]) for of_image in holders])
    return Decoded(detections, PlaceHolders(labels, scores, numbers))


def _class_of_columns(header: StoreHeader, columns: range) -> npt.NDArray[np.intp] | None:
    """Per foreground column the class that it stands for, -1 for none; None where it is simply its place."""
    if header.class_columns is None:
        return None
    class_of = np.full(header.num_columns, -1, np.intp)
    class_of[list(header.class_columns)] = np.arange(header.num_classes)
    return class_of[columns.start : columns.stop]


def _detections(index: int, kept: SortedCandidates, boxes: Boxes) -> Detections:
    return Detections(
        image_index=np.full(len(kept.scores), index, np.int32),
        labels=kept.labels.astype(np.int32),
        scores=kept.scores,
        boxes=boxes_at(boxes, kept.proposals, kept.labels),
        proposal=kept.proposals.astype(np.int32),
    )
