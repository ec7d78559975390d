"""Workshop: the folder where experiments keep data, trained detectors, statistics and predictions."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from logn.datasets.detection_dataset import DetectionDataset
from logn.datasets.glyph_scenes import generate_glyph_scenes
from logn.errors import InputError
from logn.evaluate.detector_statistics import collect_detector_statistics
from logn.evaluate.predict import predict
from logn.experiments.detector_spec import DetectorSpec
from logn.logits.fingerprint import fingerprint
from logn.processes import CommandRunner
from logn.statistics.class_counts import ClassCounts
from logn.statistics.moments import ClassMoments
from logn.training.checkpoint import FILE_NAME, load_detector
from logn.training.training_log import training_seconds

#: Enough for the balanced margin to be within 0.05 of that from all images.
STATISTICS_IMAGES = 600

# A step of the work: given its name and the amount of work, a context that yields the function to report progress.
Step = Callable[[str, float | None], AbstractContextManager[Callable[[float], None]]]


class Workshop:
    """Makes what experiments need, and makes nothing twice.

    Args:
        root: The folder: `data/`, `models/`.
        jobs: How many detectors are trained side by side, each in a process with one thread.
        step: Reports progress.

    Example:
        >>> Workshop("runs/bench").model_folder(DetectorSpec()).as_posix()
        'runs/bench/models/families-linear-random-ce-s0'
    """

    def __init__(self, root: str | os.PathLike[str], *, jobs: int = 1, step: Step | None = None) -> None:
        if jobs < 1:
            raise InputError(f"Expected `jobs` to be at least 1, but got {jobs}.")
        self.root, self.jobs = Path(root), jobs
        self._step = step or _silent

    def data_folder(self, spec: DetectorSpec) -> Path:
        """Where the scenes of a detector are."""
        return self.root / "data" / spec.data_name

    def model_folder(self, spec: DetectorSpec) -> Path:
        """Where the run of a detector is, with its statistics and predictions."""
        return self.root / "models" / spec.name

    def draw(self, specs: Iterable[DetectorSpec]) -> None:
        """Draw the scenes that are not there yet."""
        for spec in {spec.data_name: spec for spec in specs}.values():
            settings = spec.scene_settings
            if (self.data_folder(spec) / "test.json").exists():
                continue
            with self._step(f"Drawing {spec.data_name}", settings.train + settings.dev + settings.test) as advance:
                generate_glyph_scenes(self.data_folder(spec), settings, workers=self.jobs, advance=advance)

    def train(self, specs: Sequence[DetectorSpec]) -> dict[str, str]:
        """Train the detectors that are not trained yet, first stages first.

        Returns:
            A sentence for each detector whose training failed, by its name; the others are not held up by it.
        """
        wanted = _with_first_stages(specs)
        self.draw(wanted)
        failures: dict[str, str] = {}
        missing = [spec for spec in wanted if not self.is_trained(spec)]
        if not missing:
            return failures
        with self._step("Training detectors", len(missing)) as advance:
            for stage in (False, True):
                todo = [spec for spec in missing if (spec.start is not None) == stage]
                with ThreadPoolExecutor(self.jobs) as pool, CommandRunner() as commands:
                    for spec, failure in zip(todo, pool.map(partial(self._train, commands), todo), strict=True):
                        advance(1)
                        if failure:
                            failures[spec.name] = failure
        return failures

    def is_trained(self, spec: DetectorSpec) -> bool:
        """Whether the run is there and went to its end."""
        return trained_iterations(self.model_folder(spec)) >= spec.iterations

    def training_seconds(self, spec: DetectorSpec) -> float:
        """Time of the run's iterations, as its log says; NaN without a log."""
        return training_seconds(self.model_folder(spec))

    def detector(self, spec: DetectorSpec) -> Any:
        """The trained detector, in evaluation mode."""
        return load_detector(self.model_folder(spec))

    def statistics(self, spec: DetectorSpec) -> ClassMoments:
        """Statistics of the logits over training images, without their labels; made anew if the weights are others."""
        path = self.model_folder(spec) / "statistics.safetensors"
        detector = self.detector(spec)
        if not (path.exists() and ClassMoments.load(path).metadata.fingerprint == fingerprint(detector)):
            training = self.dataset(spec, "train")
            images = min(STATISTICS_IMAGES, len(training))
            with self._step(f"Statistics of {spec.name}", images) as advance:
                collect_detector_statistics(detector, training, images=images, advance=advance).save(path)
        return ClassMoments.load(path)

    def predictions(self, spec: DetectorSpec, split: str) -> Path:
        """The store of a detector's proposals on `dev` or `test`; one of other weights is refused."""
        folder = self.model_folder(spec) / f"predictions-{split}"
        data, detector = self.dataset(spec, split), self.detector(spec)
        with self._step(f"Predicting {split} of {spec.name}", len(data)) as advance:
            predict(detector, data, folder, metadata={"fingerprint": fingerprint(detector)}, advance=advance)
        return folder

    def dataset(self, spec: DetectorSpec, split: str) -> DetectionDataset:
        """The images and labels of a split."""
        return DetectionDataset(self.data_folder(spec) / f"{split}.json")

    def counts(self, spec: DetectorSpec) -> ClassCounts:
        """Training images and objects of each class; a class without any counts as one, since logarithms are taken."""
        training = self.dataset(spec, "train")
        images, objects = (values.astype(np.float64) for values in (training.image_counts, training.instance_counts))
        return ClassCounts(images, objects, training.class_names, len(training)).at_least(1.0)

    def _train(self, commands: CommandRunner, spec: DetectorSpec) -> str | None:
        """Train in a process of its own, so that threads and random states are its own; a sentence if that failed."""
        command = [sys.executable, "-m", "logn.cli.main", "train", "--json", "--no-progress"]
        command += ["--data", str(self.data_folder(spec)), "-o", str(self.model_folder(spec))]
        command += spec.training_arguments()
        if spec.start is not None:
            if not self.is_trained(spec.start):
                return f"The detector {spec.start.name} that it starts from was not trained."
            command += ["--start", str(self.model_folder(spec.start))]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        done = commands.run(command, {**os.environ, **threads})
        if done.returncode == 0:
            return None
        return _sentence(done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}")


def trained_iterations(run: Path) -> int:
    """How many iterations the checkpoint of a run has; 0 without one."""
    path = run / FILE_NAME
    if not path.exists():
        return 0
    with safe_open(path, framework="np") as file:
        return int(file.metadata()["iteration"])


def _with_first_stages(specs: Sequence[DetectorSpec]) -> list[DetectorSpec]:
    starts = [spec.start for spec in specs if spec.start is not None]
    return list({spec.name: spec for spec in [*starts, *specs]}.values())


def _sentence(output: str) -> str:
    """The error of a command's JSON, or the last line of whatever it printed."""
    try:
        return str(json.loads(output)["error"])
    except (ValueError, KeyError, TypeError):
        return output.splitlines()[-1]


class _silent:  # noqa: N801 - used as a function
    """A step that reports nothing."""

    def __init__(self, name: str, amount: float | None) -> None:
        pass

    def __enter__(self) -> Callable[[float], None]:
        return lambda amount: None

    def __exit__(self, *problem: object) -> None:
        pass
