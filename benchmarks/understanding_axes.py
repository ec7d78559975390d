"""What `benchmarks/understanding.py` varies, one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from logn.datasets.glyphs.settings import GlyphSettings
from logn.experiments.detector_spec import DetectorSpec

# Images per class on which it is verified absent: so many, or every image without it.
NUMBERS = ("0", "2", "4", "8", "16", "32", "64", "all")
# The same number, but only images with a class of the same family on them, or only images without one.
WITH, WITHOUT = "32, with a look-alike", "32, without a look-alike"
USUAL, ALWAYS = "8", ("0", "8", "all")


@dataclass(frozen=True)
class Point:
    """One setting of an axis.

    Args:
        axis: What is varied.
        label: The setting.
        spec: The detector.
        negatives: Which images are verified absent.
        images: Other data whose test images are used instead of the detector's own; the classes must be the same.
    """

    axis: str
    label: str
    spec: DetectorSpec
    negatives: str = USUAL
    images: DetectorSpec | None = None

    @property
    def source(self) -> DetectorSpec:
        """Whose test images are used."""
        return self.images or self.spec

    @property
    def subject(self) -> str:
        """The detector, and whose images where they are not its own: what is measured once."""
        return self.spec.name if self.images is None else f"{self.spec.name} on {self.images.data_name}"


def axes(iterations: int, seed: int) -> list[Point]:
    """All settings; everything that an axis does not name is as in `families` with the paper's cosine head."""
    base = DetectorSpec(classifier="cosine", iterations=iterations, seed=seed)
    linear = replace(base, classifier="linear")

    def other(scenes: str, **glyphs: Any) -> DetectorSpec:
        return replace(base, scenes=scenes, glyphs=GlyphSettings(dev=1, **glyphs))  # dev images are not used here

    # 1,203 classes need 8,000 images to keep their frequencies, and more training to see them.
    many = other("classes1203", classes=1203, train=8000, test=1440)
    # Test images only, of the same classes: those follow from the seed before anything else does.
    bare, crowded = (other(f"testclutter{clutter:g}", train=1, clutter=clutter) for clutter in (0.0, 3.0))
    return [
        *(Point("negatives", number, base, number) for number in NUMBERS),
        *(Point("negatives, linear head", number, linear, number) for number in NUMBERS),
        *(Point("which negatives", label, base, label) for label in ("32", WITHOUT, WITH)),
        Point("look-alikes", "distinct", replace(base, scenes="distinct")),
        Point("look-alikes", "0.6", other("similarity60", similarity=0.6)),
        Point("look-alikes", "0.75", base),
        Point("look-alikes", "0.9", other("similarity90", similarity=0.9)),
        Point("clutter", "0", other("clutter0", clutter=0.0)),
        Point("clutter", "1", base),
        Point("clutter", "3", other("clutter3", clutter=3.0)),
        Point("clutter, linear head", "1", linear),
        Point("clutter, linear head", "3", replace(other("clutter3", clutter=3.0), classifier="linear")),
        Point("clutter of the test images", "0", base, images=bare),
        Point("clutter of the test images", "1", base),
        Point("clutter of the test images", "3", base, images=crowded),
        Point("classes", "30", other("classes30", classes=30)),
        Point("classes", "100", base),
        Point("classes", "300", other("classes300", classes=300, test=960)),
        Point("classes", "1203", replace(many, iterations=iterations * 5 // 2)),
        Point("classes, linear head", "100", linear),
        Point("classes, linear head", "300", replace(other("classes300", classes=300, test=960), classifier="linear")),
        Point("head", "cosine 10", replace(base, temperature=10.0)),
        Point("head", "cosine 20", base),
        Point("head", "linear", linear),
        Point("head", "linear, distinct", replace(linear, scenes="distinct")),
        Point("training", f"{iterations} iterations", base),
        Point("training", f"{iterations * 5 // 16} iterations", replace(base, iterations=iterations * 5 // 16)),
        Point("training", "repeat factor sampling", replace(base, sampler="rfs")),
    ]
