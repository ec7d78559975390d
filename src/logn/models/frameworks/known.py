"""The frameworks that LogN knows: the one list. A new framework is one file beside this one and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from logn.models.frameworks.mmdetection import MMDetectionDetector, locate_in_mmdetection
from logn.models.frameworks.rfdetr import RFDetrDetector, locate_in_rfdetr
from logn.models.frameworks.shared import class_names
from logn.models.frameworks.torchvision import TorchvisionDetector, locate_in_torchvision
from logn.models.frameworks.transformers import TransformersDetector, locate_in_transformers
from logn.models.frameworks.ultralytics import UltralyticsDetector, locate_in_ultralytics
from logn.models.layer import LogitLayer

if TYPE_CHECKING:
    from torch import nn


class Framework(NamedTuple):
    """What is known of a framework.

    Attributes:
        name: What users call it.
        package: The package that its models come from.
        locate: Finds the class layer of its models, recognised by name; None for other models.
        detector: Makes a source of proposals of one of its detectors.
    """

    name: str
    package: str
    locate: Callable[[nn.Module], LogitLayer | None]
    detector: Callable[..., Any]


FRAMEWORKS = (
    Framework("torchvision", "torchvision.models.detection", locate_in_torchvision, TorchvisionDetector),
    Framework("MMDetection", "mmdet", locate_in_mmdetection, MMDetectionDetector),
    Framework("transformers", "transformers", locate_in_transformers, TransformersDetector),
    Framework("Ultralytics", "ultralytics", locate_in_ultralytics, UltralyticsDetector),
    Framework("RF-DETR", "rfdetr", locate_in_rfdetr, RFDetrDetector),
)
NAMES = f"{', '.join(framework.name for framework in FRAMEWORKS[:-1])} or {FRAMEWORKS[-1].name}"


def framework_of(model: object) -> Framework | None:
    """The framework that a model's class comes from; None for any other model.

    Example:
        >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large as build
        >>> framework_of(build(weights=None, weights_backbone=None)).name
        'torchvision'
    """
    return next((framework for framework in FRAMEWORKS if class_names(model, framework.package)), None)


def locate_by_name(model: nn.Module) -> LogitLayer | None:
    """The class layer of a model of a known framework, also of one inside another module; None if there is none."""
    return next(filter(None, (framework.locate(model) for framework in FRAMEWORKS)), None)
