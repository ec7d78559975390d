"""From the proposals of an image to its detections, under several methods at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.methods.affine import ClassAffine
from logn.models.proposals import Postprocessing, Proposals
from logn.predictions.detections import DecodeSettings, Detections, Skipped
from logn.predictions.nms import HALF, LOWER_HALF, Boxes, Suppression, descending_keys
from logn.predictions.scores import (
    Float32,
    FrameworkScores,
    ImageLogits,
    ScoreFunction,
    Transform,
    best_class_alone,
)
from logn.predictions.store import Predictions

Method = ClassAffine | Transform | None
Mask = npt.NDArray[np.bool_]

# A guess that is too high is lowered by these factors before the threshold itself is the level.
_LOWERED = (1.0, 0.25, 0.0625)

# Of more candidates than so many times the wanted ones the best are tried first: sorting all takes longer.
_ENOUGH_TIMES = 8


@dataclass(frozen=True, eq=False)
class Candidates:
    """Pairs of proposal and class of one image by descending score; ties: by proposal, then class."""

    proposals: npt.NDArray[np.intp]
    labels: npt.NDArray[np.intp]
    scores: Float32

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, positions: npt.NDArray[Any]) -> Candidates:
        """Keep the candidates that positions or a mask name."""
        return Candidates(self.proposals[positions], self.labels[positions], self.scores[positions])


_NOTHING = Candidates(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.float32))


def sort_candidates(flat: npt.NDArray[np.intp], scores: Float32, num_classes: int) -> Candidates:
    """Sort candidates `proposal * num_classes + class` by their scores, which are not negative.

    Example:
        >>> candidates = sort_candidates(np.array([1, 2, 5]), np.array([0.5, 0.9, 0.5], np.float32), num_classes=3)
        >>> candidates.proposals.tolist(), candidates.labels.tolist()
        ([0, 0, 1], [2, 1, 2])
    """
    keys = descending_keys(scores, flat)
    flat = (keys & LOWER_HALF).astype(np.intp)
    proposals = flat // num_classes
    ranked: Float32 = (~(keys >> HALF).astype(np.uint32)).view(np.float32)
    return Candidates(proposals, flat - proposals * num_classes, ranked)


def best_candidates(
    scores: Float32,
    boxes: Boxes,
    suppression: Suppression,
    *,
    threshold: float,
    min_box_size: float,
    limit: int,
    guess: float,
) -> Candidates:
    """The best candidates of one image after suppression.

    Of the candidates above any level, those that suppression keeps are the leading part of all that it keeps. So any
    level will do that leaves enough: the work is that of some hundred candidates instead of ten thousand.

    Args:
        scores: `(N, F)` score of each proposal and class.
        boxes: Boxes of the proposals.
        suppression: What drops candidates that overlap better ones.
        threshold: What scores must exceed.
        min_box_size: Candidates with a shorter side are left out.
        limit: How many to keep at most.
        guess: A level that may leave enough; the result does not depend on it.
    """
    num_classes = scores.shape[1]
    candidates = _NOTHING
    levels = [guess * factor for factor in _LOWERED if guess * factor > threshold]
    for level in (*levels, threshold):
        flat = np.flatnonzero(scores > level)
        if min_box_size > 0:
            corners = boxes.at(flat // num_classes, flat % num_classes)
            flat = flat[(corners[:, 2:] - corners[:, :2] >= np.float32(min_box_size)).all(axis=1)]
        if level > threshold and len(flat) < limit:
            continue
        parts, number = [flat], _ENOUGH_TIMES * limit
        if number < len(flat):
            of_level = scores.take(flat)
            parts.insert(0, flat[of_level >= np.partition(of_level, -number)[-number]])
        for part in parts:
            candidates = sort_candidates(part, scores.take(part), num_classes)
            candidates = candidates.take(suppression.best(candidates.proposals, candidates.labels, limit))
            if len(candidates) >= limit:
                return candidates
    return candidates


@dataclass(frozen=True, eq=False)
class ImageTask:
    """Some images to decode, with what is known of them beforehand.

    Args:
        start: Position of the first image in the store.
        stop: Position behind the last one.
        evaluated: Which classes are evaluated in each image, `(stop - start, F)`; None for all.
    """

    start: int
    stop: int
    evaluated: Mask | None


@dataclass(frozen=True, eq=False)
class Decoded:
    """What one method found in some images.

    Args:
        detections: Those that are evaluated.
        skipped: Those that only use up places of their image.
    """

    detections: Detections
    skipped: Skipped

    def __len__(self) -> int:
        return len(self.detections) + len(self.skipped.scores)

    @staticmethod
    def concatenate(parts: Sequence[Decoded]) -> Decoded:
        """Join parts whose images follow each other."""
        return Decoded(
            Detections.concatenate([part.detections for part in parts]),
            Skipped.concatenate([part.skipped for part in parts]),
        )


class ImageDecoder:
    """Decodes images of a store under all methods; threads share it, each with arrays and guesses of its own.

    Args:
        store: The proposals.
        transforms: The methods.
        settings: Threshold, suppression and limits.
    """

    def __init__(self, store: Predictions, transforms: Sequence[Method], settings: DecodeSettings) -> None:
        header = store.header
        self.store, self.transforms, self.settings = store, tuple(transforms), settings.resolved(header)
        #: How many classes detections may have.
        self.num_classes = header.num_classes
        self._postprocessing = header.postprocessing or Postprocessing()
        self._functions = [ScoreFunction(transform, header.head) for transform in transforms]
        places = header.head.foreground - (header.head.background == 0) if header.head.unused else None
        self._framework_scores = FrameworkScores(self._postprocessing, bool(self.settings.multi_label), places)
        self._local = threading.local()

    def decode(self, task: ImageTask) -> list[Decoded]:
        """Decode some images: what each method found."""
        parts: list[list[Decoded]] = [[] for _ in self._functions]
        for index in range(task.start, task.stop):
            for of_method, kept in zip(parts, self._decode_image(task, index, self.store[index]), strict=True):
                of_method.append(kept)
        return [Decoded.concatenate(of_method) for of_method in parts]

    def _decode_image(self, task: ImageTask, index: int, proposals: Proposals) -> Iterator[Decoded]:
        guesses: dict[int, float] = self._local.__dict__.setdefault("guesses", {})
        boxes, nms, overlap = Boxes(proposals, self.num_classes), self.settings.nms or "", self.settings.nms_iou or 0.0
        suppression = Suppression(nms, boxes, overlap)
        image = ImageLogits(proposals, self._postprocessing)
        # Looked at once instead of for each candidate of each method.
        smallest = self.settings.min_box_size or 0.0
        smallest = smallest if boxes.some_smaller_than(smallest) else 0.0
        # Where classes suppress each other, the best class of a box suppresses its others, or what suppresses it does.
        one_class_each = nms == "class-agnostic" and boxes.overlap_their_copies(overlap)
        limit = self.settings.max_detections or proposals.logits.size
        for method, function in enumerate(self._functions):
            scores, threshold = self._framework_scores(function(image), image.factors, self.settings.score_threshold)
            if one_class_each:
                scores = best_class_alone(scores)
            kept = best_candidates(
                scores,
                boxes,
                suppression,
                threshold=threshold,
                min_box_size=smallest,
                limit=limit,
                guess=guesses.get(method, 0.0),
            )
            guesses[method] = 0.5 * float(kept.scores[-1]) if 0 < limit <= len(kept) else 0.0
            skipped = _NOTHING
            if task.evaluated is not None:
                chosen = task.evaluated[index - task.start].take(kept.labels)
                kept, skipped = kept.take(chosen), kept.take(~chosen)
            decoded = self._decoded(index, kept, skipped, boxes)
            if self._postprocessing.clip_boxes:
                corners = decoded.detections.boxes
                np.clip(corners, 0, np.tile([proposals.width, proposals.height], 2), out=corners)
            yield decoded

    def _decoded(self, index: int, kept: Candidates, skipped: Candidates, boxes: Boxes) -> Decoded:
        detections = Detections(
            image_index=np.full(len(kept), index, np.int32),
            labels=kept.labels.astype(np.int32),
            scores=kept.scores,
            boxes=boxes.at(kept.proposals, kept.labels),
            proposal=kept.proposals.astype(np.int32),
        )
        # There are millions of these: they take as little memory as they need.
        image: Any = np.uint16 if len(self.store) <= 2**16 else np.int32
        label: Any = np.uint16 if self.num_classes <= 2**16 else np.int32
        labels = skipped.labels.astype(label)
        return Decoded(detections, Skipped(np.full(len(labels), index, image), labels, skipped.scores))
