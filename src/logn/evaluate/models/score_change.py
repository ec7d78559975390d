"""What a correction does to the scores of a model at the user's threshold, seen on the recorded row sample."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from logn.calibrators.affine import ClassAffine
from logn.calibrators.recommend import class_scores, matching_threshold
from logn.statistics.moments import ClassMoments


@dataclass(frozen=True)
class ScoreChange:
    """Scores before and after.

    Attributes:
        threshold: The user's score threshold.
        before: Scores above it in an image, on average, before any suppression of duplicates.
        after: The same of the corrected model.
        matching: The threshold that as many corrected scores exceed as original ones exceed `threshold`; None where the
            sample holds too few of them to tell.
        other_best: Share of the rows, weighted by their foreground score, whose top class is another one.
        is_classification: Whether each image is a row of its own, of which the top class counts.
    """

    threshold: float
    before: float
    after: float
    matching: float | None
    other_best: float
    is_classification: bool

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def score_change(moments: ClassMoments, affine: ClassAffine, threshold: float, images: int) -> ScoreChange | None:
    """What `affine` does at `threshold`; None without a row sample.

    Args:
        moments: The statistics of the model.
        affine: The correction.
        threshold: The user's score threshold.
        images: How many images the statistics are of.

    Example:
        >>> moments = ClassMoments(2, sample_rows=1000)
        >>> moments.update(np.random.default_rng(0).standard_normal((1000, 2)) - 2)
        >>> change = score_change(moments, ClassAffine([1, 1], [0, 1]), 0.5, images=10)
        >>> change.before < change.after, change.matching > 0.5
        (True, True)
    """
    if len(moments.sample) == 0:
        return None
    activation = moments.metadata.settled(affine.background).activation or "sigmoid"
    before, after = (class_scores(moments, part, activation) for part in (None, affine))
    weight = before.sum(axis=1)
    changed = after.argmax(axis=1) != before.argmax(axis=1)
    per_image = float(moments.count.max()) / max(images, 1) / len(before)
    return ScoreChange(
        threshold=threshold,
        before=int((before > threshold).sum()) * per_image,
        after=int((after > threshold).sum()) * per_image,
        matching=matching_threshold(moments, affine, threshold, activation),
        other_best=float(weight @ changed / max(float(weight.sum()), np.finfo(np.float64).tiny)),
        is_classification=activation == "softmax" and affine.background is None,
    )
