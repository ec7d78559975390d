"""The protocol that a number was made under: without it two numbers cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from logn.evaluate.decode.detections import LVIS_CAP as LVIS_CAP
from logn.evaluate.decode.detections import SCORE_THRESHOLD as SCORE_THRESHOLD

COCO_CAP = 100


def installed_evaluator() -> str:
    """Name and version of the package that computes the average precision."""
    try:
        return f"hotcoco {version('hotcoco')}"
    except PackageNotFoundError:
        return "hotcoco"


@dataclass(frozen=True)
class EvaluationProtocol:
    """Everything that moves a detection metric apart from the detections themselves.

    Args:
        style: "lvis" (federated, one budget of detections per image over all classes) or "coco" (every class
            is annotated in every image, a budget per image and class).
        iou_type: "bbox" or "segm".
        max_detections: The budget per image (LVIS) or per image and class (COCO); None for no limit.
        per_class_limit: The budget per class over the whole set, as AP-Fixed has it; None for no limit.
        score_threshold: Scores below it were dropped by the decoder; None when unknown.
        nms_iou: Overlap above which the decoder suppressed boxes; None when unknown, or where there is no suppression.
        groups: Where the rare, common and frequent groups come from.
        images: How many images were evaluated, and which.
        evaluator: Name and version of the package that computed the average precision.
        nms: How boxes suppressed each other: "class-wise", "class-agnostic" or "none".
        multi_label: Whether a proposal could be detected as several classes.

    Example:
        >>> EvaluationProtocol(score_threshold=1e-4, nms_iou=0.5, images="100 images").describe()
        'LVIS box AP, federated, at most 300 detections per image, score threshold 0.0001, NMS 0.5, 100 images'
    """

    style: str = "lvis"
    iou_type: str = "bbox"
    max_detections: int | None = LVIS_CAP
    per_class_limit: int | None = None
    score_threshold: float | None = None
    nms_iou: float | None = None
    groups: str | None = None
    images: str | None = None
    evaluator: str = field(default_factory=installed_evaluator)
    nms: str = "class-wise"
    multi_label: bool = True

    @property
    def federated(self) -> bool:
        """Whether only the classes that were verified in an image count there."""
        return self.style == "lvis"

    def describe(self) -> str:
        """Say the protocol in one line, for the caption of a table."""
        kind = "mask" if self.iou_type == "segm" else "box"
        unit = "per image" if self.federated else "per image and class"
        limit = "no limit of detections" if self.max_detections is None else f"at most {self.max_detections} detections"
        parts = [
            f"{self.style.upper()} {kind} AP",
            "federated" if self.federated else "not federated",
            f"{limit} {unit}",
            self.per_class_limit and f"the best {self.per_class_limit:,} of each class over the set",
            self.score_threshold is not None and f"score threshold {self.score_threshold:g}",
            self._suppression(),
            not self.multi_label and "the best class of each proposal",
            self.groups and f"groups by {self.groups}",
            self.images,
        ]
        return ", ".join(part for part in parts if part)

    def _suppression(self) -> str | None:
        if self.nms == "none":
            return "no NMS"
        if self.nms_iou is None:
            return None
        return f"NMS {self.nms_iou:g}" + (" across classes" if self.nms == "class-agnostic" else "")

    def to_dict(self) -> dict[str, Any]:
        """Give all fields, for JSON.

        Example:
            >>> EvaluationProtocol(style="coco", max_detections=COCO_CAP).to_dict()["federated"]
            False
        """
        return {**asdict(self), "federated": self.federated}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> EvaluationProtocol:
        """Read what `to_dict` gave.

        Example:
            >>> protocol = EvaluationProtocol(images="3 images")
            >>> EvaluationProtocol.from_dict(protocol.to_dict()) == protocol
            True
        """
        newer = ("nms", "multi_label")  # not there in files of earlier versions
        names = [known.name for known in fields(cls) if known.name in content or known.name not in newer]
        return cls(**{name: content[name] for name in names})
