"""Rare, common and frequent classes: from the LVIS field, or from one's own training counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.classes.counts import frequency_groups
from logn.errors import InputError
from logn.evaluate.detection.ground_truth import GroundTruth

GROUPS = ("r", "c", "f")
LVIS_BOUNDS = (10, 100)

Groups = npt.NDArray[np.str_]


def groups_of_classes(
    truth: GroundTruth, counts: npt.ArrayLike | None = None, bounds: tuple[int, int] = LVIS_BOUNDS
) -> tuple[Groups | None, str | None]:
    """The group of each class and where it comes from; both None for COCO annotations without counts.

    Args:
        truth: Its `frequency` field is used when there are no counts.
        counts: Training images of each foreground class.
        bounds: The last rare and the last common count.
    """
    if counts is not None:
        values: npt.NDArray[Any] = np.asarray(counts)
        if values.shape != (truth.num_classes,):
            raise InputError(
                f"Expected `counts` to have one number for each of the {truth.num_classes} classes, "
                f"but got shape {values.shape}."
            )
        if bounds[0] >= bounds[1]:
            raise InputError(f"Expected `bounds` to ascend, but got {bounds[0]} and {bounds[1]}.")
        return frequency_groups(values, bounds), f"training counts up to {bounds[0]}, up to {bounds[1]}, above"
    if truth.frequency is None and truth.style == "lvis":
        lacking = next(item["id"] for item in truth.dataset["categories"] if item.get("frequency") not in GROUPS)
        raise InputError(
            f"Expected the categories of `{truth.source}` to have `frequency` (r, c or f) for the LVIS protocol, but "
            f"category {lacking} has none; give training counts (`--counts`), or evaluate as COCO (style='coco')."
        )
    if truth.frequency is None:
        return None, None
    return truth.frequency, "the field `frequency`"


def mean_per_group(values: npt.NDArray[np.float64], groups: Groups | None) -> dict[str, float]:
    """Mean of the values that are there, over the classes of each group.

    Example:
        >>> mean_per_group(np.array([0.2, 0.4, np.nan]), np.array(["r", "f", "f"]))
        {'r': 0.2, 'c': nan, 'f': 0.4}
    """
    if groups is None:
        return {}
    return {group: mean_of_present(values[groups == group]) for group in GROUPS}


def mean_of_present(values: npt.NDArray[np.float64]) -> float:
    """Mean of what is not NaN; NaN when nothing is left."""
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else float("nan")
