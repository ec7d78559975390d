"""ClassifierWorkshop: the folder where experiments keep classification data, trained classifiers and their logits."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from logn.datasets.drawn_folder import write_json
from logn.datasets.glyph_class_settings import GlyphClassSettings
from logn.datasets.glyph_classes import generate_glyph_classes, is_complete
from logn.datasets.labelled_images import LabelledImages
from logn.datasets.open_images import open_images
from logn.errors import InputError
from logn.evaluate.classification_logits import moments_of_logits
from logn.evaluate.classifier_logits import classifier_logits
from logn.experiments.classifier_spec import ClassifierSpec
from logn.experiments.workshop import Step
from logn.files import atomic_path
from logn.processes import fresh_processes
from logn.statistics.moments import ClassMoments
from logn.training.classifier_checkpoint import load_classifier
from logn.training.classifier_loop import train_classifier
from logn.training.classifier_plan import ClassifierPlan
from logn.training.training_log import read_log, training_seconds

DONE = "trained.json"


@dataclass(frozen=True)
class ClassifierProblem:
    """What the classifiers of an experiment learn, and how long.

    Args:
        name: Of the data in tables.
        glyphs: What is drawn, with the seed of each classifier; None where the data is read.
        data: Images with one class each, as `open_images` takes them; None where the data is drawn.
        images: The folder that the paths of list files start from.
        model: As `logn train-classifier --model` takes it.
        epochs: Of a first stage; None for those of the preset.
        stage_epochs: Of a second stage; None for those of the preset.
        eql: Loss of EQL, with a threshold that fits the data.
    """

    name: str
    glyphs: GlyphClassSettings | None = None
    data: Path | None = None
    images: Path | None = None
    model: str = "small"
    epochs: float | None = None
    stage_epochs: float | None = None
    eql: str = "eql-softmax"

    def __post_init__(self) -> None:
        if (self.glyphs is None) == (self.data is None):
            raise InputError("Expected one of `glyphs` and `data`, but got both or neither.")


class ClassifierWorkshop:
    """Makes what the tables of classifiers need, and makes nothing twice.

    Args:
        root: The folder: `data/`, `classifiers/`.
        problem: The data and the length of training.
        jobs: How many classifiers are trained side by side, each in a process with one thread.
        step: Reports progress.
    """

    def __init__(self, root: str | os.PathLike[str], problem: ClassifierProblem, *, jobs: int = 1, step: Step) -> None:
        if jobs < 1:
            raise InputError(f"Expected `jobs` to be at least 1, but got {jobs}.")
        self.root, self.problem, self.jobs, self.step = Path(root), problem, jobs, step

    def folder(self, spec: ClassifierSpec) -> Path:
        """Where the run of a classifier is, with its logits and measurements."""
        return self.root / "classifiers" / spec.name

    def source(self, seed: int) -> Path:
        """The data of a seed: drawn for it, or the same for all."""
        return self.problem.data or self.root / "data" / f"classes-s{seed}"

    def images(self, seed: int, split: str) -> LabelledImages:
        """A split of the data."""
        return open_images(self.source(seed), split, root=self.problem.images)

    def draw(self, seeds: Iterable[int]) -> None:
        """Draw the data of some seeds, if it is drawn and not there yet."""
        settings = self.problem.glyphs
        if settings is None:
            return
        for seed in sorted(set(seeds)):
            mine = replace(settings, seed=seed)
            if is_complete(self.source(seed)):
                generate_glyph_classes(self.source(seed), mine)  # refuses a drawing of other settings
                continue
            with self.step(f"Drawing data {seed}", mine.images) as advance:
                generate_glyph_classes(self.source(seed), mine, workers=self.jobs, advance=advance)

    def plan(self, spec: ClassifierSpec) -> ClassifierPlan:
        """How a classifier is trained."""
        start = spec.start
        return ClassifierPlan(
            self.source(spec.seed),
            self.folder(spec),
            root=self.problem.images,
            model=self.problem.model,
            epochs=self.problem.stage_epochs if spec.stage else self.problem.epochs,
            start=self.folder(start) if start else None,
            **spec.plan_options(),
        )

    def is_trained(self, spec: ClassifierSpec) -> bool:
        """Whether the run is there, went to its end, and was of this length."""
        return _read_done(self.folder(spec)).get("plan") == _plain(self.plan(spec))

    def training_seconds(self, spec: ClassifierSpec) -> float:
        """Time of the iterations of a run, as its log says; NaN without a log."""
        return training_seconds(self.folder(spec))

    def training_loss(self, spec: ClassifierSpec) -> float:
        """The last mean of the loss in a run's log; NaN without a log."""
        lines = read_log(self.folder(spec))
        return float(lines[-1]["loss"]) if lines else float("nan")

    def train(self, specs: Sequence[ClassifierSpec]) -> dict[str, str]:
        """Train the classifiers that are not trained yet, first stages first.

        Returns:
            A sentence for each classifier whose training failed, by its name; the others are not held up by it.
        """
        starts = [spec.start for spec in specs if spec.start is not None]
        wanted = {spec.name: spec for spec in [*starts, *specs]}.values()
        self.draw(spec.seed for spec in wanted)
        missing = [spec for spec in wanted if not self.is_trained(spec)]
        failures: dict[str, str] = {}
        if not missing:
            return failures
        (self.root / "classifiers").mkdir(parents=True, exist_ok=True)
        with self.step(f"Training {len(missing)} classifiers", len(missing)) as advance:
            for stages in (False, True):
                todo = [spec for spec in missing if bool(spec.stage) == stages and self._can_start(spec, failures)]
                for spec, failure in zip(todo, self._train_all(todo), strict=True):
                    advance(1)
                    if failure:
                        failures[spec.name] = failure
        return failures

    def _can_start(self, spec: ClassifierSpec, failures: dict[str, str]) -> bool:
        if spec.start is not None and not self.is_trained(spec.start):
            failures[spec.name] = f"The classifier {spec.start.name} that it starts from was not trained."
            return False
        return True

    def _train_all(self, specs: Sequence[ClassifierSpec]) -> Iterable[str | None]:
        if self.jobs == 1:
            with _single_thread():
                yield from map(_train, [self.plan(spec) for spec in specs])
            return
        # Their checkpoints are resumed: none has to come to its end when another stops.
        try:
            with fresh_processes(self.jobs, prepare=_one_thread, finish=False) as pool:
                yield from pool.map(_train, [self.plan(spec) for spec in specs])
        except BrokenProcessPool as error:
            raise InputError(f"Expected `jobs` = {self.jobs} processes to train, but one of them ended.") from error

    def logits(self, spec: ClassifierSpec, split: str) -> Path:
        """The file of a classifier's logits on a split, `(images, classes)`."""
        path = self.folder(spec) / f"logits-{split}.npy"
        if not path.is_file():
            images = self.images(spec.seed, split)
            with self.step(f"Logits of {spec.name} on {split}", len(images)) as advance:
                found = classifier_logits(load_classifier(self.folder(spec)), images, advance=advance)
            with atomic_path(path) as temporary:
                np.save(temporary, found)
        return path

    def moments(self, spec: ClassifierSpec) -> ClassMoments:
        """Statistics of the logits on the training images, whose labels are not read."""
        path = self.folder(spec) / "statistics.safetensors"
        if not path.is_file():
            moments_of_logits(self.logits(spec, "train")).save(path)
        return ClassMoments.load(path)

    def class_layer(self, spec: ClassifierSpec) -> tuple[Any, Any]:
        """Weight and bias of a classifier's last layer."""
        layer = load_classifier(self.folder(spec)).cls_score
        return layer.get_parameter("weight").detach().numpy(), layer.get_parameter("bias").detach().numpy()


@contextlib.contextmanager
def _single_thread() -> Iterator[None]:
    """As many threads as the processes of several jobs have, so that jobs change nothing but the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _one_thread() -> None:
    torch.set_num_threads(1)


def _train(plan: ClassifierPlan) -> str | None:
    """Train in this process; a sentence if that failed."""
    try:
        result = train_classifier(plan, progress=False)
    except (InputError, OSError, RuntimeError) as error:
        return str(error)
    write_json(Path(plan.output) / DONE, {"plan": _plain(plan), "iterations": result.iterations})
    return None


def _read_done(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / DONE).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _plain(plan: ClassifierPlan) -> dict[str, Any]:
    """What must be the same for a run to count as trained; folders may move."""
    folders = {"data", "output", "root", "start"}
    return {name: value for name, value in vars(plan).items() if name not in folders}
