"""What decides, apart from the scores, which proposals become detections."""

from __future__ import annotations

from dataclasses import dataclass, replace

from logn.errors import InputError
from logn.evaluate.detection.protocol import LVIS_CAP, SCORE_THRESHOLD
from logn.evaluate.store.store import StoreHeader
from logn.logits.arrays import check_background
from logn.logits.proposals import Postprocessing, check_nms


@dataclass(frozen=True)
class DecodeSettings:
    """What decides, apart from the scores, which proposals become detections.

    Args:
        score_threshold: Scores strictly greater than this are kept.
        nms_iou: Boxes that overlap a better one by more than this are dropped; None takes what the store says, 0.5
            where it says nothing.
        max_detections: How many detections an image may have, over all classes; None or -1 for all.
        max_per_class: How many detections a class may have over the whole data set (AP-Fixed uses 10,000); None
            for all.
        min_box_size: Boxes with a side shorter than this, in pixels, are dropped, 0 drops none; None takes what the
            store says, 0.01 as torchvision where it says nothing.
        activation: "softmax" or "sigmoid"; "recorded" takes what the store says.
        background: Place of the background column, None, 0 or -1; "recorded" takes what the store says.
        nms: "class-wise", "class-agnostic" or "none"; None takes what the store says, "class-wise" where it says
            nothing.
        multi_label: Whether a proposal may be detected as several classes, or as its best one alone; None takes what
            the store says, True where it says nothing.

    Example:
        >>> DecodeSettings(max_detections=-1).max_detections is None
        True
    """

    score_threshold: float = SCORE_THRESHOLD
    nms_iou: float | None = None
    max_detections: int | None = LVIS_CAP
    max_per_class: int | None = None
    min_box_size: float | None = None
    activation: str = "recorded"
    background: int | str | None = "recorded"
    nms: str | None = None
    multi_label: bool | None = None

    def __post_init__(self) -> None:
        for name in ("max_detections", "max_per_class"):
            value = getattr(self, name)
            if value == -1:
                object.__setattr__(self, name, None)
            elif value is not None and value < 1:
                raise InputError(f"Expected `{name}` to be at least 1, or -1 for all, but got {value}.")
        check_nms("none" if self.nms is None else self.nms, 0.5 if self.nms_iou is None else self.nms_iou)
        if not self.score_threshold < 1:
            raise InputError(f"Expected `score_threshold` to be below 1, but got {self.score_threshold}.")
        if self.activation not in ("recorded", "softmax", "sigmoid"):
            raise InputError(
                f'Expected `activation` to be "recorded", "softmax" or "sigmoid", but got {self.activation!r}.'
            )
        if self.background != "recorded":
            check_background(self.background)

    @classmethod
    def of_framework(cls, postprocessing: Postprocessing) -> DecodeSettings:
        """The settings with which decoding gives what the framework of the model itself gives.

        Example:
            >>> DecodeSettings.of_framework(Postprocessing(score_threshold=0.25)).score_threshold
            0.25
        """
        names = ("nms", "nms_iou", "multi_label", "score_threshold", "max_detections", "min_box_size")
        return cls(**{name: getattr(postprocessing, name) for name in names})

    def resolved(self, header: StoreHeader) -> DecodeSettings:
        """Put what the store says of its model in the place of what is None.

        Only how boxes suppress each other and become classes: the threshold and the limits say what is measured.

        Example:
            >>> DecodeSettings(nms_iou=0.7).resolved(StoreHeader(num_columns=2)).nms
            'class-wise'
        """
        said = header.postprocessing or Postprocessing()
        names = ("nms", "nms_iou", "multi_label", "min_box_size")
        return replace(self, **{name: getattr(said, name) for name in names if getattr(self, name) is None})
