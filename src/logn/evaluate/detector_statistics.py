"""Statistics of a detector's logits over the images of a data set; their labels are never read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from logn.datasets.detection_dataset import DetectionDataset
from logn.errors import InputError
from logn.evaluate.predict import as_tensor
from logn.statistics.record import record


def collect_detector_statistics(
    detector: Any,
    dataset: DetectionDataset,
    *,
    images: int | None = None,
    batch: int = 8,
    seed: int = 0,
    class_names: tuple[str, ...] | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> Any:
    """Run `detector` over training images and record the logits of its proposals.

    Args:
        detector: A detector with `propose` and `logit_layer`, such as those of `logn.training`.
        dataset: The training images.
        images: How many of them, drawn at random without repetition; all by default.
        batch: Images per forward pass.
        seed: Of the draw.
        class_names: Names of the foreground classes; by default those of the data set.
        advance: Called with the number of images whenever some are done.

    Returns:
        ClassMoments with a row sample; for a cascade one per stage.
    """
    if images is not None and images < 1:
        raise InputError(f"Expected `images` to be at least 1, but got {images}.")
    if detector.num_classes != dataset.num_classes:
        raise InputError(
            f"Expected `dataset` to have the {detector.num_classes} classes of the detector, but got "
            f"{dataset.num_classes}."
        )
    order = np.random.default_rng(seed).permutation(len(dataset))[:images]
    names = tuple(class_names or dataset.class_names)
    if detector.background is not None:
        names = ("background", *names) if detector.background == 0 else (*names, "background")
    with record(detector.eval(), detector.logit_layer, class_names=names) as moments:
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            detector.propose([as_tensor(dataset.read_image(int(index))) for index in chosen])
            advance(len(chosen))
    return moments
