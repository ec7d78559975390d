"""Statistics of a detector's logits over the images of a data set; their labels are never read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.datasets.detection_dataset import DetectionDataset
from logn.errors import InputError
from logn.evaluate.detectors.detector import fingerprint_of
from logn.evaluate.store.predict import as_tensor, match_detector
from logn.logits.arrays import foreground_columns
from logn.logits.frameworks.transformers import NO_CLASS
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments, Nonfinite
from logn.statistics.record import default_sample_rows


def collect_detector_statistics(
    detector: Any,
    dataset: DetectionDataset,
    *,
    max_images: int | None = None,
    batch: int = 8,
    seed: int = 0,
    sample_rows: int | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> ClassMoments:
    """Run `detector` over training images and sum up the logits of its proposals.

    These are the logits that a prediction store holds: for a cascade the average of its stages. To correct the stages
    one by one, record them with `logn.record(detector, detector.logit_layer)`.

    Args:
        detector: A detector with `propose` and `logit_layer`, such as those of `logn.training`.
        dataset: The training images.
        max_images: How many of them at most, drawn at random without repetition; all by default.
        batch: Images per forward pass.
        seed: Of the draw.
        sample_rows: Rows to keep for the balanced margin; by default 4096, or what fits into 4 MiB.
        progress: Called with the number of images whenever some are done.
    """
    for name, count in (("max_images", max_images), ("batch", batch)):
        if count is not None and count < 1:
            raise InputError(f"Expected `{name}` to be at least 1, but got {count}.")
    class_names = match_detector(detector, dataset.class_names).model_names
    moments: ClassMoments | None = None
    order = drawn_images(dataset, max_images, seed)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        for proposals in detector.propose([as_tensor(dataset.read_image(int(index))) for index in chosen]):
            # Every image is a batch, as in the paper's code.
            if moments is None:
                digest = fingerprint_of(detector)
                moments = empty_statistics(
                    detector, class_names, proposals.num_columns, digest, sample_rows=sample_rows
                )
            moments.update(proposals.logits)
        progress(len(chosen))
    if moments is None:
        raise InputError(f"Expected `{dataset.annotation_file}` to list images, but it lists none.")
    return moments


def drawn_images(dataset: DetectionDataset, max_images: int | None, seed: int) -> npt.NDArray[np.int64]:
    """Which images to run, by position, drawn at random without repetition; all, in that order, for None."""
    return np.random.default_rng(seed).permutation(len(dataset))[:max_images]


def empty_statistics(
    detector: Any,
    names: Sequence[str],
    columns: int,
    digest: str | None,
    *,
    sample_rows: int | None,
    nonfinite: Nonfinite = "error",
) -> ClassMoments:
    """Statistics of a detector's logits that have seen nothing yet, and know what they are of.

    Args:
        detector: A source of proposals.
        names: Its foreground classes.
        columns: How many columns its logits have.
        digest: Of its weights.
        sample_rows: As in `collect_detector_statistics`.
        nonfinite: As in `logn.ClassMoments`.
    """
    metadata = StatisticsMetadata(
        class_names=_column_names(detector, names, columns),
        background=detector.background,
        activation=detector.activation,
        layer=detector.logit_layer.name,
        population=detector.population,
        fingerprint=digest,
    )
    rows = default_sample_rows(columns) if sample_rows is None else sample_rows
    return ClassMoments(columns, nonfinite=nonfinite, sample_rows=rows, mean_probability=True, metadata=metadata)


def _column_names(detector: Any, names: Sequence[str], columns: int) -> tuple[str, ...]:
    """The name of each column: of its class, of the background, or of no class at all."""
    named = [NO_CLASS] * columns
    if detector.background is not None:
        named[detector.background] = "background"
    foreground = range(columns)[foreground_columns(columns, detector.background)]
    for column, name in zip(getattr(detector, "class_columns", None) or foreground, names, strict=True):
        named[column] = name
    return tuple(named)
