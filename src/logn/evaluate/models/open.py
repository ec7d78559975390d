"""Any detector as a source of proposals: which adapter it needs, by what it is or where it lies."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from logn.errors import InputError
from logn.logits.frameworks import class_names
from logn.logits.layer import fingerprint
from logn.logits.proposals import ProposingDetector

if TYPE_CHECKING:
    import torch

KNOWN = (
    "a detector of torchvision, Ultralytics, transformers, rfdetr, MMDetection or Detectron2, a Hugging Face folder, "
    "an `.onnx` file, an Ultralytics `.pt` file, or a function that returns a model: `package.module:function` or "
    "`file.py:function`"
)
FUNCTION = re.compile(r"(?:[A-Za-z_][\w.]*|.+\.py):[A-Za-z_][\w.]*")
_PICKLES = (".pt", ".pth")
_FILES = (".onnx", *_PICKLES)
# Where a model of a package gets its adapter: the modules of its classes, our module, the class in it.
_ADAPTERS = (
    ("torchvision.models.detection", "torchvision", "TorchvisionDetector"),
    ("ultralytics", "ultralytics", "UltralyticsDetector"),
    ("rfdetr", "rfdetr", "RFDetrDetector"),
    ("mmdet", "mmdetection", "MMDetectionDetector"),
    ("transformers", "transformers", "TransformersDetector"),
    ("detectron2", "detectron2", "Detectron2Detector"),
)


def detector(model: Any, *, trust: bool = False, **options: Any) -> ProposingDetector:
    """Make a source of proposals of any detector: boxes and all class logits, before any activation or suppression.

    Args:
        model: A model of torchvision, Ultralytics, transformers (with `processor=`), rfdetr, MMDetection or Detectron2
            (its `DefaultPredictor`). Or a path: a Hugging Face folder, an `.onnx` file, an Ultralytics `.pt`. Or
            "package.module:function" or "file.py:function", a function of yours that returns any of these; modules are
            looked up in the current folder, too. What has `propose` already is given back.
        trust: Open a `.pt` file, which is a pickle: opening it runs whatever code its author put there.
        options: What the adapter of that framework takes: `image_size` for Ultralytics, `class_names` for torchvision,
            `processor` for transformers and so on.

    Example:
        >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large as build
        >>> adapter = detector(build(weights=None, weights_backbone=None, num_classes=3), class_names=["cat", "dog"])
        >>> adapter.num_classes, adapter.background, adapter.activation
        (2, 0, 'softmax')
    """
    if isinstance(model, str | os.PathLike):
        return _from_path(os.fspath(model), trust=trust, options=options)
    if callable(getattr(model, "propose", None)):
        _refuse_options(options, type(model).__name__)
        return model  # type: ignore[no-any-return]
    for package, module, name in _ADAPTERS:
        if class_names(model, package):
            return _adapter(module, name)(model, **options)
    raise InputError(f"Expected `model` to be {KNOWN}, but got {type(model).__name__}.")


def fingerprint_of(adapter: Any) -> str | None:
    """A digest of the weights behind a detector, by which statistics and predictions know each other.

    Example:
        >>> fingerprint_of(object()) is None
        True
    """
    if (own := getattr(adapter, "fingerprint", None)) is not None:
        return str(own)
    network = network_of(adapter)
    return None if network is None else fingerprint(network)


def network_of(adapter: Any) -> Any:
    """The torch module behind a detector, which may be itself; None for a detector that is made of something else."""
    network = adapter if hasattr(adapter, "state_dict") else getattr(adapter, "model", None)
    return network if hasattr(network, "state_dict") else None


def move_to(adapter: Any, device: str) -> Any:
    """Bring a detector to a device, itself or the model that it wraps; what is no torch model stays where it is."""
    network: Any = adapter if hasattr(adapter, "to") else getattr(adapter, "model", None)
    if hasattr(network, "to"):
        network.to(device)
    return adapter


def _from_path(path: str, *, trust: bool, options: dict[str, Any]) -> ProposingDetector:
    place = Path(path)
    if FUNCTION.fullmatch(path) and not place.exists():
        return detector(call_function(path), trust=trust, **options)
    if not place.exists():
        raise InputError(f"Expected `{path}` to be {KNOWN}, but there is no such file or folder.")
    suffix = place.suffix.lower()
    if suffix == ".onnx":
        return _adapter("onnx", "OnnxDetector")(place, **options)
    if suffix in _PICKLES:
        from logn.evaluate.models.ultralytics import open_ultralytics

        return detector(open_ultralytics(place, trust=trust), **options)
    if (place / "config.json").is_file():
        folder = import_module("logn.deploy.transformers_folder")
        network, processor = folder.read_transformers(place)
        return _adapter("transformers", "TransformersDetector")(network, processor, **options)
    raise InputError(f"Expected `{path}` to be {KNOWN}, but it is none of these.")


def choose_device(name: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `cuda:1` into a device that is there.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"Expected `device` to be auto, cpu or cuda, but got {name!r}.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"Expected `device` to be there, but got {name!r} and torch finds no CUDA device.")
    return device


def call_function(name: str) -> Any:
    """Call a function of the user's: "package.module:function" or "file.py:function"."""
    module_name, _, path = name.rpartition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = _module_in(Path(module_name)) if module_name.endswith(".py") else import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InputError(f"Expected `{name}` to be a function that can be imported, but it cannot: {error}.") from error
    if not callable(found):
        raise InputError(f"Expected `{name}` to be a function that returns a model, but got {type(found).__name__}.")
    return found()


def _module_in(file: Path) -> ModuleType:
    """Import a file by its path, under a name that no package has."""
    if not file.is_file():
        raise InputError(f"Expected `{file}` to be a Python file, but there is none.")
    name = f"_logn_{file.stem}_{abs(hash(file.resolve()))}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise InputError(f"Expected `{file}` to be a Python file that can be imported, but it cannot.")
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _adapter(module: str, name: str) -> Callable[..., ProposingDetector]:
    made: Callable[..., ProposingDetector] = getattr(import_module(f"logn.evaluate.models.{module}"), name)
    return made


def _refuse_options(options: dict[str, Any], what: str) -> None:
    if options:
        raise InputError(f"Expected no `{next(iter(options))}` for {what}, which says all of itself.")
