"""What a threshold is chosen for."""

from __future__ import annotations

from dataclasses import dataclass

from logn.errors import InputError

F_BETA, PRECISION, RECALL, FALSE_ALARMS = "f-beta", "precision", "recall", "fppi"
TOTAL_PRECISION, KEEP_COUNTS = "total-precision", "keep-counts"
# What stands for a kind and its value.
_DEFAULTS = {"f1": (F_BETA, 1.0), KEEP_COUNTS: (KEEP_COUNTS, 0.5)}
_HOW = "f1, f-beta=2, precision=0.9, recall=0.8, fppi=1, total-precision=0.9 or keep-counts=0.5"


@dataclass(frozen=True)
class Target:
    """What a threshold is chosen for.

    Of each class by itself: `f1`, `f-beta=B` (the best F-beta), `precision=P` (as many objects as can be found with at
    least this precision), `recall=R` (the highest threshold that finds this share of the objects), `keep-counts=T` (as
    many detections as the uncorrected model has at the threshold T). Over all classes together: `fppi=N` (at most N
    false alarms per image) and `total-precision=P` (of all detections), allotted so that most objects are found.

    Args:
        kind: The word before the equals sign; "f-beta" for f1.
        value: The number behind it.

    Example:
        >>> Target.parse("f1"), Target.parse("fppi=0.5").is_joint
        (Target(kind='f-beta', value=1.0), True)
        >>> Target.parse("precision=90")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `target` to have a share above 0 and at most 1, but got 'precision=90'.
    """

    kind: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target as it is written."""
        kind, equals, number = str(text).strip().partition("=")
        if not equals and kind in _DEFAULTS:
            return cls(*_DEFAULTS[kind])
        if not equals or kind not in (F_BETA, PRECISION, RECALL, FALSE_ALARMS, TOTAL_PRECISION, KEEP_COUNTS):
            raise InputError(f"Expected `target` to be {_HOW}, but got {text!r}.")
        try:
            value = float(number)
        except ValueError:
            raise InputError(f"Expected `target` to be {_HOW}, but got {text!r}.") from None
        if kind in (F_BETA, FALSE_ALARMS):
            if not 0 < value < float("inf"):
                raise InputError(f"Expected `target` to have a number above 0, but got {text!r}.")
        elif not 0 < value <= 1:
            raise InputError(f"Expected `target` to have a share above 0 and at most 1, but got {text!r}.")
        return cls(kind, value)

    def __str__(self) -> str:
        return "f1" if (self.kind, self.value) == (F_BETA, 1.0) else f"{self.kind}={self.value:g}"

    @property
    def is_joint(self) -> bool:
        """Whether it is over all classes together."""
        return self.kind in (FALSE_ALARMS, TOTAL_PRECISION)
