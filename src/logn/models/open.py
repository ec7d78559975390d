"""What a path or an object is: the one place that recognises models."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from logn.errors import InputError, MissingExtraError
from logn.models.frameworks import class_names
from logn.models.layer import LogitLayer
from logn.models.onnx.detector import Like, OnnxDetector, preparation, unprepared
from logn.models.onnx.file import engine_file
from logn.models.opened import (
    Images,
    Model,
    OnnxModel,
    ProposalModel,
    TorchModel,
    Traits,
    adapter_model,
    in_words,
    network_of,
)
from logn.models.preprocessing import Preprocessing, preset_named
from logn.models.proposals import ProposingDetector

if TYPE_CHECKING:
    import torch

KNOWN = (
    "an `.onnx` file, a Hugging Face folder (as save_pretrained writes it), a `.pt` file of Ultralytics, or a "
    "function that returns a model: `package.module:function` or `file.py:function`"
)
FRAMEWORKS = "torchvision, Ultralytics, transformers, rfdetr, MMDetection or Detectron2"
FUNCTION = re.compile(r"(?:[A-Za-z_][\w.]*|.+\.py):[A-Za-z_][\w.]*")
_WEIGHTS = "a file of weights without a model: name its folder, or a function that returns the model with them"
# Adapters by the modules of a model's classes: our module, the class in it.
_ADAPTERS = (
    ("torchvision.models.detection", "torchvision", "TorchvisionDetector"),
    ("ultralytics", "ultralytics", "UltralyticsDetector"),
    ("rfdetr", "rfdetr", "RFDetrDetector"),
    ("mmdet", "mmdetection", "MMDetectionDetector"),
    ("transformers", "transformers", "TransformersDetector"),
    ("detectron2", "detectron2", "Detectron2Detector"),
)


@dataclass(frozen=True)
class Hints:
    """What the user says about a model.

    Args:
        like: How images are prepared, for ONNX files and functions: a preset of `logn.models.preprocessing` such as
            "yolox", a JSON file with fields of `Preprocessing`, a `Preprocessing`; for functions also a function that
            turns an RGB image into the tensor that the model takes.
        size: Height and width of the images that the model gets; None for its own.
        activation: "softmax" or "sigmoid", if the model does not say what follows its logits.
        background: ONNX: background column, 0 or -1.
        tensor: ONNX: name of the tensor that holds the logits, if the search finds several.
        class_names: ONNX: name of each column, or a file of them.
        layer: Functions: where the logits are; found by `logn.locate_logits` by default.
        device: "auto", "cpu" or "cuda", for torch models.
        trust: Open a `.pt` file, which is a pickle and runs its author's code.
    """

    like: Like | Callable[[Any], Any] | None = None
    size: tuple[int, int] | None = None
    activation: str | None = None
    background: int | None = None
    tensor: str | Sequence[str] | None = None
    class_names: Sequence[str] | str | os.PathLike[str] | None = None
    layer: LogitLayer | None = None
    device: str = "auto"
    trust: bool = False

    def refuse(self, what: str, *names: str) -> None:
        """Refuse hints that such a model has no use for."""
        for name in names:
            if getattr(self, name) is not None:
                raise InputError(f"`{name}` does not apply to {what}; leave it out.")

    def on_layer(self, layer: LogitLayer) -> LogitLayer:
        """The layer with the user's activation, if the model does not state one; a contradiction is refused."""
        if self.activation is None or layer.activation == self.activation:
            return layer
        if layer.activation is not None:
            raise InputError(
                f"`activation` is {self.activation}, but the model applies {layer.activation} to `{layer.name}`; leave "
                "`activation` out."
            )
        return replace(layer, activation=self.activation)


