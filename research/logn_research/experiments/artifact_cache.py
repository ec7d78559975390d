"""ArtifactCache: the folder where experiments keep data, trained models, their statistics and predictions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from logn.errors import InputError
from logn.statistics.moments import ClassMoments
from logn_research.experiments.model_spec import Folders, ModelSpec, Step
from logn_research.experiments.training_jobs import train_side_by_side
from logn_research.training.trainer import read_log

Data = TypeVar("Data")


class ArtifactCache:
    """Makes what experiments need of detectors and classifiers, and makes nothing twice.

    What is there already is used, what was interrupted is resumed, and what other weights made is made again.

    Args:
        root: The folder: `data/`, `models/` (of detectors), `classifiers/`.
        jobs: How many models are trained side by side, in processes with one thread; 1 trains in this process.
        step: Reports progress.

    Example:
        >>> from logn_research.experiments.classifier_spec import ClassifierSpec
        >>> from logn_research.experiments.detector_spec import DetectorSpec
        >>> cache = ArtifactCache("runs/bench")
        >>> [cache.model_folder(spec).as_posix() for spec in (DetectorSpec(), ClassifierSpec())]
        ['runs/bench/models/families-linear-random-ce-s0', 'runs/bench/classifiers/linear-ce-s0']
    """

    def __init__(self, root: str | os.PathLike[str], *, jobs: int = 1, step: Step | None = None) -> None:
        if jobs < 1:
            raise InputError(f"Expected `jobs` to be at least 1, but got {jobs}.")
        self.root, self.jobs = Path(root), jobs
        self.step = step or _silent

    def data_folder(self, spec: ModelSpec[Any]) -> Path:
        """Where the data of a model is."""
        return spec.data_folder(self.root)

    def model_folder(self, spec: ModelSpec[Any]) -> Path:
        """Where the run of a model is, with its statistics, predictions and measurements."""
        return self.root / spec.runs / spec.name

    def folders(self, spec: ModelSpec[Any]) -> Folders:
        """All folders of a model."""
        start = None if spec.start is None else self.model_folder(spec.start)
        return Folders(self.data_folder(spec), self.model_folder(spec), start)

    def draw(self, specs: Iterable[ModelSpec[Any]]) -> None:
        """Draw the data that is not there yet."""
        for folder, spec in {self.data_folder(spec): spec for spec in specs}.items():
            spec.draw(folder, workers=self.jobs, step=self.step)

    def train(self, specs: Sequence[ModelSpec[Any]]) -> dict[str, str]:
        """Train the models that are not trained yet, first stages first.

        Returns:
            A sentence for each model whose training failed, by its name; the others are not held up by it.
        """
        wanted = _with_first_stages(specs)
        self.draw(wanted)
        missing = [spec for spec in wanted if not self.is_trained(spec)]
        failures: dict[str, str] = {}
        if not missing:
            return failures
        with self.step(f"Training {len(missing)} {missing[0].noun}s", len(missing)) as progress:
            for second in (False, True):
                todo = [spec for spec in missing if (spec.start is not None) == second]
                ready = [(spec, self.folders(spec)) for spec in todo if self._can_start(spec, failures)]
                progress(len(todo) - len(ready))
                with closing(train_side_by_side(ready, self.jobs)) as results:
                    for (spec, _), failure in results:
                        progress(1)
                        if failure:
                            failures[spec.name] = failure
        return failures

    def is_trained(self, spec: ModelSpec[Any]) -> bool:
        """Whether the run is there and went to its end."""
        return spec.is_trained(self.folders(spec))

    def training_seconds(self, spec: ModelSpec[Any]) -> float:
        """Time of the run's iterations, as its log says; NaN without a log."""
        lines = read_log(self.model_folder(spec))
        return float(lines[-1]["seconds"]) if lines else float("nan")

    def training_loss(self, spec: ModelSpec[Any]) -> float:
        """The last mean of the loss in the run's log; NaN without a log."""
        lines = read_log(self.model_folder(spec))
        return float(lines[-1]["loss"]) if lines else float("nan")

    def model(self, spec: ModelSpec[Any]) -> Any:
        """The trained model, in evaluation mode."""
        return spec.load(self.folders(spec))

    def class_layer(self, spec: ModelSpec[Any]) -> tuple[Any, Any]:
        """Weight and bias of the layer that gives the logits."""
        return spec.class_layer(self.folders(spec))

    def dataset(self, spec: ModelSpec[Data], split: str) -> Data:
        """The images and labels of `train`, `dev` or `test`."""
        return spec.dataset(self.data_folder(spec), split)

    def statistics(self, spec: ModelSpec[Any]) -> ClassMoments:
        """Statistics of the logits over training images, whose labels are not read."""
        return spec.statistics(self.folders(spec), self.step)

    def predictions(self, spec: ModelSpec[Any], split: str) -> Path:
        """What a model says of a split: the store of a detector's proposals, the file of a classifier's logits."""
        return spec.predictions(self.folders(spec), split, self.step)

    def _can_start(self, spec: ModelSpec[Any], failures: dict[str, str]) -> bool:
        if spec.start is not None and not self.is_trained(spec.start):
            failures[spec.name] = f"The {spec.noun} {spec.start.name} that it starts from was not trained."
            return False
        return True


def _with_first_stages(specs: Sequence[ModelSpec[Any]]) -> list[ModelSpec[Any]]:
    starts = [spec.start for spec in specs if spec.start is not None]
    return list({spec.name: spec for spec in [*starts, *specs]}.values())


class _silent:  # noqa: N801 - used as a function
    """A step that reports nothing."""

    def __init__(self, name: str, amount: float | None) -> None:
        pass

    def __enter__(self) -> Callable[[float], None]:
        return lambda amount: None

    def __exit__(self, *problem: object) -> None:
        pass
