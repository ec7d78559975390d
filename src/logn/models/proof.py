"""The proof of a fold: new logits are the map of the old ones, up to rounding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from logn.base.arrays import FloatArray
from logn.errors import InputError

# How far a logit may be off, relative to the largest one (or to 1).
TOLERANCE = 1e-4
HALF_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Proof:
    """What the comparison of two models gave.

    Attributes:
        largest_difference: Largest distance between the new logits and scale * old logits + shift.
        largest_logit: Largest magnitude of the latter.
        tolerance: What the difference may be at most.
        rows: How many rows of logits were compared; rows with NaN before the fold are not.
    """

    largest_difference: float
    largest_logit: float
    tolerance: float
    rows: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[FloatArray, FloatArray]], *, half: bool = False) -> Proof:
        """Compare rows of logits (..., C), pair by pair: what they should be, and what they are.

        Example:
            >>> Proof.of([(np.array([[1.0, 2.0]]), np.array([[1.0, 2.5]]))]).largest_difference
            0.5
        """
        difference, largest, rows = 0.0, 0.0, 0
        for expected, actual in pairs:
            known = ~np.isnan(expected)  # where the model itself gives no number, there is nothing to compare
            difference = max(difference, largest_difference(actual[known], expected[known]))
            largest = max(largest, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
            rows += int(known.all(axis=-1).sum())
        return cls(difference, largest, (HALF_TOLERANCE if half else TOLERANCE) * max(1.0, largest), rows)

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.largest_difference <= self.tolerance

    def checked(self, name: str) -> Proof:
        """This proof; one that does not hold is refused.

        Example:
            >>> Proof(0.5, 3.0, 3e-4, 10).checked("best.pt")
            Traceback (most recent call last):
            ...
            logn.errors.InputError: The corrected `best.pt` does not give scale * logit + shift: it is off by 0.5 at
            logits of up to 3.
        """
        if self.rows == 0:
            raise InputError(f"`{name}` gave no logits on the trial images; pass others.")
        if not self.holds:
            raise InputError(
                f"The corrected `{name}` does not give scale * logit + shift: it is off by "
                f"{self.largest_difference:.3g} at logits of up to {self.largest_logit:.3g}."
            )
        return self


def largest_difference(found: FloatArray, expected: FloatArray) -> float:
    """Equal infinities differ by nothing; NaN for a number differs by infinity, though `max` would pass it over."""
    with np.errstate(invalid="ignore"):
        difference = np.where(found == expected, 0.0, np.abs(found - expected))
    return float(np.nan_to_num(difference, nan=np.inf, posinf=np.inf).max(initial=0.0))
