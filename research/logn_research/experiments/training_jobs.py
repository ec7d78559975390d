"""Training models side by side in a few processes, where the end of one holds up nothing but its own model."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

import torch

from logn_research.experiments.model_spec import Folders, ModelSpec
from logn_research.processes import FreshContext

Job = tuple[ModelSpec[Any], Folders]
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def train_side_by_side(jobs: Sequence[Job], processes: int) -> Generator[tuple[Job, str | None]]:
    """Train models on one thread each, so that the number of processes changes nothing but the time.

    When the loop over the results is left, whatever still trains is ended; its checkpoint is resumed the next time.

    Args:
        jobs: The models and their folders.
        processes: How many are trained at a time; 1 trains in this process.

    Yields:
        Each model as soon as it is done, with a sentence if its training failed.
    """
    if processes == 1:
        for job in jobs:
            with single_thread():
                failure = train_one(*job)
            yield job, failure
        return
    context, waiting = FreshContext(), deque(jobs)
    workers: dict[Any, _Worker] = {}
    try:
        while waiting or workers:
            while waiting and len(workers) < processes:
                worker = _Worker(context, waiting.popleft())
                workers[worker.line] = worker
            for line in wait(list(workers)):
                worker = workers[line]
                job, failure = worker.job, worker.outcome()
                if not worker.is_alive or not waiting:
                    del workers[line]
                else:
                    worker.give(waiting.popleft())
                yield job, failure
    finally:
        context.end()


class _Worker:
    """A process that trains one model after another, so that it loads torch once.

    Args:
        context: Starts it and ends it.
        job: The first model.
    """

    def __init__(self, context: FreshContext, job: Job) -> None:
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_train_what_comes, args=(theirs,))
        with _single_threaded_children():
            self.process.start()
        theirs.close()  # so that the end of the process is the end of the line
        self.is_alive = True
        self.give(job)

    def give(self, job: Job) -> None:
        """Let it train a model."""
        self.job = job
        with contextlib.suppress(BrokenPipeError):  # it is gone, which `outcome` reports
            self.line.send(job)

    def outcome(self) -> str | None:
        """What it says of its model when it is done: a sentence if the training failed, or if the process ended."""
        try:
            failure: str | None = self.line.recv()
        except (EOFError, ConnectionResetError):
            self.is_alive = False
            self.process.join()
            return f"The process that trained it ended with exit code {self.process.exitcode}."
        return failure


def _train_what_comes(line: Any) -> None:
    with contextlib.suppress(EOFError):
        while True:
            line.send(train_one(*line.recv()))


def train_one(spec: ModelSpec[Any], folders: Folders) -> str | None:
    """Train in this process; a sentence if that failed."""
    try:
        spec.train(folders)
    except (ValueError, OSError, RuntimeError) as error:  # what bad settings, files, disks and memory raise
        return str(error)
    return None


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Let torch compute on one thread inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _single_threaded_children() -> Iterator[None]:
    """Let processes that start in the block have one thread; what was loaded in this process keeps its own."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
