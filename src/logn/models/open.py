"""The one door to models: what a path, a name or an object is, and how it is opened."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from logn.errors import InputError, MissingExtraError
from logn.models.frameworks import transformers, ultralytics
from logn.models.frameworks.known import NAMES, framework_of
from logn.models.frameworks.shared import LoadedFile, Traits
from logn.models.hints import Hints, choose_device
from logn.models.images import Images
from logn.models.layer import LogitLayer, count_columns
from logn.models.locate import locate_logits
from logn.models.opened import (
    OpenedModel,
    ProposalModel,
    TorchModel,
    load_state,
    network_of,
    prepared,
    save_state,
    torch_model,
)
from logn.models.preprocessing import Preprocessing, preset_named
from logn.models.proposals import ProposingDetector

if TYPE_CHECKING:
    from torch import nn

KNOWN = (
    "an `.onnx` file, a Hugging Face folder (as save_pretrained writes it), a `.pt` file of Ultralytics, or a "
    "function that returns a model: `package.module:function` or `file.py:function`"
)
FUNCTION = re.compile(r"(?:[A-Za-z_][\w.]*|.+\.py):[A-Za-z_][\w.]*")
_WEIGHTS = "a file of weights without a model: name its folder, or a function that returns the model with them"
# Frameworks with files of their own.
_READERS: dict[str, Callable[[Path, Hints], LoadedFile]] = {
    "ultralytics": ultralytics.open_file,
    "transformers": transformers.open_file,
}


def open_model(model: Any, hints: Hints | None = None) -> OpenedModel:
    """Open a model, to run it over images, to propose boxes, to correct it and to write it.

    Args:
        model: A path: an `.onnx` file, a Hugging Face folder, an Ultralytics `.pt`. Or "package.module:function" or
            "file.py:function", a function that returns a torch model or a detector; modules are looked up in the
            current folder, too. Or such a model.
        hints: What the user says about it.
    """
    hints = hints or Hints()
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__
    kind = kind_of(name) if isinstance(model, str | os.PathLike) else "object"
    if kind == "onnx":
        from logn.models.onnx.file import read_onnx
        from logn.models.onnx.model import OnnxModel

        return OnnxModel(read_onnx(name), hints)
    hints.refuse(f"`{name}`, which is not an ONNX file", "background", "tensor")
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", extra="torchvision") from error
    if kind in _READERS:
        hints.refuse(f"`{name}`, which is not a function", "layer")
        return _open_file(Path(name), _READERS[kind], hints)
    made = call_function(name) if kind == "function" else model
    return open_model(made, hints) if isinstance(made, str | os.PathLike) else _open_object(made, name, hints)


def detector(model: Any, *, trust: bool = False, **options: Any) -> ProposingDetector:
    """Make a source of proposals of any detector: boxes and all class logits, before any activation or suppression.

    Args:
        model: A model of torchvision, Ultralytics, transformers (with `processor=`), rfdetr, MMDetection or Detectron2
            (its `DefaultPredictor`). Or a path: a Hugging Face folder, an `.onnx` file, an Ultralytics `.pt`. Or
            "package.module:function" or "file.py:function", a function of yours that returns any of these; modules are
            looked up in the current folder, too. An object with `propose` is returned as it is.
        trust: Open a `.pt` file, which is a pickle and runs its author's code.
        options: Fields of `logn.Hints`, such as `like` for ONNX files, and what the detector of that framework takes:
            `size` for Ultralytics, `class_names` for torchvision, `processor` for transformers and so on.

    Example:
        >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large as build
        >>> adapter = detector(build(weights=None, weights_backbone=None, num_classes=3), class_names=["cat", "dog"])
        >>> adapter.num_classes, adapter.background, adapter.activation
        (2, 0, 'softmax')
    """
    if isinstance(model, str | os.PathLike):
        if kind_of(os.fspath(model)) != "function":
            return open_model(model, Hints.of({**options, "trust": trust})).detector
        model = call_function(os.fspath(model))
    if callable(getattr(model, "propose", None)):
        if options:
            name = type(model).__name__
            raise InputError(f"`{next(iter(options))}` does not apply to {name}, which has `propose`; leave it out.")
        return model  # type: ignore[no-any-return]
    if isinstance(model, str | os.PathLike):  # what the function returns
        return detector(model, trust=trust, **options)
    framework = framework_of(model)
    if framework is None:
        raise InputError(f"Expected `model` to be a detector of {NAMES}, or {KNOWN}, but got {type(model).__name__}.")
    made: ProposingDetector = framework.detector(model, **options)
    return made


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
    if transformers.is_folder(path):
        return "transformers"
    if path.is_file() and suffix in (".onnx", ".pt", ".pth"):
        return "onnx" if suffix == ".onnx" else "ultralytics"
    other = "not a model"
    if path.is_file():
        from logn.models.onnx.file import engine_file

        other = engine_file(path) or (_WEIGHTS if suffix in (".safetensors", ".bin") else other)
    raise InputError(f"`{name}` is {other}. A model is {KNOWN}.")


def _open_file(path: Path, read: Callable[[Path, Hints], LoadedFile], hints: Hints) -> TorchModel:
    """Open a file that a framework reads."""
    loaded = read(path, hints)
    network, adapter = loaded.network, loaded.detector
    return torch_model(
        network,
        _locate(network, hints, adapter),
        _class_names(str(path), loaded.class_names, hints, network, adapter),
        adapter,
        name=str(path),
        run=loaded.run,
        traits=loaded.traits,
        save=loaded.save,
        reopen=lambda written: _open_file(written, read, hints),
        is_folded=loaded.is_folded,
    )


def _open_object(made: Any, name: str, hints: Hints) -> OpenedModel:
    """A detector of a known framework, or any other torch model whose preprocessing the user gives."""
    framework = framework_of(made)
    proposes = callable(getattr(made, "propose", None))
    if not proposes and (framework is None or framework.name == "transformers"):
        return _open_module(made, name, hints)  # a detector of transformers would need its processor
    hints.refuse(f"`{name}`, a detector that prepares its images itself", "size", "like", "layer")
    adapter: Any = detector(made, **hints.detector_options)
    network = network_of(adapter)
    if network is None:
        if hints.class_names is not None:
            adapter.class_names = _own_names(name, adapter, hints)
        return ProposalModel(name, adapter, Traits(type(adapter).__name__, "its own", ""))
    network.to(choose_device(hints.device))
    return torch_model(
        network,
        _locate(network, hints, adapter),
        _class_names(name, None, hints, network, adapter),
        adapter,
        name=name,
        run=getattr(adapter, "run", None) or (lambda images: adapter.propose(prepared(adapter, images))),
        traits=Traits(_framework_name(network), "its own", ".safetensors"),
        save=save_state,
        reopen=lambda path: load_state(network, path),
    )


def _open_module(made: Any, name: str, hints: Hints) -> TorchModel:
    """A torch model without boxes, or of no known framework."""
    import torch

    if not isinstance(made, torch.nn.Module):
        raise InputError(f"`{name}` gives {type(made).__name__} where a torch module is needed.")
    prepare, words = _preparation(made, name, hints)
    device = choose_device(hints.device)
    network = made.to(device).eval()

    def batch(images: Images) -> torch.Tensor:
        return torch.stack([torch.as_tensor(prepare(image)) for image in images]).to(device)

    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    return torch_model(
        network,
        _locate(network, hints, inputs=lambda: batch([noise])),
        _class_names(name, None, hints, network),
        name=name,
        run=lambda images: network(batch(images)),
        traits=Traits(_framework_name(network), words, ".safetensors"),
        save=save_state,
        reopen=lambda path: load_state(network, path),
    )


def _locate(
    network: nn.Module, hints: Hints, adapter: Any = None, inputs: Callable[[], Any] = lambda: None
) -> LogitLayer:
    """Where the logits are: as the user says, as the detector has it, or as it is found on `inputs`."""
    layer = hints.layer or getattr(adapter, "logit_layer", None) or locate_logits(network, inputs=inputs())
    return hints.on_layer(layer)


def _class_names(
    name: str, said: tuple[str, ...] | None, hints: Hints, network: nn.Module, adapter: Any = None
) -> tuple[str, ...] | None:
    """The names of the classes: those that the model has, else the user's, which its detector then has too."""
    if hints.class_names is None:
        return said
    if said is not None and adapter is None:
        raise InputError(f"`{name}` has class names of its own: leave out `class_names` (`--class-names`).")
    if adapter is None:
        return hints.names(count_columns(network, _locate(network, hints)))
    adapter.class_names = _own_names(name, adapter, hints)
    return None


def _own_names(name: str, adapter: Any, hints: Hints) -> tuple[str, ...] | None:
    if getattr(adapter, "class_names", None) is not None:
        raise InputError(f"`{name}` has class names of its own: leave out `class_names` (`--class-names`).")
    return hints.names(adapter.num_classes)


def _preparation(made: Any, name: str, hints: Hints) -> tuple[Callable[[Any], Any], str]:
    """What turns an RGB image into the input of a torch model, and how to call it."""
    if hints.like is None and hints.size is None:
        raise InputError(
            f"`{name}` ({type(made).__name__}) does not say how its images are prepared. Pass `like` (`--like`): "
            "imagenet for most image classifiers, or a .json file."
        )
    if callable(hints.like):
        return hints.like, "a function of yours"
    base = Preprocessing() if hints.preset is None else preset_named(hints.preset).preprocessing
    preprocessing = replace(base, **hints.preparation)
    return lambda image: preprocessing.apply(image).astype("float32"), preprocessing.in_words()


def _framework_name(network: Any) -> str:
    return f"{type(network).__module__.partition('.')[0]}, {type(network).__name__}"


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
