"""What `logn data` does with images that have one class each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from logn.cli.console import progress
from logn.datasets.glyph_class_settings import GlyphClassSettings
from logn.datasets.glyph_classes import generate_glyph_classes
from logn.datasets.open_images import open_images
from logn.datasets.samplers import make_sampler
from logn.evaluate.classification_truth import SHOTS, shot_groups


def draw_classes(folder: Path, settings: GlyphClassSettings, workers: int, *, shown: bool | None) -> dict[str, Any]:
    """Draw glyph classes with a progress bar, and say what came of it."""
    started = time.monotonic()
    with progress("Drawing", total=settings.images, shown=shown) as advance:
        generate_glyph_classes(folder, settings, workers=workers, advance=advance)
    return {"folder": folder, "seconds": round(time.monotonic() - started, 1), **summarise_images(folder)}


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
    if sampler is not None:
        chosen = make_sampler(sampler, images, threshold=threshold)
        result["sampler"] = sampler
        result["images of an epoch"] = round(float(chosen.expected_repeats().sum()), 1)
        result["label distribution"] = chosen.label_distribution()
    return result
