"""Temperature scaling: one common factor for all logits."""

from __future__ import annotations

import numpy as np

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.class_frequencies import checked_number
from logn.calibrators.method import Method, MethodInputs, Option, Options
from logn.errors import InputError
from logn.logits.arrays import check_background


def temperature(num_classes: int, value: float, *, background: int | None = None) -> ClassAffine:
    """Divide every logit, the background's too, by `value`: the ranking inside a sample never changes.

    Args:
        num_classes: Columns of the logits, the background included.
        value: The temperature, above 0; more than 1 makes the scores less certain.
        background: Place of the background column, for the record: None, 0 or -1.

    Example:
        >>> temperature(2, 4.0)(np.array([2.0, -8.0]))
        array([ 0.5, -2. ])
    """
    divisor = checked_number("value", value, above=0.0)
    scale = np.full(num_classes, 1.0 / divisor)
    return ClassAffine(scale, np.zeros(num_classes), check_background(background), "temperature", {"value": divisor})


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    if "value" not in options:
        raise InputError("Expected the temperature as `temperature:value=…`, but got none.")
    return temperature(inputs.needed_columns(), options["value"], background=inputs.background)


METHOD = Method(
    "temperature",
    "temperature scaling",
    _fit,
    {"value": Option("number", "The temperature; above 1 makes the scores less certain.", flag="--temperature")},
    takes=("counts",),
)
