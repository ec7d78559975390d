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
from logn.predictions.detections import DecodeSettings, Detections
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

# A guess that is too high is lowered by these factors before the threshold itself is the level.
_LOWERED = (1.0, 0.25, 0.0625)
# Of more candidates than so many times the wanted ones the best are tried first: sorting all takes longer.
_ENOUGH_TIMES = 8


@dataclass(frozen=True)
class SortedCandidates:
    """Pairs of proposal and class by descending score; ties: by proposal, then class."""

    proposals: npt.NDArray[np.intp]
    labels: npt.NDArray[np.intp]
    scores: Float32

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, positions: npt.NDArray[Any]) -> SortedCandidates:
        """Keep the candidates that positions or a mask name."""
        return SortedCandidates(self.proposals[positions], self.labels[positions], self.scores[positions])


_NOTHING = SortedCandidates(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.float32))


def sort_candidates(flat: npt.NDArray[np.intp], scores: Float32, num_classes: int) -> SortedCandidates:
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
    return SortedCandidates(proposals, flat - proposals * num_classes, ranked)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidates of one image under one method, those with tiny boxes left out.

    Args:
        scores: The scores of the method.
        boxes: Boxes of the proposals.
        suppression: What drops candidates that overlap better ones.
        num_classes: Foreground classes.
        min_box_size: Shortest side of a box that is kept.
        threshold: What scores must exceed.
    """

    scores: Float32
    boxes: Boxes
    suppression: Suppression
    num_classes: int
    min_box_size: float
    threshold: float

    def best(self, limit: int, guess: float) -> SortedCandidates:
        """The best candidates after suppression, at most `limit`.

        Of the candidates above any level, those that suppression keeps are the leading part of all that it keeps. So
        any level will do that leaves enough: the work is that of some hundred candidates instead of ten thousand. The
        guess, half of the last score of the image before, usually is such a level; the result does not depend on it.
        """
        kept = _NOTHING
        levels = (guess * factor for factor in _LOWERED if guess * factor > self.threshold)
        for level in (*levels, self.threshold):
            flat, scores = self._above(level)
            if level > self.threshold and len(flat) < limit:
                continue
            number = _ENOUGH_TIMES * limit
            if number < len(flat):
                rows = np.flatnonzero(scores >= np.partition(scores, -number)[-number])
                kept = self._kept(flat.take(rows), scores.take(rows), limit)
                if len(kept) >= limit:
                    return kept
            kept = self._kept(flat, scores, limit)
            if len(kept) >= limit:
                return kept
        return kept

    def _above(self, level: float) -> tuple[npt.NDArray[np.intp], Float32]:
        flat = np.flatnonzero(self.scores > level)
        scores: Float32 = self.scores.reshape(-1).take(flat)
        if self.min_box_size > 0:
            proposals = flat // self.num_classes
            boxes = self.boxes.at(proposals, flat - proposals * self.num_classes)
            large = (boxes[:, 2:] - boxes[:, :2] >= np.float32(self.min_box_size)).all(axis=1)
            flat, scores = flat[large], scores[large]
        return flat, scores

    def _kept(self, flat: npt.NDArray[np.intp], scores: Float32, limit: int) -> SortedCandidates:
        candidates = sort_candidates(flat, scores, self.num_classes)
        return candidates.take(self.suppression.best(candidates.proposals, candidates.labels, limit))


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

    def decode(self, images: range) -> list[Detections]:
        """Decode some images: what each method finds."""
        parts: list[list[Detections]] = [[] for _ in self._functions]
        for index in images:
            for of_method, kept in zip(parts, self._decode_image(index, self.store[index]), strict=True):
                of_method.append(kept)
        return [Detections.concatenate(of_method) for of_method in parts]

    def _decode_image(self, index: int, proposals: Proposals) -> Iterator[Detections]:
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
            candidates = Candidates(scores, boxes, suppression, self.num_classes, smallest, threshold)
            kept = candidates.best(limit, guesses.get(method, 0.0))
            guesses[method] = 0.5 * float(kept.scores[-1]) if 0 < limit <= len(kept) else 0.0
            corners = boxes.at(kept.proposals, kept.labels)
            if self._postprocessing.clip_boxes:
                np.clip(corners, 0, np.tile([proposals.width, proposals.height], 2), out=corners)
            yield Detections(
                image_index=np.full(len(kept), index, np.int32),
                labels=kept.labels.astype(np.int32),
                scores=kept.scores,
                boxes=corners,
                proposal=kept.proposals.astype(np.int32),
            )