def detector(model: Any, *, trust: bool = False, **options: Any) -> ProposingDetector:
    """Make a source of proposals of any detector: boxes and all class logits, before any activation or suppression.

    Args:
        model: A model of torchvision, Ultralytics, transformers (with `processor=`), rfdetr, MMDetection or Detectron2
            (its `DefaultPredictor`). Or a path: a Hugging Face folder, an `.onnx` file, an Ultralytics `.pt`. Or
            "package.module:function" or "file.py:function", a function of yours that returns any of these; modules are
            looked up in the current folder, too. An object with `propose` is returned as it is.
        trust: Open a `.pt` file, which is a pickle and runs its author's code.
        options: What the adapter of that framework takes: `size` for Ultralytics, `like` for ONNX files, `class_names`
            for torchvision, `processor` for transformers and so on.

    Example:
        >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large as build
        >>> adapter = detector(build(weights=None, weights_backbone=None, num_classes=3), class_names=["cat", "dog"])
        >>> adapter.num_classes, adapter.background, adapter.activation
        (2, 0, 'softmax')
    """
    if isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        kind = kind_of(name)
        if kind == "onnx":
            return OnnxDetector(name, **options)
        if kind == "transformers":
            network, options["processor"] = import_module(
                "logn.models.frameworks.transformers_folder"
            ).read_transformers(name)
            return detector(network, **options)
        opened = call_function(name) if kind == "function" else _adapter(kind, "open_ultralytics")(name, trust=trust)
        return detector(opened, **options)
    if callable(getattr(model, "propose", None)):
        if options:
            name = type(model).__name__
            raise InputError(f"`{next(iter(options))}` does not apply to {name}, which has `propose`; leave it out.")
        return model  # type: ignore[no-any-return]
    for package, module, adapter in _ADAPTERS:
        if class_names(model, package):
            made: ProposingDetector = _adapter(module, adapter)(model, **options)
            return made
    raise InputError(f"Expected `model` to be a detector of {FRAMEWORKS}, or {KNOWN}, but got {type(model).__name__}.")


def open_model(model: Any, hints: Hints | None = None) -> Model:
    """Open a model to collect its statistics, and to correct it.

    Args:
        model: A path or function as for `detector`, of detectors and classifiers; or a torch model.
        hints: What the user says about it.
    """
    hints = hints or Hints()
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__
    kind = kind_of(name) if isinstance(model, str | os.PathLike) else "object"
    if kind == "onnx":
        return _open_onnx(Path(name), hints)
    hints.refuse(f"`{name}`, which is not an ONNX file", "background", "tensor", "class_names")
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", extra="torchvision") from error
    if kind == "object":
        return _open_object(model, name, hints)
    if kind == "function":
        return _open_object(call_function(name), name, hints)
    hints.refuse(f"`{name}`, which is not a function", "layer")
    opened: Model = _adapter(kind, "open_file")(Path(name), hints)
    return opened


def kind_of(name: str) -> str:
    """What kind of model a path or name is: "onnx", "ultralytics", "transformers" or "function"; others are refused.

    Example:
        >>> kind_of("my_models:build")
        'function'
    """
    path = Path(name)
    suffix = path.suffix.lower()
    if not path.exists():
        if suffix == ".onnx" or FUNCTION.fullmatch(name) is None:
            raise InputError(f"There is no file or folder `{name}`. A model is {KNOWN}.")
        return "function"
    if (path / "config.json").is_file():
        return "transformers"
    if path.is_file() and suffix in (".onnx", ".pt", ".pth"):
        return "onnx" if suffix == ".onnx" else "ultralytics"
    other = "not a model"
    if path.is_file():
        other = engine_file(path) or (_WEIGHTS if suffix in (".safetensors", ".bin") else other)
    raise InputError(f"`{name}` is {other}. A model is {KNOWN}.")


def _open_onnx(path: Path, hints: Hints) -> OnnxModel:
    from logn.models.onnx.description import require_size, settle
    from logn.models.onnx.file import read_onnx

    hints.refuse(f"`{path}`, an ONNX file", "layer")
    file = read_onnx(path)
    like, fields = preparation(hints.like, hints.size)
    preprocessing, description = settle(file, like, **fields)
    if description.preset is None and not fields:
        raise unprepared(path)
    require_size(file, preprocessing)
    source = f" ({description.source})" if description.source else ""
    producer = f", {file.model.producer_name}" if file.model.producer_name else ""
    traits = Traits(f"ONNX{producer}", in_words(preprocessing) + source, ".onnx")
    names = ("activation", "background", "tensor", "class_names")
    return OnnxModel(file, traits, preprocessing, like, {field: getattr(hints, field) for field in names})


