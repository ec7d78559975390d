"""ArtifactCache: the folder where tables keep data, trained models, their statistics, predictions and measurements."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from logn.base.files import write_text
from logn.base.strict_json import plain_values
from logn.errors import InputError
from logn.models.hints import choose_device
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.experiments.specs import ModelSpec, Step
from logn_research.training.checkpoint import FILE_NAME as CHECKPOINT
from logn_research.training.recipes import DetectorTrainingConfig
from logn_research.training.train import load_detector, train_detector
from logn_research.training.trainer import read_log

RECORDS, SCHEMA = "bench-test.json", 2
# What a run that is damaged, or of other settings, can raise; what bad settings, files, disks and memory raise.
EXPECTED_ERRORS = (InputError, OSError, RuntimeError, ValueError)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ArtifactCache:
    """Makes what tables need of models, and makes nothing twice.

    What is there already is used, what was interrupted is resumed, and what other weights made is made again.

    Args:
        root: The folder: `data/` and `models/`.
        jobs: How many models are trained side by side, in processes with one thread; 1 trains in this process.
        step: Reports progress.

    Example:
        >>> ArtifactCache("runs/bench").run(ModelSpec()).as_posix()
        'runs/bench/models/families-linear-random-ce-s0'
    """

    def __init__(self, root: str | os.PathLike[str], *, jobs: int = 1, step: Step | None = None) -> None:
        if jobs < 1:
            raise InputError(f"Expected `jobs` to be at least 1, but got {jobs}.")
        self.root, self.jobs, self.step = Path(root), jobs, step or _silent

    def run(self, spec: ModelSpec) -> Path:
        """Where the run of a model is, with its statistics, predictions and measurements."""
        return self.root / "models" / spec.name

    def config(self, spec: ModelSpec) -> DetectorTrainingConfig:
        """How the model is trained."""
        start = None if spec.start is None else self.run(spec.start)
        return spec.training_config(spec.data_folder(self.root), self.run(spec), start)

    def dataset(self, spec: ModelSpec, split: str) -> SampleDataset:
        """The images and labels of `train`, `dev` or `test`."""
        return spec.dataset(spec.data_folder(self.root), split)

    def is_trained(self, spec: ModelSpec) -> bool:
        """Whether the run is there and went to its end."""
        return spec.is_trained(self.config(spec))

    def model(self, spec: ModelSpec) -> Any:
        """The trained model, in evaluation mode."""
        return load_detector(self.run(spec)).to(choose_device(spec.problem.device))

    def last_log_line(self, spec: ModelSpec) -> Mapping[str, Any]:
        """The last line of the run's log; empty without a log."""
        return (read_log(self.run(spec)) or [{}])[-1]

    def train(self, specs: Sequence[ModelSpec]) -> dict[str, str]:
        """Draw the data and train the models that are not trained yet, first stages first.

        Returns:
            A sentence for each model whose training failed, by its name; the others are not held up by it.
        """
        starts = [spec.start for spec in specs if spec.start is not None]
        wanted = list({spec.name: spec for spec in [*starts, *specs]}.values())
        for folder, spec in {spec.data_folder(self.root): spec for spec in wanted}.items():
            spec.draw(folder, workers=self.jobs, step=self.step)
        missing = [spec for spec in wanted if not self.is_trained(spec)]
        failures: dict[str, str] = {}
        if not missing:
            return failures
        with self.step(f"Training {len(missing)} models", len(missing)) as progress:
            for is_second in (False, True):
                todo = [spec for spec in missing if (spec.start is not None) == is_second]
                for spec, failure in zip(todo, self._train_all(todo), strict=True):
                    progress(1)
                    if failure:
                        failures[spec.name] = failure
        return failures

    def _train_all(self, specs: Sequence[ModelSpec]) -> Iterable[str | None]:
        if self.jobs == 1:
            return (self._train_here(spec) for spec in specs)
        # Once around all of them: two threads that set and restored it would take it from each other.
        with _single_threaded_children(), ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(self._train_in_process, specs))

    def _train_here(self, spec: ModelSpec) -> str | None:
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # so that the number of jobs changes nothing but the time
        try:
            return train_one(self.config(spec), spec.problem.device)
        finally:
            torch.set_num_threads(before)

    def _train_in_process(self, spec: ModelSpec) -> str | None:
        """Train in a process of its own, whose end holds up nothing but its own model."""
        context = multiprocessing.get_context("spawn")
        line, theirs = context.Pipe()
        process = context.Process(target=_train_and_tell, args=(theirs, self.config(spec), spec.problem.device))
        try:
            process.start()
            theirs.close()  # so that the end of the process is the end of the line
            failure: str | None = line.recv()
            return failure
        except (EOFError, ConnectionResetError):
            return "The process that trained it ended before it was done."
        finally:
            process.kill()
            process.join()

    def records(self, spec: ModelSpec) -> dict[str, Any]:
        """All measurements of the present weights of a model, by correction; those of other weights are worthless."""
        path = self.run(spec) / RECORDS
        try:
            content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except ValueError as error:
            raise InputError(f"`{path}` cannot be read as JSON: {error}.") from error
        is_same = content.get("schema") == SCHEMA and content.get("weights") == self._digest(spec)
        records: dict[str, Any] = content["corrections"] if is_same else {}
        return records

    def add_records(self, spec: ModelSpec, records: Mapping[str, Any]) -> dict[str, Any]:
        """Add measurements to those of a model, and give all."""
        merged: dict[str, Any] = self.records(spec) | plain_values(records)
        content = {"schema": SCHEMA, "weights": self._digest(spec), "corrections": merged}
        write_text(self.run(spec) / RECORDS, json.dumps(content, indent=1) + "\n")
        return merged

    def _digest(self, spec: ModelSpec) -> str:
        return hashlib.sha256((self.run(spec) / CHECKPOINT).read_bytes()).hexdigest()


def train_one(config: DetectorTrainingConfig, device: str) -> str | None:
    """Train in this process; a sentence if that failed."""
    try:
        train_detector(config, progress=False, device=device)
    except EXPECTED_ERRORS as error:
        return str(error)
    return None


def _train_and_tell(line: Any, config: DetectorTrainingConfig, device: str) -> None:
    line.send(train_one(config, device))


@contextlib.contextmanager
def _single_threaded_children() -> Iterator[None]:
    """Let processes that start in the block have one thread; what was loaded in this process keeps its own."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ |= {} if value is None else {name: value}


@contextlib.contextmanager
def _silent(name: str, amount: float | None) -> Iterator[Callable[[float], None]]:
    """A step that reports nothing."""
    yield lambda done: None
