"""Statistics of what a source of proposals gives: their start, and the names of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.models.open import fingerprint_of
from logn.logits.arrays import NO_CLASS, foreground_columns
from logn.logits.proposals import Postprocessing, Proposals
from logn.statistics.moments import ClassMoments, Nonfinite, StatisticsMetadata
from logn.statistics.record import default_sample_rows


def start_statistics(
    detector: Any,
    names: Sequence[str] | None,
    columns: int,
    sample_rows: int | None,
    nonfinite: Nonfinite = "error",
) -> ClassMoments:
    """Statistics of a detector's proposals that have seen nothing yet, and know what they are of.

    Args:
        detector: A source of proposals.
        names: Its foreground classes; by default what it calls them, if it does.
        columns: How many columns its logits have.
        sample_rows: Rows to keep; by default 4096, or what fits into 4 MiB.
        nonfinite: As in `logn.ClassMoments`.
    """
    layer = getattr(detector, "logit_layer", None)
    metadata = StatisticsMetadata(
        class_names=column_names(detector, names or getattr(detector, "class_names", None), columns),
        background=detector.background,
        activation=detector.activation,
        layer=None if layer is None else layer.name,
        population=getattr(detector, "population", None),
        fingerprint=fingerprint_of(detector),
    )
    rows = default_sample_rows(columns) if sample_rows is None else sample_rows
    return ClassMoments(columns, nonfinite=nonfinite, sample_rows=rows, metadata=metadata)


def counted_objectness(detector: Any, proposals: Proposals) -> npt.NDArray[Any] | None:
    """The objectness of the proposals where its sigmoid is a plain factor of their scores, as statistics take it."""
    kind = getattr(detector, "postprocessing", None) or Postprocessing()
    return proposals.objectness if (kind.objectness, kind.score_power) == ("factor", 1.0) else None


def column_names(detector: Any, names: Sequence[str] | None, columns: int) -> tuple[str, ...] | None:
    """The name of each column, of its class, the background or no class; None where `names` are not of its classes."""
    places = class_columns(detector, columns)
    if names is None or len(names) != len(places):
        return None
    named = [NO_CLASS] * columns
    if detector.background is not None:
        named[detector.background] = "background"
    for column, name in zip(places, names, strict=True):
        named[column] = str(name)
    return tuple(named)


def class_columns(detector: Any, columns: int) -> npt.NDArray[np.intp]:
    """The column of each foreground class of the model."""
    named = getattr(detector, "class_columns", None)
    return np.asarray(
        named if named is not None else np.arange(columns)[foreground_columns(columns, detector.background)]
    )
