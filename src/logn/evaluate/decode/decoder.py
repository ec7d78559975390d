"""Decode: from stored proposals to detections, for any number of methods in one pass.

The steps are those of torchvision and MMDetection: map the logits, activate, drop the background, keep scores above a
threshold, drop tiny boxes, suppress class by class, keep the best of the image.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.decode.best_per_class import BestPerClass, PlaceHolders
from logn.evaluate.decode.class_scores import Float32
from logn.evaluate.decode.detections import Detections
from logn.evaluate.decode.image_decoder import Decoded, Floors, ImageDecoder, ImageTask, Method
from logn.evaluate.decode.settings import DecodeSettings as DecodeSettings
from logn.evaluate.decode.workers import available_processors as available_processors
from logn.evaluate.decode.workers import decode_tasks, worthwhile_processes
from logn.evaluate.store.store import PredictionStore

# Called with the number of images that were decoded since the last call.
Progress = Callable[[int], object]
# Images that are decoded at a time, and of which memory is let go together; of those that are decoded beforehand, in
# full and for all methods, a few are much.
_IMAGES_AT_ONCE, _SAMPLED_AT_ONCE = 16, 1
# One of so many images is decoded beforehand, to guess floors, but never more than the most; where there would be fewer
# than the fewest, none is.
_IMAGES_PER_SAMPLED, _FEWEST_SAMPLED, _MOST_SAMPLED = 32, 8, 128
# How many times the wanted detections should exceed a guess: so many that too few hardly ever do.
_ENOUGH_TIMES = 2.0


@dataclass(frozen=True, eq=False)
class Purpose:
    """What detections are decoded for: the limits, and which of them are looked at.

    Args:
        settings: Threshold, suppression and limits.
        looked_at: `(I, F)` which classes are looked at in each image; None for all. The detections of others use up
            places of the limits, and are left out of the result.
    """

    settings: DecodeSettings
    looked_at: npt.NDArray[np.bool_] | None = None


def decode(
    store: PredictionStore,
    transform: Method = None,
    settings: DecodeSettings | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Detections:
    """Decode the proposals of a store under one method.

    Args:
        store: The proposals.
        transform: A `ClassAffine`, any callable from float32 logits `(N, C)` to new logits, or None for no change.
        settings: Threshold, suppression and limits; `DecodeSettings()` by default, the LVIS protocol.
        threads: How many threads to use; by default one per processor, or a process for each where that is faster. The
            result does not depend on it.
        progress: Called with the number of images that were decoded since the last call.

    Example:
        >>> import tempfile
        >>> from logn.evaluate.store.store import StoreHeader
        >>> from logn.evaluate.store.store import PredictionWriter
        >>> from logn.logits.proposals import Proposals
        >>> folder = tempfile.mkdtemp()
        >>> with PredictionWriter(folder, StoreHeader(num_columns=2, activation="sigmoid")) as writer:
        ...     boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9]])
        ...     writer.append(17, Proposals(boxes, np.array([[1.0, -1.0], [0.0, -20.0]]), height=10, width=20))
        >>> found = decode(PredictionStore(folder))
        >>> found.proposal.tolist(), found.labels.tolist(), found.scores.round(2).tolist()
        ([0, 0], [0, 1], [0.7300000190734863, 0.27000001072883606])
    """
    return decode_many(store, [transform], settings, threads=threads, progress=progress)[0]


def decode_many(
    store: PredictionStore,
    transforms: Sequence[Method],
    settings: DecodeSettings | None = None,
    *,
    threads: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[Detections]:
    """Decode under several methods in one pass; what does not depend on the scores is computed once.

    The arguments are those of `decode`, and `processes`, how many of them decode; by default one per processor where
    there is enough to do, and none besides this one where there is not. The result is the same as decoding under each
    method alone.
    """
    purpose = Purpose(settings or DecodeSettings())
    found = decode_for(store, transforms, [purpose], threads=threads, processes=processes, progress=progress)[0]
    return [one.detections for one in found]


def decode_for(
    store: PredictionStore,
    transforms: Sequence[Method],
    purposes: Sequence[Purpose],
    *,
    threads: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[list[Decoded]]:
    """Decode under several methods for several purposes in one pass: for each purpose what each method found.

    Purposes differ in threshold, limits and what they look at; the rest of their settings is the same. The
    other arguments are those of `decode_many`.
    """
    how = _How(threads, processes)
    guesses = [_guessed_floors(store, transforms, purpose, how) for purpose in purposes]
    collected = _collect(store, transforms, purposes, guesses, how, progress)
    for purpose, of_purpose in zip(purposes, collected, strict=True):
        for method, of_method in enumerate(of_purpose):
            if of_method.guessed_too_high():
                (of_purpose[method],) = _collect(store, [transforms[method]], [purpose], [[None]], how)[0]
    # One by one: what was kept for a method is let go of before that of the next one is sorted out.
    return [[_decoded(of_purpose.pop(0)) for _ in transforms] for of_purpose in collected]


@dataclass(frozen=True)
class _How:
    """On how many threads or processes to decode."""

    threads: int | None
    processes: int | None

    def for_sample_of(self, decoder: ImageDecoder) -> _How:
        """As many for a few images as for all: of them each takes longer."""
        if self.threads is not None or self.processes is not None:
            return self
        number = worthwhile_processes(decoder)
        return _How(None, number) if number > 1 else self


def _collect(
    store: PredictionStore,
    transforms: Sequence[Method],
    purposes: Sequence[Purpose],
    guesses: Sequence[Floors],
    how: _How,
    progress: Progress | None = None,
    at_once: int | None = None,
) -> list[list[_AllOf | BestPerClass]]:
    """Decode all images once, some of them at a time."""
    settings = [purpose.settings for purpose in purposes]
    decoder = ImageDecoder(store, transforms, settings)
    collected = [
        [_collector(decoder.num_classes, limits.max_per_class, guess) for guess in of_purpose]
        for limits, of_purpose in zip(settings, guesses, strict=True)
    ]
    floors = [[of_method.floor for of_method in of_purpose] for of_purpose in collected]
    tasks = _tasks(store, purposes, floors, at_once or _IMAGES_AT_ONCE)
    with contextlib.closing(decode_tasks(decoder, tasks, threads=how.threads, processes=how.processes)) as chunks:
        for task, chunk in chunks:
            for of_purpose, decoded in zip(collected, chunk, strict=True):
                for of_method, found in zip(of_purpose, decoded, strict=True):
                    of_method.add(found.detections, found.holders)
            if progress:
                progress(task.stop - task.start)
    return collected


def _guessed_floors(
    store: PredictionStore, transforms: Sequence[Method], purpose: Purpose, how: _How
) -> list[Float32 | None]:
    """Floors that a few images suggest: of each class a score that about twice as many as are wanted should exceed.

    Without them the first images would be decoded in full, before enough is known to skip anything. They are only
    guesses: where too few exceed one in the end, all is decoded again without it.
    """
    limits, number = purpose.settings, len(store) // _IMAGES_PER_SAMPLED
    if limits.max_per_class is None or limits.max_detections is not None or number < _FEWEST_SAMPLED:
        return [None] * len(transforms)
    number = min(number, _MOST_SAMPLED)
    rank = int(_ENOUGH_TIMES * limits.max_per_class * number / len(store)) + _FEWEST_SAMPLED
    sample = store.part(np.linspace(0, len(store) - 1, number).astype(np.intp))
    # None of it is looked at: only scores are wanted.
    nothing = np.zeros((number, 1), np.bool_).repeat(ImageDecoder(store, [], [limits]).num_classes, axis=1)
    counting = Purpose(replace(limits, max_per_class=rank), nothing)
    how = how.for_sample_of(ImageDecoder(store, transforms, [limits]))
    (found,) = _collect(sample, transforms, [counting], [[None] * len(transforms)], how, at_once=_SAMPLED_AT_ONCE)
    return [None if isinstance(one, _AllOf) else one.settled_floor() for one in found]


def decode_chunks(
    store: PredictionStore,
    transforms: Sequence[Method],
    settings: DecodeSettings | None = None,
    *,
    threads: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Iterator[list[Detections]]:
    """Decode some images at a time, in order: for results that are too many to hold at once.

    The arguments are those of `decode_many`; `max_per_class`, which needs all images, is refused.
    """
    purpose = Purpose(settings or DecodeSettings())
    if purpose.settings.max_per_class is not None:
        raise InputError("Expected `max_per_class` to be None for decoding by chunks, since it needs all images.")
    decoder = ImageDecoder(store, transforms, [purpose.settings])
    tasks = _tasks(store, [purpose], [[None] * len(transforms)], _IMAGES_AT_ONCE)
    return _chunks(decode_tasks(decoder, tasks, threads=threads, processes=processes), progress)


def _chunks(
    decoded: Generator[tuple[ImageTask, list[list[Decoded]]]], progress: Progress | None
) -> Iterator[list[Detections]]:
    with contextlib.closing(decoded) as chunks:
        for task, (found,) in chunks:
            yield [of_method.detections for of_method in found]
            if progress:
                progress(task.stop - task.start)


def _tasks(
    store: PredictionStore, purposes: Sequence[Purpose], floors: Sequence[Floors], at_once: int
) -> Iterator[ImageTask]:
    for start in range(0, len(store), at_once):
        stop = min(start + at_once, len(store))
        masks = (purpose.looked_at for purpose in purposes)
        # The floors are those of the moment in which the task is given away.
        yield ImageTask(start, stop, tuple(None if mask is None else mask[start:stop] for mask in masks), tuple(floors))


class _AllOf:
    """Detections of images that follow each other, all of them kept."""

    floor = None

    def __init__(self) -> None:
        self._parts: list[Detections] = []
        self._holders: list[PlaceHolders] = []

    def add(self, detections: Detections, holders: PlaceHolders | None) -> None:
        self._parts.append(detections)
        if holders is not None:
            # There are millions, and nobody asks for their classes.
            self._holders.append(replace(holders, labels=holders.labels[:0]))

    def guessed_too_high(self) -> bool:
        return False

    def detections(self) -> Detections:
        return Detections.concatenate(self._parts)

    def holders(self) -> PlaceHolders | None:
        return PlaceHolders.concatenate(self._holders) if self._holders else None


def _decoded(best: _AllOf | BestPerClass) -> Decoded:
    return Decoded(best.detections(), best.holders() if isinstance(best, _AllOf) else None)


def _collector(num_classes: int, limit: int | None, guess: Float32 | None) -> _AllOf | BestPerClass:
    return _AllOf() if limit is None else BestPerClass(num_classes, limit, guess)
