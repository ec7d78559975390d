"""What `logn data` says of images that have one class each, and of samplers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from logn.datasets.open_images import open_images
from logn.datasets.samplers import ImagesOfClasses, make_sampler
from logn.evaluate.classification.truth import SHOTS, shot_groups


def summarise_images(
    source: Path,
    split: str = "train",
    imbalance: float | None = None,
    seed: int = 0,
    sampler: str | None = None,
    threshold: float = 0.001,
) -> dict[str, Any]:
    """Count the images of a split, its classes and their groups by the training images."""
    images = open_images(source, split, imbalance=imbalance, seed=seed)
    training = images if split == "train" else open_images(source, imbalance=imbalance, seed=seed)
    groups = shot_groups(training.image_counts)
    result: dict[str, Any] = {
        "images": len(images),
        "classes": images.num_classes,
        "groups": {shot: int((groups == shot).sum()) for shot in SHOTS},
        "classes without images": int((images.image_counts == 0).sum()),
        "fewest images of a class": int(images.image_counts.min()),
        "most images of a class": int(images.image_counts.max()),
    }
    return result if sampler is None else {**result, **describe_sampler(sampler, images, threshold)}


def describe_sampler(name: str, images: ImagesOfClasses, threshold: float) -> dict[str, Any]:
    """Say what a sampler makes of the images: how many an epoch shows, and of which classes."""
    sampler = make_sampler(name, images, threshold=threshold)
    return {
        "sampler": name,
        "images of an epoch": round(float(sampler.expected_repeats().sum()), 1),
        "label distribution": sampler.label_distribution(),
    }
