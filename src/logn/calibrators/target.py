"""Where a correction aims, and how much of the way it goes: one definition for all methods.

A method's map, `a_c x_c + b_c`, is made for classes that are equally likely where the model is used. For a class mix
`t_c` of C foreground classes and a strength `s` it becomes

    a_c^s x_c + s (b_c + ln(C t_c))

so a strength of 0 changes nothing, 1 is the whole correction, and a uniform target is the method as it was. A margin
that keeps the foreground mass is solved after that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_frequencies import checked_strength, checked_target
from logn.calibrators.method import MethodInputs, Option, Options
from logn.calibrators.provenance import foreground_names
from logn.classes.shares import ClassShares, read_shares
from logn.errors import InputError
from logn.logits.arrays import FloatArray, foreground_columns

UNIFORM, COUNTS, TRAINING = "uniform", "counts", "training"
TARGET_OPTION = Option(
    "name",
    "Class mix of the deployment: uniform (default), counts, training, or a file of shares.",
    flag="--target",
)
STRENGTH_OPTION = Option("number", "How much of the correction, from 0 to 1 (default: 1).", flag="--strength")


class Aim:
    """A class mix and a strength, checked.

    Args:
        target: Share of each foreground class where the model will be used, of any sum; None is the same for all.
        strength: 0 to change nothing, 1 for the whole correction.
        num_classes: Foreground classes.

    Example:
        >>> scale, shift = Aim([3.0, 1.0], 0.5, 2)(np.array([4.0, 1.0]), np.array([0.0, 2.0]))
        >>> scale.tolist(), shift.round(4).tolist()
        ([2.0, 1.0], [0.2027, 0.6534])
    """

    def __init__(self, target: npt.ArrayLike | None, strength: float, num_classes: int) -> None:
        self.target = None if target is None else checked_target(target, num_classes)
        self.strength = checked_strength(strength)

    def __call__(
        self, scale: FloatArray, shift: FloatArray, *, power: float = 1.0, alive: npt.NDArray[np.bool_] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """The scale and shift of the foreground towards the target.

        Args:
            scale: Of the map for a uniform target, above 0.
            shift: Of the map for a uniform target.
            power: Of the prior that the method takes out: that of the target that it puts in.
            alive: Which classes are; the shares of the others count nowhere.
        """
        moved = shift
        if self.target is not None:
            living = np.ones(len(shift), bool) if alive is None else alive
            moved = shift + power * np.log(self.target / self.target[living].mean())
        return scale**self.strength, self.strength * moved

    def to_settings(self) -> dict[str, Any]:
        """What a map keeps of it: nothing where the method does what it always did."""
        settings: dict[str, Any] = {} if self.strength == 1.0 else {"strength": self.strength}
        return settings if self.target is None else settings | {"target": self.target.tolist()}


def target_shares(inputs: MethodInputs, options: Options) -> FloatArray | None:
    """Take the option `target` out of `options` and give the shares that it stands for; None is a uniform target.

    Without the option it is the target of the inputs, where they have one.
    """
    given: Any = options.pop("target", inputs.target)
    if given is None or (isinstance(given, str) and given == UNIFORM):
        return None
    if isinstance(given, str) and given in (COUNTS, TRAINING):
        return training_shares(inputs, needs_counts=given == COUNTS)
    table = read_target_file(given) if isinstance(given, str) else given
    if not isinstance(table, ClassShares):
        return np.asarray(table, np.float64)
    return table.aligned_to(_names(inputs))


def training_shares(inputs: MethodInputs, *, needs_counts: bool = False) -> FloatArray:
    """The class mix of training: the counts, or without them the model's own mean probability."""
    if inputs.counts is not None or needs_counts:
        return inputs.needed_counts("instances")
    moments = inputs.needed_moments()
    mean = moments.mean_probability
    if mean is None:
        raise InputError(
            'Expected `counts`, or statistics with the mean probability, for target="training", but got neither; '
            "collect them with mean_probability=True (`--prior`)."
        )
    return mean[foreground_columns(moments.num_columns, inputs.background)]


def read_target_file(text: str) -> ClassShares:
    """The shares in a file; a word that is none gets a sentence."""
    if not Path(text).suffix and not Path(text).exists():
        raise InputError(
            f"Expected `target` to be {UNIFORM}, {COUNTS}, {TRAINING} or a file of shares, but got {text!r}."
        )
    return read_shares(text)


def _names(inputs: MethodInputs) -> tuple[str, ...] | None:
    if inputs.moments is not None and inputs.moments.metadata.class_names is not None:
        return foreground_names(inputs.moments.metadata.with_changes(background=inputs.background))
    return None if inputs.counts is None else inputs.counts.names
