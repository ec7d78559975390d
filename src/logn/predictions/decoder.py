"""Decode: from stored proposals to detections, for any number of methods in one pass, on all processors.

The steps are those of torchvision and MMDetection: map the logits, activate, drop the background, keep scores above a
threshold, drop tiny boxes, suppress class by class, keep the best of the image.

Large stores are decoded in processes, which read the same files. Threads hardly help: many steps are short and wait
for the interpreter lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeVar

from logn.base.processes import available_processors, work_in_order
from logn.errors import InputError
from logn.predictions.detections import DecodeSettings as DecodeSettings
from logn.predictions.detections import Detections
from logn.predictions.image_decoder import ImageDecoder, Method
from logn.predictions.store import Predictions

# Called with the number of images that were decoded since the last call.
Progress = Callable[[int], object]
# What is made of the detections of some images, one per method.
ResultT = TypeVar("ResultT")
Finish = Callable[[list[Detections]], ResultT]
# Images that are decoded at a time.
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
        >>> import tempfile, numpy as np
        >>> from logn.statistics.head import Head
        >>> from logn.predictions.store import PredictionWriter, StoreHeader
        >>> from logn.models.proposals import Proposals
        >>> folder = tempfile.mkdtemp()
        >>> with PredictionWriter(folder, StoreHeader(Head(2, activation="sigmoid"))) as writer:
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
    chosen = settings or DecodeSettings()
    parts: list[list[Detections]] = [[] for _ in transforms]
    how = {"threads": threads, "processes": processes}
    with contextlib.closing(decode_chunks(store, transforms, chosen, _same, **how, progress=progress)) as chunks:
        for chunk in chunks:
            for of_method, part in zip(parts, chunk, strict=True):
                of_method.append(part)
    # One by one: the parts of a method are let go of before those of the next one are joined.
    return [Detections.concatenate(parts.pop(0)) for _ in transforms]


def _same(detections: list[Detections]) -> list[Detections]:
    return detections


def decode_chunks(
    store: Predictions,
    transforms: Sequence[Method],
    settings: DecodeSettings,
    finish: Finish[ResultT],
    *,
    threads: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Generator[ResultT]:
    """Decode some images at a time under several methods, and give what `finish` makes of their detections, in order.

    It is called where the images are decoded, in threads or processes.

    Args:
        store: The proposals.
        transforms: The methods.
        settings: Threshold, suppression and limits.
        finish: Called with the detections of each method. Processes must be able to import it.
        threads: As `decode_many` takes it.
        processes: As `decode_many` takes it.
        progress: Called with the number of images that were decoded since the last call.
    """
    if threads is not None and processes is not None:
        raise InputError("Pass `threads` or `processes`, not both.")
    for name, number in (("threads", threads), ("processes", processes)):
        if number is not None and number < 1:
            raise InputError(f"Expected `{name}` to be at least 1, but got {number}.")
    # The caller's own maps stay in this process.
    own = any(transform is not None and not type(transform).__module__.startswith("logn.") for transform in transforms)
    if threads is not None or own:
        processes = 1
    elif processes is None:
        # Starting them takes time, too.
        logits = store.num_proposals * store.head.width * len(transforms)
        processes = available_processors() if logits >= _ENOUGH_LOGITS else 1
    prepare = partial(_prepare, store, tuple(transforms), settings, finish)
    chunks = [range(start, min(start + _IMAGES_AT_ONCE, len(store))) for start in range(0, len(store), _IMAGES_AT_ONCE)]
    work = work_in_order(prepare, chunks, processes=processes, threads=threads, noun="decoding")
    with contextlib.closing(work) as results:
        for images, result in zip(chunks, results, strict=True):
            if progress:
                progress(len(images))
            yield result


def _prepare(
    store: Predictions, transforms: Sequence[Method], settings: DecodeSettings, finish: Finish[ResultT]
) -> Callable[[range], ResultT]:
    decoder = ImageDecoder(store, transforms, settings)
    return lambda images: finish(decoder.decode(images))
