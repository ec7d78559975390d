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
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from logn.base.processes import available_processors, started_processes, work_here
from logn.errors import InputError, warn
from logn.predictions.detections import DecodeSettings as DecodeSettings
from logn.predictions.detections import Detections
from logn.predictions.image_decoder import Decoded, ImageDecoder, ImageTask, Method
from logn.predictions.store import Predictions

# Called with the number of images that were decoded since the last call.
Progress = Callable[[int], object]
_Results = list[Decoded]
# Tasks that were taken, with their results to come; None for one that could not be given away.
_Waiting = deque[tuple[ImageTask, Future[_Results] | None]]
# Images that are decoded at a time, and of which memory is let go together.
_IMAGES_AT_ONCE = 16
# Logits to be mapped and activated, over all methods, from which starting processes pays: some seconds of work.
_ENOUGH_LOGITS = 2_000_000_000


def decode(
    store: Predictions,
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
        >>> detections = decode(Predictions(folder))
        >>> detections.proposal.tolist(), detections.labels.tolist(), detections.scores.round(2).tolist()
        ([0, 0], [0, 1], [0.7300000190734863, 0.27000001072883606])
    """
    return decode_many(store, [transform], settings, threads=threads, progress=progress)[0]


def decode_many(
    store: Predictions,
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
    decoded = decode_evaluated(
        store, transforms, settings or DecodeSettings(), threads=threads, processes=processes, progress=progress
    )
    return [of_method.detections for of_method in decoded]


def decode_evaluated(
    store: Predictions,
    transforms: Sequence[Method],
    settings: DecodeSettings,
    evaluated: npt.NDArray[np.bool_] | None = None,
    *,
    threads: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[Decoded]:
    """Decode under several methods in one pass, and tell apart what is evaluated.

    Args:
        store: The proposals.
        transforms: The methods.
        settings: Threshold, suppression and limits.
        evaluated: `(I, F)` which classes are evaluated in each image; None for all. The detections of others use up
            places of the limits; of them only class and score are kept.
        threads: As `decode_many` takes it.
        processes: As `decode_many` takes it.
        progress: Called with the number of images that were decoded since the last call.
    """
    decoder = ImageDecoder(store, transforms, settings)
    parts: list[list[Decoded]] = [[] for _ in transforms]
    tasks = _tasks(len(store), evaluated)
    with contextlib.closing(decode_tasks(decoder, tasks, threads=threads, processes=processes)) as chunks:
        for task, chunk in chunks:
            for of_method, part in zip(parts, chunk, strict=True):
                of_method.append(part)
            if progress:
                progress(task.stop - task.start)
    # One by one: the parts of a method are let go of before those of the next one are joined.
    return [Decoded.concatenate(parts.pop(0)) for _ in transforms]


def _tasks(number: int, evaluated: npt.NDArray[np.bool_] | None) -> Iterator[ImageTask]:
    for start in range(0, number, _IMAGES_AT_ONCE):
        stop = min(start + _IMAGES_AT_ONCE, number)
        yield ImageTask(start, stop, None if evaluated is None else evaluated[start:stop])


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
    return started_processes(stack, number, partial(_prepare, decoder.store, decoder.transforms, decoder.settings))


def _prepare(
    store: Predictions, transforms: Sequence[Method], settings: DecodeSettings
) -> Callable[[ImageTask], _Results]:
    return ImageDecoder(store, transforms, settings).decode
