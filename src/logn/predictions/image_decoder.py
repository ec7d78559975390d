"""From the proposals of an image to its detections, under several methods at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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


class ImageDecoder:
    """Decodes images of a store under all methods; threads share it, each with arrays and guesses of its own.

    Args:
        store: The proposals.
        transforms: The methods.
        settings: Threshold, suppression and limits.
    """

    def __init__(self, store: Predictions, transforms: Sequence[Method], settings: DecodeSettings) -> None:
        head, postprocessing = store.head, store.header.postprocessing or Postprocessing()
        self._store, self._num_classes = store, head.num_classes
        self._how = replace(postprocessing, **vars(settings.resolved(store.header)))
        self._functions = [ScoreFunction(transform, head) for transform in transforms]
        places = head.foreground - (head.background == 0) if head.unused else None
        self._framework_scores = FrameworkScores(self._how, places)
        self._local = threading.local()

    def decode(self, images: range) -> list[Detections]:
        """Decode some images: what each method finds."""
        parts: list[list[Detections]] = [[] for _ in self._functions]
        for index in images:
            for of_method, kept in zip(parts, self._decode_image(index, self._store[index]), strict=True):
                of_method.append(kept)
        return [Detections.concatenate(of_method) for of_method in parts]

    def _decode_image(self, index: int, proposals: Proposals) -> Iterator[Detections]:
        guesses: dict[int, float] = self._local.__dict__.setdefault("guesses", {})
        how, boxes = self._how, Boxes(proposals, self._num_classes)
        suppression = Suppression(how.nms, boxes, how.nms_iou)
        image = ImageLogits(proposals, how)
        # Looked at once instead of for each candidate of each method.
        min_box_size = how.min_box_size if boxes.some_smaller_than(how.min_box_size) else 0.0
        # Where classes suppress each other, the best class of a box suppresses its others, or what suppresses it does.
        one_class_each = how.nms == "class-agnostic" and boxes.overlap_their_copies(how.nms_iou)
        limit = how.max_detections or proposals.logits.size
        for method, function in enumerate(self._functions):
            scores, threshold = self._framework_scores(function(image), image.factors)
            if one_class_each:
                scores = best_class_alone(scores)
            kept = best_candidates(
                scores,
                boxes,
                suppression,
                threshold=threshold,
                min_box_size=min_box_size,
                limit=limit,
                guess=guesses.get(method, 0.0),
            )
            guesses[method] = 0.5 * float(kept.scores[-1]) if 0 < limit <= len(kept) else 0.0
            corners = boxes.at(kept.proposals, kept.labels)
            if how.clip_boxes:
                np.clip(corners, 0, np.tile([proposals.width, proposals.height], 2), out=corners)
            yield Detections(
                image_index=np.full(len(kept), index, np.int32),
                labels=kept.labels.astype(np.int32),
                scores=kept.scores,
                boxes=corners,
                proposal=kept.proposals.astype(np.int32),
            )
