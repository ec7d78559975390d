"""The bootstrap of several methods on all processors: in processes of their own where there is enough to do.

Its steps are short, so that threads wait for each other. The draws are made anew in each process: that takes less than
sending them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from logn.errors import LogNWarning
from logn.evaluate.decode.decoder import available_processors, started_processes
from logn.evaluate.detection.bootstrap import draw_weights
from logn.evaluate.detection.measurement import Matched, Measurement

Drawn = dict[str, npt.NDArray[np.float64]]
# Detections times draws, over all methods, from which starting processes pays: some seconds of work.
_ENOUGH = 300_000_000
# What this process draws with, where it does nothing else.
_own: tuple[Measurement, npt.NDArray[np.int32]] | None = None


def draw_methods(
    measurement: Measurement, methods: Sequence[Matched], num_bootstrap: int, seed: int, *, processes: int | None = None
) -> list[Drawn]:
    """The metrics of each method over the same draws of images.

    Args:
        measurement: How methods are measured.
        methods: The matched detections of each.
        num_bootstrap: How many draws.
        seed: Of the draws.
        processes: How many processes draw; None for as many as there are processors, where there is enough to do. The
            result does not depend on it.
    """
    work = num_bootstrap * sum(len(found.labels) for matched in methods for found in matched.values())
    number = processes or (min(available_processors(), len(methods)) if work >= _ENOUGH else 1)
    if number > 1 and (drawn := _in_processes(measurement, methods, num_bootstrap, seed, number)) is not None:
        return drawn
    weights = draw_weights(measurement.truth.num_images, num_bootstrap, seed)
    with ThreadPoolExecutor(available_processors()) as pool:
        return list(pool.map(lambda matched: measurement.draw(matched, weights), methods))


def _in_processes(
    measurement: Measurement, methods: Sequence[Matched], num_bootstrap: int, seed: int, number: int
) -> list[Drawn] | None:
    """What `draw_methods` gives; None where there can be no processes, or one was killed."""
    # Draws look at images, classes and crowds of the boxes only; the rest would be sent for nothing.
    truth = replace(measurement.truth, dataset={}, verified=None, not_exhaustive=None)
    prepare = partial(_prepare, replace(measurement, truth=truth), num_bootstrap, seed)
    try:
        with ExitStack() as stack:
            pool = started_processes(stack, number, prepare)
            return None if pool is None else list(pool.map(_draw_here, methods))
    except BrokenProcessPool:
        warnings.warn(
            f"One of the {number} processes that draw was ended from outside, as a machine without free memory does; "
            "all is drawn again in this process alone, which takes longer and gives the same.",
            LogNWarning,
            stacklevel=3,
        )
        return None


def _prepare(measurement: Measurement, num_bootstrap: int, seed: int) -> None:
    global _own
    _own = measurement, draw_weights(measurement.truth.num_images, num_bootstrap, seed)


def _draw_here(matched: Matched) -> Drawn:
    if _own is None:
        raise RuntimeError("This process was not prepared for drawing.")
    measurement, weights = _own
    return measurement.draw(matched, weights)
