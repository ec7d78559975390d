"""The frameworks that LogN knows: the one list. A new framework is one file beside this one and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from logn.models.detector import Detector
from logn.models.frameworks import mmdetection, rfdetr, torchvision, transformers, ultralytics
from logn.models.frameworks.shared import Locator, kinds_of, locate_inside
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
    locate: Locator
    detector: Callable[..., Detector]


FRAMEWORKS = (
    Framework("torchvision", torchvision.PACKAGE, torchvision.locate, torchvision.TorchvisionDetector),
    Framework("MMDetection", mmdetection.PACKAGE, mmdetection.locate, mmdetection.MMDetectionDetector),
    Framework("transformers", transformers.PACKAGE, transformers.locate, transformers.TransformersDetector),
    Framework("Ultralytics", ultralytics.PACKAGE, ultralytics.locate, ultralytics.UltralyticsDetector),
    Framework("RF-DETR", rfdetr.PACKAGE, rfdetr.locate, rfdetr.RFDetrDetector),
)
NAMES = f"{', '.join(framework.name for framework in FRAMEWORKS[:-1])} or {FRAMEWORKS[-1].name}"


def framework_of(model: object) -> Framework | None:
    """The framework that a model's class comes from; None for any other model.

    Example:
        >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large as build
        >>> framework_of(build(weights=None, weights_backbone=None)).name
        'torchvision'
    """
    return next((framework for framework in FRAMEWORKS if kinds_of(model, framework.package)), None)


def locate_by_name(model: nn.Module) -> LogitLayer | None:
    """The class layer of a model of a known framework, also of one inside another module; None if there is none."""
    layers = (locate_inside(model, framework.package, framework.locate) for framework in FRAMEWORKS)
    return next(filter(None, layers), None)
