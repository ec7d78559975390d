"""Compare post-hoc methods on the logits of a classifier: one pass over the logits, one table."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from logn.classes.counts import ClassCounts
from logn.errors import InputError
from logn.evaluate.classification.logits import open_logits
from logn.evaluate.classification.methods import ClassifierFit, training_moments
from logn.evaluate.classification.task import ClassificationTask
from logn.evaluate.classification.truth import PAPER_BOUNDS, Labels, checked_labels, classification_truth
from logn.evaluate.comparison.comparison import Comparison
from logn.evaluate.comparison.engine import StepClock, run_comparison
from logn.evaluate.comparison.method_fitting import DEFAULT_METHODS, Methods, named_methods
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.comparison.sweep import Sweep
from logn.statistics.moments import ClassMoments


def compare_classification(
    logits: Any,
    labels: Labels,
    methods: Methods = DEFAULT_METHODS,
    *,
    moments: ClassMoments | str | os.PathLike[str] | None = None,
    train_logits: Any = None,
    counts: ClassCounts | npt.ArrayLike | None = None,
    weight: Any = None,
    bias: Any = None,
    families: Sequence[Hashable] | npt.ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    sweeps: Sequence[Sweep | str] = (),
    dev: tuple[Any, Labels] | None = None,
    split: bool | None = None,
    objective: str | None = None,
    bounds: tuple[int, int] | None = None,
    draws: int | None = None,
    confidence: float | None = None,
    seed: int | None = None,
    progress: Callable[[int], object] | None = None,
    settings: CompareSettings | None = None,
    num_bootstrap: int | None = None,
    dimensions: npt.ArrayLike | None = None,
    allow_mismatch: bool = False,
    target: Any = None,
) -> Comparison:
    """Measure methods on the same logits, with their differences to the uncorrected classifier.

    Args:
        logits: `(rows, classes)` of test images: an array, a tensor, or the path of a `.npy`, `.npz` or `.safetensors`
            file, which is mapped and read in blocks.
        labels: The class of each row, from 0; or a `.npy`, `.json`, `.csv` or `.txt` file with them.
        methods: Specifications such as "logn" or "loga:tau=0.5", or a mapping from a name to a specification or to a
            map of logits made elsewhere. The uncorrected model, "none", is always measured. By default what LogN
            recommends ("recommended") and the paper's LogN ("logn").
        moments: Statistics of the training images' logits, or their file; or give `train_logits`.
        train_logits: Logits of training images, in the same forms as `logits`; their labels are not needed.
        counts: Training samples of each class: for many, medium and few, and for methods that use them.
        weight: Weight of the last layer, for tau-norm.
        bias: Its bias.
        families: One look-alike family for each class, to say how many errors stay within one.
        class_names: One name for each class; puts counts with names in order. By default those of the statistics.
        sweeps: Parameters to vary, such as "tau=0:2:0.25". With `dev` or `split` the best value there is reported;
            without them all values are reported, none is chosen.
        dev: Logits and labels of other rows, that were not trained on either. Values of sweeps are chosen on them.
        split: Choose on one half of the rows and report on the other.
        objective: The metric by which the value of a sweep is chosen; by default top-1.
        bounds: The most training samples of a few-shot and of a medium-shot class; by default 19 and 100.
        draws: An older name of `num_bootstrap`.
        confidence: Of the intervals; by default 0.95.
        seed: Of the bootstrap; by default 0.
        progress: Called with the number of test rows that were done since the last call.
        settings: What is measured, and how, instead of the single choices `split`, `objective`, `bounds`,
            `num_bootstrap`, `confidence` and `seed`.
        num_bootstrap: Bootstrap samples of the rows that intervals are made from, by default 1000; 0 for no intervals.
        dimensions: Fractal dimensions of the classes, for fracal.
        allow_mismatch: Only warn where a map that was made elsewhere is of other classes.
        target: Class mix that methods aim at, where they can: shares, "training" or a file; default uniform.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 3, 300)
        >>> scores = 2 * np.eye(3)[labels] + rng.normal(size=(300, 3)) + [3.0, 1.0, 0.0]
        >>> found = compare_classification(scores, labels, ["logn"], train_logits=scores, counts=[900, 90, 9])
        >>> [round(row["few"], 2) for row in found.rows]
        [0.25, 0.82]
    """
    choices: dict[str, Any] = {"split": split, "objective": objective, "bounds": bounds, "draws": draws}
    choices |= {"confidence": confidence, "seed": seed, "num_bootstrap": num_bootstrap}
    settings = _one_of("settings", settings, choices) or CompareSettings(**_given(choices))
    if dev is not None and settings.split:
        raise InputError("Expected one of `dev` and `split`, but got both.")
    fitted_from = _given({"counts": counts, "dimensions": dimensions, "weight": weight, "bias": bias, "target": target})
    clock = StepClock()
    opened = open_logits(logits)
    classes = checked_labels(labels, opened.num_classes)
    opened.check_labels(classes)  # before the training logits are read, which may take long
    statistics = training_moments(moments, train_logits, opened.num_classes)
    clock.lap("statistics")
    truth = classification_truth(
        classes,
        opened.num_classes,
        train_counts=counts,
        families=families,
        class_names=class_names or _known_names(statistics, counts),
        bounds=settings.bounds or PAPER_BOUNDS,
    )
    fitter = ClassifierFit(truth, _given(fitted_from | {"moments": statistics}), allow_mismatch)
    task = ClassificationTask(opened, truth, fitter, settings, dev)
    return run_comparison(task, named_methods(methods), settings, sweeps=sweeps, clock=clock, progress=progress)


def _known_names(statistics: ClassMoments | None, counts: Any) -> tuple[str, ...] | None:
    recorded = statistics.metadata.class_names if statistics else None
    return recorded or (counts.names if isinstance(counts, ClassCounts) else None)


def _given(choices: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in choices.items() if value is not None}


def _one_of(name: str, whole: Any, parts: Mapping[str, Any]) -> Any:
    """The object that holds all choices, unless single ones were made too."""
    if whole is not None and (single := next(iter(_given(parts)), None)):
        raise InputError(f"Expected `{name}` or `{single}` alone, but got both.")
    return whole
