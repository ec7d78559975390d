"""Public detectors as they are: statistics over training photographs, and predictions of dev and test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import logn
from logn.models.images import as_tensor
from logn_research.datasets.sample_dataset import SampleDataset

STATISTICS_IMAGES = 1000
MEASURED_IMAGES = 1000


def ssdlite(weights: Path) -> Any:
    """Torchvision's SSDLite with weights from a safetensors file: a softmax over 90 classes and the background."""
    from safetensors.torch import load_file
    from torchvision.models import get_model_weights
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=91)
    model.load_state_dict(load_file(weights))
    names = get_model_weights(ssdlite320_mobilenet_v3_large).DEFAULT.meta["categories"]
    return logn.detector(model.eval(), class_names=names)


class FirstImages:
    """The first images of a data set, with what `logn.predict` needs of one."""

    def __init__(self, dataset: SampleDataset, number: int) -> None:
        self._dataset = dataset
        self.image_ids = dataset.image_ids[:number]
        self.class_names, self.category_ids = dataset.class_names, dataset.category_ids
        self.images_fingerprint = None

    def read_image(self, index: int) -> Any:
        """One image, RGB."""
        return self._dataset.read_image(index)


def record(detector: Any, images: SampleDataset, number: int) -> logn.ClassMoments:
    """Statistics of all boxes of some training images, with the objectness where there is one."""
    moments: logn.ClassMoments | None = None
    for index in np.linspace(0, len(images) - 1, min(number, len(images))).astype(int):
        (proposals,) = detector.propose([as_tensor(images.read_image(int(index)))])
        if moments is None:
            head = replace(detector.head_of(proposals), layer=None, source=None, population="all boxes")
            moments = logn.ClassMoments(head, sample_rows=20_000)
        moments.update(proposals.logits, proposals.objectness)
    if moments is None:
        raise ValueError("There are no images.")
    return moments


def write_public(detector: Any, data: Path, folder: Path) -> None:
    """Write statistics and the predictions of the test photographs, where they are not there yet."""
    statistics = folder / "statistics.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    if not statistics.exists():
        record(detector, SampleDataset(data / "train.json"), STATISTICS_IMAGES).save(statistics)
    test: Any = FirstImages(SampleDataset(data / "test.json"), MEASURED_IMAGES)
    logn.predict(detector, test, folder / "test")
