"""What is said where detections have no box of their own, since a store keeps those of some classes alone."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from logn.errors import LogNWarning
from logn.evaluate.decode.detections import Detections
from logn.evaluate.decode.settings import DecodeSettings
from logn.evaluate.store.store import PredictionStore

# Methods that are named; the others have borrowed less.
_MOST_NAMED = 3


def count_borrowed(store: PredictionStore, found: Detections) -> int:
    """How many detections have the box of their proposal's strongest class, since their own was not kept."""
    if store.header.kept_class_boxes is None:
        return 0
    starts = np.searchsorted(found.image_index, np.arange(len(store) + 1))
    number = 0
    for index in np.flatnonzero(np.diff(starts)).tolist():
        rows = slice(int(starts[index]), int(starts[index + 1]))
        own = store[index].class_boxes
        assert own is not None  # noqa: S101 - the header says so
        number += int((~own.has(found.proposal[rows], found.labels[rows])).sum())
    return number


def borrowed_note(store: PredictionStore, found: Detections) -> tuple[str, ...]:
    """What to know of the detections of a method before reading its numbers; nothing where all have their own box."""
    borrowed = count_borrowed(store, found)
    if not borrowed:
        return ()
    kept = store.header.kept_class_boxes
    return (
        f"{_share(borrowed, len(found))} of its detections have the box of their proposal's strongest class, since the "
        f"predictions keep some boxes only (--class-boxes {kept})",
    )


def warn_of_borrowed(
    store: PredictionStore,
    settings: DecodeSettings,
    names: Sequence[str],
    counts: Sequence[tuple[int, int]],
    borrowing: Sequence[int],
) -> None:
    """Say in one sentence how many detections borrowed their box, if any candidate that decided them did.

    Args:
        store: The proposals.
        settings: Of the decoding.
        names: Of the methods.
        counts: Of each method, how many detections borrowed their box, and how many there are.
        borrowing: Of each method, how many candidates had no box of their own, those that were suppressed among them.
    """
    if not any(borrowing):
        return
    kept = store.header.kept_class_boxes or 0
    shares = sorted(zip(names, counts, strict=True), key=lambda entry: -entry[1][0] / max(entry[1][1], 1))
    worst = [f"{_share(*of_method)} ({name})" for name, of_method in shares if of_method[0]]
    named = ", ".join(worst[:_MOST_NAMED]) + (", …" if len(worst) > _MOST_NAMED else "")
    others = sum(borrowing) - sum(borrowed for borrowed, _ in counts)
    what = "detections" if settings.max_per_class is None else "detections for AP-Fixed"
    more = "" if 2 * kept >= store.num_classes else f"`--class-boxes {2 * kept}` in a new folder keeps more, "
    warnings.warn(
        f"`{store.path}` keeps the boxes of some classes only (`logn predict --class-boxes {kept}`): "
        f"{named or 'none'} of the {what} have that of their proposal's strongest class instead of their own (of the "
        f"candidates that were suppressed or left out, {others:,}); {more}`--class-boxes all` keeps all.",
        LogNWarning,
        stacklevel=3,
    )


def _share(part: int, whole: int) -> str:
    percent = 100 * part / max(whole, 1)
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.0f} %"
