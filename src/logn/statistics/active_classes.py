"""Which classes the statistics say something about."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import NO_CLASS, foreground_columns
from logn.statistics.moments import ClassMoments

# A class whose standard deviation is this small compared to the median one was not learnt; its column says nothing.
DEAD_STD_SHARE = 1e-3


def active_classes(moments: ClassMoments, background: int | None) -> npt.NDArray[np.bool_]:
    """Which columns were seen, vary, and are neither recorded as unused nor named "N/A"; the background always is.

    Example:
        >>> moments = ClassMoments(3)
        >>> moments.update(np.array([[1.0, -9.0, 2.0], [0.0, -9.0, 3.0]]))
        >>> active_classes(moments, background=None)
        array([ True, False,  True])
    """
    std, count = moments.std, moments.count
    known = std[foreground_columns(len(std), background)]
    known = known[np.isfinite(known) & (known > 0)]
    threshold = DEAD_STD_SHARE * float(np.median(known)) if len(known) else 0.0
    # A single value has no variance but is no sign of death: its standard deviation falls back to 1.
    alive: npt.NDArray[np.bool_] = (count == 1) | ((count > 1) & (np.nan_to_num(std) > threshold))
    names = moments.metadata.class_names or ()
    unused = (*moments.metadata.unused, *(column for column, name in enumerate(names) if name == NO_CLASS))
    alive[list(unused)] = False
    if background is not None:
        alive[background] = True
    return alive
