"""Which pairs of proposal and class keep their box in a store, where each class has a box of its own.

A correction changes which pairs become detections, and a store does not know which correction will come. So a pair is
kept that is good in any of four ways, of which each survives another kind of correction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.store.format import StoreHeader
from logn.logits.proposals import PAIR_DTYPE, ClassBoxes, Proposals

Float32 = npt.NDArray[np.float32]
# Of a class whose logits are all the same.
_LEAST_SPREAD = 1e-3


def candidate_boxes(proposals: Proposals, header: StoreHeader, logits: npt.NDArray[Any]) -> Proposals:
    """The same proposals with the boxes of candidates alone: `header.kept_class_boxes` (K) says how many.

    A pair of proposal and class is a candidate if it is

    - among the K best classes of its proposal: what wins a proposal, whatever its scores are worth elsewhere;
    - among the K best classes of its proposal once mean and spread of each class in this image are taken off: what
      wins after a correction that does about this with those of the training images;
    - among the K best proposals of its class, by score: a map has one scale and one summand for each class, so it
      changes the order within a class only by what it does to the other classes of a proposal;
    - among the K best per proposal, all proposals of the image together, by score: those that are detected now.

    The strongest class of each proposal is always there; its box is that which the others borrow.

    Args:
        proposals: With boxes of shape `(N, F, 4)`.
        header: Of the store.
        logits: Those of the proposals, as they are stored.
    """
    kept = header.kept_class_boxes or header.num_classes
    foreground: Float32 = logits[:, header.columns].astype(np.float32)
    rows, classes = foreground.shape
    chosen = np.zeros((rows, classes), np.bool_)
    _mark_best(chosen, foreground, kept)
    _mark_best(chosen, _without_class_level(foreground), kept)
    with np.errstate(over="ignore"):  # infinite logits, which are stored as the largest number
        scores = foreground + _row_terms(proposals, header, logits)[:, None]
    _mark_best(chosen.T, scores.T, kept)
    _mark_best(chosen.reshape(1, -1), scores.reshape(1, -1), kept * rows)
    strongest = foreground.argmax(axis=1)
    chosen[np.arange(rows), strongest] = True
    pairs = np.flatnonzero(chosen)
    boxes = proposals.boxes.astype(np.float32, copy=False)
    return Proposals(
        boxes=boxes[np.arange(rows), strongest],
        logits=proposals.logits,
        height=proposals.height,
        width=proposals.width,
        objectness=proposals.objectness,
        class_boxes=ClassBoxes(pairs.astype(PAIR_DTYPE), boxes.reshape(-1, 4)[pairs], classes),
    )


def _mark_best(chosen: npt.NDArray[np.bool_], values: Float32, number: int) -> None:
    """Mark the `number` largest values of each row."""
    columns = values.shape[1]
    if number >= columns:
        chosen[:] = True
        return
    best = np.argpartition(values, columns - number, axis=1)[:, columns - number :]
    np.put_along_axis(chosen, best, True, axis=1)


def _without_class_level(foreground: Float32) -> Float32:
    """How far each logit is above the mean of its class in this image, in units of its spread."""
    if not len(foreground):
        return foreground
    # In float64, since the square of an infinite logit, which is stored as the largest number, leaves float32.
    spread = np.maximum(foreground.std(axis=0, dtype=np.float64), _LEAST_SPREAD)
    standing: Float32 = ((foreground - foreground.mean(axis=0, dtype=np.float64)) / spread).astype(np.float32)
    return standing


def _row_terms(proposals: Proposals, header: StoreHeader, logits: npt.NDArray[Any]) -> Float32:
    """What added to the logits of a proposal orders pairs of different proposals as their scores do."""
    terms = np.zeros(len(logits), np.float32)
    if header.activation == "softmax" and len(logits):
        wide: Float32 = logits.astype(np.float32)
        largest = wide.max(axis=1)
        terms -= largest + np.log(np.exp(wide - largest[:, None]).sum(axis=1))
    if proposals.objectness is not None:
        # The logarithm of a sigmoid; for classes of a sigmoid about what it does where scores are low.
        terms -= np.logaddexp(np.float32(0), -proposals.objectness.astype(np.float32))
    return terms
