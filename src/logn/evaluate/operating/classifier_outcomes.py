"""What a threshold keeps of a classifier: top-1 predictions that may be rejected, or the scores of several labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.method_spec import FitInputs
from logn.calibrators.provenance import Target
from logn.errors import InputError
from logn.evaluate.classification.logits import ClassifierLogits, open_logits, row_outcomes
from logn.evaluate.classification.methods import ClassifierFit, training_moments
from logn.evaluate.classification.truth import checked_labels, classification_truth, read_labels
from logn.evaluate.comparison.method_fitting import LogitMap
from logn.evaluate.operating.points import MULTI_LABEL, TOP_1
from logn.evaluate.operating.scored_outcomes import ScoredOutcomes, multilabel_outcomes, top1_outcomes
from logn.logits.arrays import is_torch_tensor
from logn.statistics.metadata import StatisticsMetadata


def classifier_outcomes(
    logits: Any,
    labels: Any,
    method: LogitMap,
    inputs: FitInputs,
    class_names: Sequence[str] | None,
    *,
    allow_mismatch: bool,
) -> tuple[ScoredOutcomes, None, npt.NDArray[np.int64], dict[str, Any]]:
    """Outcomes of rows under a correction: of one label each, or of several where the labels are a matrix."""
    opened = open_logits(logits)
    values = _label_array(labels)
    names = tuple(map(str, class_names or range(opened.num_classes)))
    if len(names) != opened.num_classes:
        raise InputError(f"Expected `class_names` to have {opened.num_classes} names, but got {len(names)}.")
    fitted_from = replace(inputs, moments=training_moments(inputs.moments, None, opened.num_classes))
    several = values.ndim == 2
    fit = _several if several else _single
    outcomes, transform = fit(opened, values, method, fitted_from, names, allow_mismatch)
    activation = "sigmoid" if several else "softmax"
    facts = {
        "task": MULTI_LABEL if several else TOP_1,
        "activation": activation,
        "background": None,
        "source": StatisticsMetadata(class_names=names if class_names else None, activation=activation),
        "transform": transform,
        "settings": {},
    }
    return outcomes, None, np.arange(len(opened)), facts


def _label_array(labels: Any) -> npt.NDArray[Any]:
    if isinstance(labels, str | os.PathLike):
        return read_labels(Path(labels))
    return labels.numpy(force=True) if is_torch_tensor(labels) else np.asarray(labels)


def _single(
    opened: ClassifierLogits,
    labels: npt.NDArray[Any],
    method: LogitMap,
    inputs: FitInputs,
    names: tuple[str, ...],
    allow_mismatch: bool,
) -> tuple[ScoredOutcomes, LogitMap]:
    classes = checked_labels(labels, opened.num_classes)
    opened.check_labels(classes)
    truth = classification_truth(classes, opened.num_classes, train_counts=inputs.counts, class_names=names)
    transform = ClassifierFit(truth, inputs, allow_mismatch).map_of("affine", method)
    (found,) = row_outcomes(opened, classes, [transform])
    return top1_outcomes(found, classes, names), transform


def _several(
    opened: ClassifierLogits,
    labels: npt.NDArray[Any],
    method: LogitMap,
    inputs: FitInputs,
    names: tuple[str, ...],
    allow_mismatch: bool,
) -> tuple[ScoredOutcomes, LogitMap]:
    expected = (len(opened), opened.num_classes)
    if labels.shape != expected or not np.isin(labels, (-1, 0, 1)).all():
        raise InputError(
            f"Expected `labels` of a multi-label classifier to be 1, 0 or -1 (not known) in shape {expected}, but got "
            f"{'other values' if labels.shape == expected else f'shape {labels.shape}'}."
        )
    transform = method
    if isinstance(method, str):
        known_of = replace(inputs, background=None, activation="sigmoid", num_columns=opened.num_classes)
        transform = known_of.fit(method)
    elif isinstance(method, ClassAffine):
        known = Target("the logits", opened.num_classes, None, names, "sigmoid")
        method.check_fits(known, what="`affine`", allow_mismatch=allow_mismatch)
    rows = np.concatenate([block for _, block in opened.blocks()])
    mapped = rows if transform is None else np.asarray(transform(rows), np.float64)
    return multilabel_outcomes(mapped, labels, names), transform
