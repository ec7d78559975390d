"""What a comparison measures, and how: the same settings for detectors and for classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from logn.errors import InputError
from logn.evaluate.decode.decoder import DecodeSettings
from logn.evaluate.detection.class_groups import LVIS_BOUNDS
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.protocol import COCO_CAP, EvaluationProtocol
from logn.evaluate.thresholds.points import DEFAULT_AT

# Of more images than this the report shows no more, and takes longer.
REPORT_IMAGES = 500


@dataclass(frozen=True, init=False)
class CompareSettings:
    """What is measured, and how.

    Args:
        style: "lvis" or "coco"; "auto" for what the annotations are. For detectors.
        decode: Threshold, suppression and limits of the decoder. For detectors.
        num_bootstrap: How many bootstrap samples of the images or rows the intervals come from; 0 for no intervals.
        confidence: Of the intervals.
        seed: Of the bootstrap.
        split: Report on one half of the images or rows only, and make choices on the other.
        fixed: Also compute AP-Fixed, and AP-Pool over its detections. For detectors.
        errors: Also find the kinds of error (TIDE) over all images. For detectors.
        mask_errors: Find them by the overlap of masks instead of boxes; needs masks.
        bounds: The last rare and the last common training count, when groups come from counts; by default 10 and 100
            for detectors. For classifiers the last few-shot and the last medium-shot count, by default 19 and 100.
        only_predicted: Evaluate only the predicted images when the annotations have more. For detectors.
        objective: The metric by which the value of a sweep is chosen; by default "AP" or "top-1".
        report_images: How many images the report looks at closely, evenly spaced, for thresholds, kinds of error and
            pictures; 0 for none. For detectors.
        allow_missing_classes: Leave out objects of classes that the model does not have, instead of refusing them. For
            detectors.
        at: The score threshold that the model is used with, for the verdict and the report. For detectors.

    Example:
        >>> CompareSettings() == CompareSettings(num_bootstrap=1000)
        True
    """

    style: str
    decode: DecodeSettings
    num_bootstrap: int
    confidence: float
    seed: int
    split: bool
    fixed: bool
    errors: bool
    bounds: tuple[int, int] | None
    only_predicted: bool
    objective: str | None
    report_images: int
    allow_missing_classes: bool
    at: float
    mask_errors: bool

    def __init__(
        self,
        style: str = "auto",
        decode: DecodeSettings | None = None,
        num_bootstrap: int = 1000,
        confidence: float = 0.95,
        seed: int = 0,
        split: bool = False,
        fixed: bool = False,
        errors: bool = False,
        bounds: tuple[int, int] | None = None,
        only_predicted: bool = False,
        objective: str | None = None,
        report_images: int = REPORT_IMAGES,
        allow_missing_classes: bool = False,
        at: float = DEFAULT_AT,
        *,
        mask_errors: bool = False,
    ) -> None:
        values = {
            "style": style,
            "decode": decode or DecodeSettings(),
            "num_bootstrap": num_bootstrap,
            "confidence": confidence,
            "seed": seed,
            "split": split,
            "fixed": fixed,
            "errors": errors or mask_errors,
            "mask_errors": mask_errors,
            "bounds": bounds,
            "only_predicted": only_predicted,
            "objective": objective,
            "report_images": report_images,
            "allow_missing_classes": allow_missing_classes,
            "at": at,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        for name in ("num_bootstrap", "report_images"):
            if values[name] < 0:  # type: ignore[operator]
                raise InputError(f"Expected `{name}` to be at least 0, but got {values[name]}.")
        if not 0 <= at <= 1:
            raise InputError(f"Expected `at` to be a score from 0 to 1, but got {at:g}.")
        if not 0 < confidence < 1:
            raise InputError(f"Expected `confidence` to lie between 0 and 1, but got {confidence:g}.")

    @property
    def group_bounds(self) -> tuple[int, int]:
        """The last rare and the last common training count of a detector's classes."""
        return self.bounds or LVIS_BOUNDS

    def protocol(self, truth: GroundTruth, group_source: str | None, *, decoded: bool = True) -> EvaluationProtocol:
        """Give the protocol of AP under these settings; detections that we did not decode hide theirs."""
        part = ", one half of them" if self.split else ""
        if truth.style == "lvis" and truth.verified is not None and truth.verified.all():
            part += ", every class verified in each"
        suppressed = decoded and self.decode.nms != "none"
        return EvaluationProtocol(
            style=truth.style,
            max_detections=self.decode.max_detections if truth.style == "lvis" else COCO_CAP,
            score_threshold=self.decode.score_threshold if decoded else None,
            nms_iou=self.decode.nms_iou if suppressed else None,
            groups=group_source,
            images=f"{truth.num_images:,} images{part}",
            nms=self.decode.nms or "class-wise" if decoded else "class-wise",
            multi_label=self.decode.multi_label is not False,
        )

    def to_dict(self) -> dict[str, Any]:
        """Give all settings as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> CompareSettings:
        """Read what `to_dict` gave, also after a way through JSON.

        Example:
            >>> CompareSettings.from_dict(CompareSettings(bounds=(5, 50)).to_dict()).bounds
            (5, 50)
        """
        bounds = content.get("bounds")
        decode = DecodeSettings(**content["decode"])
        return cls(**{**content, "decode": decode, "bounds": None if bounds is None else (bounds[0], bounds[1])})
