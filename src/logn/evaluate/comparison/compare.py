"""Compare post-hoc methods on the very same proposals: one pass over the predictions, one table."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.methods import checked_inputs
from logn.errors import InputError, LogNWarning
from logn.evaluate.comparison.comparison import Comparison
from logn.evaluate.comparison.engine import StepClock, run_comparison
from logn.evaluate.comparison.method_fitting import (
    DEFAULT_METHODS,
    Methods,
    aligned_counts,
    named_methods,
)
from logn.evaluate.comparison.settings import CompareSettings as CompareSettings
from logn.evaluate.comparison.sweep import Sweep
from logn.evaluate.detection.class_groups import groups_of_classes
from logn.evaluate.detection.task import DetectionTask, other_images, read_truth
from logn.evaluate.detection.task import MaskMaker as MaskMaker
from logn.evaluate.store.store import PredictionStore, is_store


def compare(
    store: Any,
    annotations: Any,
    methods: Methods = DEFAULT_METHODS,
    *,
    settings: CompareSettings | None = None,
    sweeps: Sequence[Sweep | str] = (),
    group_counts: npt.ArrayLike | None = None,
    mask_maker: MaskMaker | None = None,
    progress: Callable[[int], object] | None = None,
    allow_mismatch: bool = False,
    **fit_inputs: Any,
) -> Comparison:
    """Measure methods on the same proposals, or the same logits, with their differences to the uncorrected model.

    Args:
        store: The proposals of all images, or the path of their store. Or the logits of a classifier, as
            `compare_classification` takes them; then `annotations` are the labels, and `fit_inputs` are its other
            arguments.
        annotations: Ground truth of the same images: LVIS, COCO, YOLO or VOC annotations, or the content of a file.
        methods: Specifications such as "logn" or "norcal:gamma=0.6", or a mapping from a name to a
            specification or to a map of logits made elsewhere. The uncorrected model, "none", is always
            measured. By default what LogN recommends ("recommended") and the paper's LogN ("logn").
        settings: What is measured, and how.
        sweeps: Parameters to vary, such as "margin=-12:4:1". With `split` the best value by the first half of
            the images is reported on the second half; without it all values are reported, none is chosen.
        group_counts: Training images of each class, for the groups; by default the field `frequency` of the
            annotations says them, and without it `counts`.
        mask_maker: Makes the masks of the detections of each method, for mask AP.
        progress: Called with the number of images that were decoded since the last call.
        allow_mismatch: Only warn of maps and statistics of another model.
        fit_inputs: What methods are fitted from, as in `logn.methods.fit`: `moments`, `counts`, `dimensions`, `weight`,
            `bias`, `target`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 3, 300)
        >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(300, 3)) + [3.0, 1.0, 0.0]
        >>> found = compare(logits, labels, ["logn"], train_logits=logits, counts=[900, 90, 9])
        >>> [round(row["few"], 2) for row in found.rows]
        [0.25, 0.82]
    """
    if not is_store(store):
        if group_counts is not None or mask_maker is not None:
            raise InputError("Expected `group_counts` and `mask_maker` only with the predictions of a detector.")
        from logn.evaluate.classification.compare import compare_classification

        choices: dict[str, Any] = {"settings": settings, "sweeps": sweeps, "progress": progress}
        return compare_classification(
            store, annotations, methods, allow_mismatch=allow_mismatch, **choices, **fit_inputs
        )
    fitted_from = checked_inputs(fit_inputs)
    settings = settings or CompareSettings()
    clock = StepClock()
    store = store if isinstance(store, PredictionStore) else PredictionStore(store)
    settings = replace(settings, decode=settings.decode.resolved(store.header))
    truth = read_truth(store, annotations, settings, masks=mask_maker is not None)
    settings = replace(settings, style=truth.style)
    named = named_methods(methods)
    if doubt := other_images(store, truth):
        warnings.warn(doubt, LogNWarning, stacklevel=2)
    counts = None
    if "counts" in fitted_from:
        counts = aligned_counts(fitted_from["counts"], store.header).image_counts
    if group_counts is None and truth.frequency is None:
        group_counts = counts
    groups, group_source = groups_of_classes(truth, group_counts, settings.group_bounds)
    if counts is None and group_counts is not None:
        counts = np.asarray(group_counts, np.float64)
    clock.lap("ground truth")
    task = DetectionTask(
        store,
        truth,
        groups,
        group_source,
        settings,
        fitted_from,
        counts,
        mask_maker,
        (doubt,) if doubt else (),
        allow_mismatch,
    )
    return run_comparison(task, named, settings, sweeps=sweeps, clock=clock, progress=progress)
