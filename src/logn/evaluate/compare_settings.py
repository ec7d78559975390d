"""What a comparison measures, and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from logn.evaluate.class_groups import LVIS_BOUNDS
from logn.evaluate.decode import DecodeSettings
from logn.evaluate.ground_truth import GroundTruth
from logn.evaluate.protocol import COCO_CAP, EvaluationProtocol


@dataclass(frozen=True)
class CompareSettings:
    """What is measured, and how.

    Args:
        style: "lvis" or "coco".
        decode: Threshold, suppression and limits of the decoder.
        draws: How often images are drawn anew for the intervals; 0 for no intervals.
        confidence: Of the intervals.
        seed: Of the draws.
        split: Report on one half of the images only, and make choices on the other.
        fixed: Also compute AP-Fixed, and AP-Pool over its detections: a second decoding.
        errors: Also find the kinds of error (TIDE).
        bounds: The last rare and the last common training count, when groups come from counts.
        only_predicted: Evaluate only the predicted images when the annotations have more.
        objective: The metric by which the value of a sweep is chosen.
    """

    style: str = "lvis"
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    draws: int = 1000
    confidence: float = 0.95
    seed: int = 0
    split: bool = False
    fixed: bool = False
    errors: bool = False
    bounds: tuple[int, int] = LVIS_BOUNDS
    only_predicted: bool = False
    objective: str = "AP"

    def protocol(self, truth: GroundTruth, group_source: str | None, *, decoded: bool = True) -> EvaluationProtocol:
        """Give the protocol of AP under these settings; detections that we did not decode hide theirs."""
        part = ", one half of them" if self.split else ""
        if truth.verified is not None and truth.verified.all():
            part += ", every class verified in each"
        return EvaluationProtocol(
            style=self.style,
            max_detections=self.decode.max_detections if self.style == "lvis" else COCO_CAP,
            score_threshold=self.decode.score_threshold if decoded else None,
            nms_iou=self.decode.nms_iou if decoded else None,
            groups=group_source,
            images=f"{truth.num_images:,} images{part}",
        )
