"""How often a classifier is right, by how sure it says it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.evaluate.classification.bootstrap import BINS
from logn.evaluate.classification.logits import RowOutcomes
from logn.logits.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class Reliability:
    """Rows in bins of equal width by the probability of the predicted class; the bins of the calibration error.

    Args:
        rows: Rows of each bin, int64 (B,).
        confidence: Their mean probability; NaN for an empty bin.
        accuracy: The share that is right; NaN for an empty bin.
    """

    rows: npt.NDArray[np.int64]
    confidence: FloatArray
    accuracy: FloatArray

    @classmethod
    def of(cls, outcomes: RowOutcomes, labels: npt.NDArray[np.int64]) -> Reliability:
        """Count the rows of one method.

        Example:
            >>> sure = RowOutcomes(np.array([0, 0]), np.array([0.99, 0.97]), np.zeros(2))
            >>> found = Reliability.of(sure, np.array([0, 1]))
            >>> int(found.rows[-1]), float(found.confidence[-1].round(2)), float(found.accuracy[-1])
            (2, 0.98, 0.5)
        """
        place = np.minimum((outcomes.confidence * BINS).astype(np.int64), BINS - 1)
        rows = np.bincount(place, minlength=BINS)
        sums = [np.bincount(place, column, BINS) for column in (outcomes.confidence, outcomes.predicted == labels)]
        confidence, accuracy = (np.divide(total, rows, out=np.full(BINS, np.nan), where=rows > 0) for total in sums)
        return cls(rows.astype(np.int64), confidence, accuracy)