def _open_object(made: Any, name: str, hints: Hints) -> Model:
    """A detector of a known framework, or any other torch model whose preprocessing the user gives."""
    fields: dict[str, Any] = {"name": name, "save": _save_state, "reopen": _load_state}
    packages = [package for package, _, _ in _ADAPTERS if package != "transformers"]  # which needs a processor
    is_detector = callable(getattr(made, "propose", None)) or any(class_names(made, package) for package in packages)
    if not is_detector:
        return _open_module(made, name, hints, fields)
    hints.refuse(f"`{name}`, a detector that prepares its images itself", "size", "like", "layer")
    adapter: Any = detector(made)
    network = network_of(adapter)
    if network is None:
        return ProposalModel(name, adapter, Traits(type(adapter).__name__, "its own", ""))
    network.to(choose_device(hints.device))
    model = adapter_model(adapter, traits=Traits(_framework_of(network), "its own", ".safetensors"), **fields)
    return replace(model, layer=hints.on_layer(model.layer))


def _open_module(made: Any, name: str, hints: Hints, fields: dict[str, Any]) -> TorchModel:
    import torch

    from logn.models.locate import locate_logits

    if not isinstance(made, torch.nn.Module):
        raise InputError(f"`{name}` gives {type(made).__name__} where a torch module is needed.")
    prepare, words = _prepare(made, name, hints)
    device = choose_device(hints.device)
    network = made.to(device).eval()

    def prepared(images: Images) -> torch.Tensor:
        return torch.stack([torch.as_tensor(prepare(image)) for image in images]).to(device)

    def run(images: Images) -> None:
        network(prepared(images))

    layer = hints.layer
    if layer is None:
        noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
        layer = locate_logits(network, inputs=prepared([noise]))
    layer = hints.on_layer(layer)
    traits = Traits(_framework_of(network), words, ".safetensors")
    return TorchModel(network=network, layer=layer, run=run, class_names=None, traits=traits, **fields)


def _prepare(made: Any, name: str, hints: Hints) -> tuple[Callable[[Any], Any], str]:
    """What turns an RGB image into the input of a torch model, and how to call it."""
    if hints.like is None and hints.size is None:
        raise InputError(
            f"`{name}` ({type(made).__name__}) does not say how its images are prepared. Pass `like` (`--like`): "
            "imagenet for most image classifiers, or a .json file."
        )
    if callable(hints.like):
        return hints.like, "a function of yours"
    like, fields = preparation(hints.like, hints.size)
    preprocessing = replace(Preprocessing() if like is None else preset_named(like).preprocessing, **fields)
    return lambda image: preprocessing.apply(image).astype("float32"), in_words(preprocessing)


def _framework_of(network: Any) -> str:
    return f"{type(network).__module__.partition('.')[0]}, {type(network).__name__}"


def _save_state(model: TorchModel, path: Path) -> None:
    from safetensors.torch import save_file

    weights = model.network.state_dict()
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}, path)
    path.chmod(path.stat().st_mode | 0o044)  # safetensors makes files that only their owner may read


def _load_state(model: TorchModel, path: Path) -> TorchModel:
    """The same model with the weights of the file, as the user will load them."""
    from safetensors.torch import load_file

    model.network.load_state_dict(load_file(path))
    return model


def move_to(adapter: Any, device: str) -> Any:
    """Move a detector, or the model that it wraps, to a device; what is not a torch model stays."""
    network: Any = adapter if hasattr(adapter, "to") else getattr(adapter, "model", None)
    if hasattr(network, "to"):
        network.to(device)
    return adapter


def choose_device(name: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `cuda:1` into an available device.

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
        raise InputError(f"`device` is {name!r}, but torch finds no CUDA device; use cpu.")
    return device


def call_function(name: str) -> Any:
    """Call a function of the user's: "package.module:function" or "file.py:function"."""
    module_name, _, path = name.rpartition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        function: Any = _module_in(Path(module_name)) if module_name.endswith(".py") else import_module(module_name)
        for part in path.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InputError(f"`{name}` cannot be imported: {error}.") from error
    if not callable(function):
        raise InputError(f"`{name}` is of type {type(function).__name__}; name a function that returns a model.")
    return function()


def _module_in(file: Path) -> ModuleType:
    """Import a file by its path, under a name that no package has."""
    if not file.is_file():
        raise InputError(f"There is no Python file `{file}`.")
    name = f"_logn_{file.stem}_{abs(hash(file.resolve()))}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise InputError(f"`{file}` cannot be imported as a Python file.")
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _adapter(module: str, name: str) -> Any:
    return getattr(import_module(f"logn.models.frameworks.{module}_detector"), name)
