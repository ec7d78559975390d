"""Decode: from stored proposals to detections, for any number of methods in one pass, on all processors.

The steps are those of torchvision and MMDetection: map the logits, activate, drop the background, keep scores above a
threshold, drop tiny boxes, suppress class by class, keep the best of the image.

Large stores are decoded in processes, which share the memory-mapped store. Threads hardly help: many steps are short
and wait for the interpreter lock.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.processes import available_processors, started_processes, work_here
from logn.errors import InputError, warn
from logn.predictions.detections import DecodeSettings as DecodeSettings
from logn.predictions.detections import Detections
from logn.predictions.image_decoder import Decoded, ImageDecoder, ImageTask, Method
from logn.predictions.scores import Float32
from logn.predictions.store import PredictionStore

# Called with the number of images that were decoded since the last call.
Progress = Callable[[int], object]
_Results = list[list[Decoded]]
# Tasks that were taken, with their results to come; None for one that could not be given away.
_Waiting = deque[tuple[ImageTask, Future[_Results] | None]]
# Images that are decoded at a time, and of which memory is let go together.
_IMAGES_AT_ONCE = 16
# Logits to be mapped and activated, over all methods, from which starting processes pays: some seconds of work.
_ENOUGH_LOGITS = 2_000_000_000
# A buffer of the best of each class is trimmed when it has grown by this factor and this number.
_GROWTH, _FEW = 1.25, 1_000_000
# One of so many images is decoded beforehand, to guess floors, but never more than the most; where there would be fewer
# than the fewest, none is.
_IMAGES_PER_SAMPLED, _FEWEST_SAMPLED, _MOST_SAMPLED = 32, 8, 128
# How many times the wanted detections should reach a guess: so many that too few hardly ever do.
_GUESSED_TIMES = 2.0


@dataclass(frozen=True, eq=False)
class Purpose:
    """What detections are decoded for: the limits, and which of them are evaluated.

    Args:
        settings: Threshold, suppression and limits.
        evaluated: `(I, F)` which classes are evaluated in each image; None for all. The detections of others use up
            places of the limits; of them only class and score are kept.
    """

    settings: DecodeSettings
    evaluated: npt.NDArray[np.bool_] | None = None


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
        >>> from logn.predictions.store import StoreHeader
        >>> from logn.predictions.store import PredictionWriter
        >>> from logn.models.proposals import Proposals
        >>> folder = tempfile.mkdtemp()
        >>> with PredictionWriter(folder, StoreHeader(num_columns=2, activation="sigmoid")) as writer:
        ...     boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9]])
        ...     writer.append(17, Proposals(boxes, np.array([[1.0, -1.0], [0.0, -20.0]]), height=10, width=20))
        >>> detections = decode(PredictionStore(folder))
        >>> detections.proposal.tolist(), detections.labels.tolist(), detections.scores.round(2).tolist()
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
    (decoded,) = decode_for(store, transforms, [purpose], threads=threads, processes=processes, progress=progress)
    return [of_method.detections for of_method in decoded]


def decode_for(
    store: PredictionStore,
    transforms: Sequence[Method],
    purposes: Sequence[Purpose],
    *,
    threads: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> _Results:
    """Decode under several methods for several purposes in one pass: for each purpose what each method found.

    Purposes differ in threshold, limits and what is evaluated; the rest of their settings is the same. The other
    arguments are those of `decode_many`.
    """
    fill = partial(_fill, store=store, threads=threads, processes=processes)
    guesses = [
        _guessed_floors(store, transforms, purpose, threads=threads, processes=processes) for purpose in purposes
    ]
    buffers = [
        [_Buffer(store.header.num_classes, purpose.settings.max_per_class, guess) for guess in of_purpose]
        for purpose, of_purpose in zip(purposes, guesses, strict=True)
    ]
    images = _all_images(store)
    fill(buffers, transforms=transforms, purposes=purposes, images=images, progress=progress)
    for purpose, of_purpose in zip(purposes, buffers, strict=True):
        for method, buffer in enumerate(of_purpose):
            if buffer.guessed_too_high():
                of_purpose[method] = again = _Buffer(store.header.num_classes, purpose.settings.max_per_class)
                fill([[again]], transforms=[transforms[method]], purposes=[purpose], images=images)
    # One by one: what was buffered for a method is let go of before that of the next one is sorted out.
    return [[of_purpose.pop(0).best() for _ in transforms] for of_purpose in buffers]


def _fill(
    buffers: Sequence[Sequence[_Buffer]],
    store: PredictionStore,
    transforms: Sequence[Method],
    purposes: Sequence[Purpose],
    images: Sequence[range],
    *,
    threads: int | None,
    processes: int | None,
    progress: Progress | None = None,
) -> None:
    """Decode some images into the buffers of each purpose and method."""
    decoder = ImageDecoder(store, transforms, [purpose.settings for purpose in purposes])
    tasks = _tasks(images, purposes, buffers)
    with contextlib.closing(decode_tasks(decoder, tasks, threads=threads, processes=processes)) as chunks:
        for task, chunk in chunks:
            for of_purpose, decoded in zip(buffers, chunk, strict=True):
                for buffer, part in zip(of_purpose, decoded, strict=True):
                    buffer.add(part)
            if progress:
                progress(task.stop - task.start)


def _all_images(store: PredictionStore) -> list[range]:
    number = len(store)
    return [range(start, min(start + _IMAGES_AT_ONCE, number)) for start in range(0, number, _IMAGES_AT_ONCE)]


def _tasks(
    images: Sequence[range], purposes: Sequence[Purpose], buffers: Sequence[Sequence[_Buffer]]
) -> Iterator[ImageTask]:
    for some in images:
        masks = (purpose.evaluated for purpose in purposes)
        evaluated = tuple(None if mask is None else mask[some.start : some.stop] for mask in masks)
        # The floors are those of the moment in which the task is given away.
        floors = tuple([buffer.floor for buffer in of_purpose] for of_purpose in buffers)
        yield ImageTask(some.start, some.stop, evaluated, floors)


def _guessed_floors(
    store: PredictionStore,
    transforms: Sequence[Method],
    purpose: Purpose,
    *,
    threads: int | None,
    processes: int | None,
) -> list[Float32 | None]:
    """Floors that a few images suggest: of each class a score that about twice the wanted detections should reach.

    Without them the first images are decoded in full, and of ten methods at LVIS's size these fill the memory.
    """
    limits, number = purpose.settings, min(len(store) // _IMAGES_PER_SAMPLED, _MOST_SAMPLED)
    if limits.max_per_class is None or limits.max_detections is not None or number < _FEWEST_SAMPLED:
        return [None] * len(transforms)
    rank = int(_GUESSED_TIMES * limits.max_per_class * number / len(store)) + _FEWEST_SAMPLED
    buffers = [_Buffer(store.header.num_classes, rank) for _ in transforms]
    # Nothing is evaluated: only scores are wanted.
    scores_only = Purpose(limits, np.zeros((len(store), store.header.num_classes), np.bool_))
    places = np.linspace(0, len(store) - 1, number).astype(np.intp).tolist()
    images = [range(place, place + 1) for place in places]
    _fill([buffers], store, transforms, [scores_only], images, threads=threads, processes=processes)
    return [buffer.final_floor() for buffer in buffers]


class _Buffer:
    """Detections of images that follow each other; with a limit, only the best of each class.

    AP-Fixed takes the 10,000 best of each class, and on federated labels nearly all of these lie in images where nobody
    looked for the class. When the buffer has grown enough, what cannot be among the best any more is let go, and the
    score of the last of the best becomes the floor of its class, below which nothing need be decoded.

    Args:
        num_classes: How many classes there are.
        limit: How many detections to keep of each; None for all.
        guess: Floors to begin with; they may turn out to be too high.
    """

    def __init__(self, num_classes: int, limit: int | None, guess: Float32 | None = None) -> None:
        self._limit, self._num_classes, self._guess = limit, num_classes, guess
        self._parts: list[Decoded] = []
        self._size, self._trim_at = 0, max(_FEW, (limit or 0) * num_classes)
        self.floor = guess

    def add(self, part: Decoded) -> None:
        """Take in what was found in the images after those of before."""
        self._parts.append(part)
        self._size += len(part)
        if self._limit is not None and self._size > self._trim_at:
            self._trim(self._limit)

    def _column(self, name: str) -> npt.NDArray[Any]:
        """Class, score or image of everything: of what is evaluated, then of what is skipped."""
        sides = [part.detections for part in self._parts], [part.skipped for part in self._parts]
        return np.concatenate([np.empty(0, np.uint16), *(getattr(part, name) for side in sides for part in side)])

    def _trim(self, limit: int) -> None:
        # NumPy sorts 16 bits by counting.
        labels = self._column("labels").astype(np.uint16 if self._num_classes <= 2**16 else np.int64)
        scores = self._column("scores")
        order = np.argsort(labels, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=self._num_classes))])
        floor = np.zeros(self._num_classes, np.float32) if self._guess is None else self._guess.copy()
        for label in np.flatnonzero(np.diff(starts) >= limit).tolist():
            of_class = scores[order[starts[label] : starts[label + 1]]]
            floor[label] = np.partition(of_class, -limit)[-limit]
        self.floor = floor
        self._parts = [
            Decoded(
                detections.take(detections.scores >= floor[detections.labels]),
                skipped.take(skipped.scores >= floor[skipped.labels]),
            )
            for detections, skipped in ((part.detections, part.skipped) for part in self._parts)
        ]
        self._size = sum(map(len, self._parts))
        self._trim_at = int(_GROWTH * self._size) + _FEW

    def final_floor(self) -> Float32 | None:
        """The floors by all that was added."""
        if self._limit is not None:
            self._trim(self._limit)
        return self.floor

    def guessed_too_high(self) -> bool:
        """Whether fewer detections of a class than are wanted reach its guessed floor, so that some are missing."""
        if self._guess is None or self._limit is None:
            return False
        counts = np.zeros(self._num_classes, np.int64)
        for part in self._parts:
            for labels in (part.detections.labels, part.skipped.labels):
                counts += np.bincount(labels, minlength=self._num_classes)
        return bool(((counts < self._limit) & (self._guess > 0)).any())

    def best(self) -> Decoded:
        """What is kept, sorted by image, then by descending score."""
        if self._limit is not None:
            self._trim(self._limit)
        whole = Decoded.concatenate(self._parts)
        if self._limit is None or self.floor is None:
            return whole
        self._parts = [whole]
        labels, scores, images = map(self._column, ("labels", "scores", "image_index"))
        # Only ties with the last of the best are too many: of these the earlier images stay.
        excess = np.maximum(np.bincount(labels, minlength=self._num_classes) - self._limit, 0)
        tied = np.flatnonzero((scores == self.floor[labels]) & (excess[labels] > 0))
        tied = tied[np.lexsort((images[tied], labels[tied]))]
        behind = np.searchsorted(labels[tied], labels[tied], side="right") - np.arange(len(tied))
        kept = np.ones(len(labels), bool)
        kept[tied[behind <= excess[labels[tied]]]] = False
        number = len(whole.detections)
        return Decoded(whole.detections.take(kept[:number]), whole.skipped.take(kept[number:]))


def decode_tasks(
    decoder: ImageDecoder, tasks: Iterator[ImageTask], *, threads: int | None, processes: int | None
) -> Generator[tuple[ImageTask, _Results]]:
    """Decode tasks on several processors, and give what was found in their order.

    Args:
        decoder: What decodes them.
        tasks: Taken a few ahead of those that are done.
        threads: How many threads of this process decode; None to use processes where that is faster.
        processes: How many processes decode; None for as many as there are processors, where there is enough to do.
    """
    if threads is not None and processes is not None:
        raise InputError("Pass `threads` or `processes`, not both.")
    for name, number in (("threads", threads), ("processes", processes)):
        if number is not None and number < 1:
            raise InputError(f"Expected `{name}` to be at least 1, but got {number}.")
    number = processes if processes is not None else 1 if threads is not None else _worthwhile_processes(decoder)
    with contextlib.ExitStack() as stack:
        if number > 1 and (pool := _process_pool(stack, decoder, number)) is not None:
            yield from _in_processes(pool, decoder, tasks, number)
        else:
            number = threads or (1 if processes else available_processors())
            pool = stack.enter_context(ThreadPoolExecutor(number))
            yield from _in_order(pool, decoder.decode, tasks, deque(), number)


def _in_order(
    pool: Executor, work: Callable[[ImageTask], _Results], tasks: Iterator[ImageTask], waiting: _Waiting, number: int
) -> Iterator[tuple[ImageTask, _Results]]:
    """Have tasks worked on and give the results in order; `waiting` are always those that are not given yet."""
    while True:
        # Not all at once: results that have not been consumed yet would fill the memory.
        while len(waiting) < 2 * number and (task := next(tasks, None)) is not None:
            waiting.append((task, None))
            waiting[-1] = (task, pool.submit(work, task))
        if not waiting:
            return
        task, future = waiting[0]
        result = future.result() if future is not None else work(task)
        waiting.popleft()
        yield task, result


def _in_processes(
    pool: Executor, decoder: ImageDecoder, tasks: Iterator[ImageTask], number: int
) -> Iterator[tuple[ImageTask, _Results]]:
    waiting: _Waiting = deque()
    try:
        yield from _in_order(pool, work_here, tasks, waiting, number)
    except BrokenProcessPool:
        warn(
            f"One of the {number} decoding processes was killed, probably because memory ran out. The other images are "
            "decoded in this process: slower, with the same result."
        )
        for task in chain((task for task, _ in waiting), tasks):
            yield task, decoder.decode(task)


def _worthwhile_processes(decoder: ImageDecoder) -> int:
    """As many processes as there are processors, or one where starting them would take longer than it spares."""
    store = decoder.store
    logits = store.num_proposals * store.num_columns * len(decoder.transforms)
    return available_processors() if logits >= _ENOUGH_LOGITS else 1


def _process_pool(stack: contextlib.ExitStack, decoder: ImageDecoder, number: int) -> Executor | None:
    """Processes that decode; None where there can be none: the caller's own maps stay in this process."""
    own = all(transform is None or type(transform).__module__.startswith("logn.") for transform in decoder.transforms)
    if not own:
        return None
    return started_processes(stack, number, partial(_prepare, decoder.store, decoder.transforms, decoder.purposes))


def _prepare(
    store: PredictionStore, transforms: Sequence[Method], purposes: Sequence[DecodeSettings]
) -> Callable[[ImageTask], _Results]:
    return ImageDecoder(store, transforms, purposes).decode
