"""What a correction does to the scores of a model at the user's threshold, seen on the recorded row sample."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.form_preview import CONFIDENCE, map_effects, matching_threshold, quantity_of
from logn.calibrators.known_activation import assumed_activation, known_activation
from logn.statistics.moments import ClassMoments


@dataclass(frozen=True)
class ScoreChange:
    """Scores before and after.

    Attributes:
        threshold: The user's score threshold.
        before: Scores above it in an image, on average, before any suppression of duplicates.
        after: The same of the corrected model.
        matching: The threshold above which the corrected model has as many scores as before; None where the sample
            holds too few of them to tell.
        other_best: Share of the rows, weighted by their foreground, whose best class is another one.
        quantity: What `mass_before` and `mass_after` are: "foreground mass", "expected detections" or "confidence".
        mass_before: Its mean over the rows.
        mass_after: The same of the corrected model.
    """

    threshold: float
    before: float
    after: float
    matching: float | None
    other_best: float
    quantity: str
    mass_before: float
    mass_after: float

    @property
    def is_classification(self) -> bool:
        """Whether each image is a row of its own, of which the best class counts."""
        return self.quantity == CONFIDENCE

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
    rows = moments.sample.astype(np.float64)
    if len(rows) == 0:
        return None
    activation = assumed_activation(known_activation(moments.metadata.activation, affine.background))
    before, (after,) = map_effects(rows, {"this": affine}, threshold, activation)
    rows_per_image = float(moments.count.max()) / max(images, 1)
    return ScoreChange(
        threshold=threshold,
        before=before.detections * rows_per_image / 1000,
        after=after.detections * rows_per_image / 1000,
        matching=matching_threshold(rows, affine, threshold, activation),
        other_best=after.winners_changed,
        quantity=quantity_of(affine.background, activation),
        mass_before=before.mass,
        mass_after=after.mass,
    )
