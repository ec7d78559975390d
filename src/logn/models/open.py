"""The one door to models: what a path, a name or an object is, and how it is opened."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from logn.errors import InputError, MissingExtraError
from logn.models.detector import Detector, own_detector
from logn.models.hints import Hints
from logn.models.opened import CorrectableModel, ProposalModel

KNOWN = (
    "an `.onnx` file, a Hugging Face folder (as save_pretrained writes it), a `.pt` file of Ultralytics or of "
    "a whole torch model, or a function that returns a model: `package.module:function` or `file.py:function`"
)
FUNCTION = re.compile(r"(?:[A-Za-z_][\w.]*|.+\.py):[A-Za-z_][\w.]*")
_WEIGHTS = "a file of weights without a model: name its folder, or a function that returns the model with them"


def open_model(model: Any, hints: Hints | None = None) -> CorrectableModel | ProposalModel:
    """Open a model, to run it over images and to propose boxes.

    Args:
        model: A path: an `.onnx` file, a Hugging Face folder, a `.pt` of Ultralytics or of a whole torch model. Or
            "package.module:function" or "file.py:function", a function that returns a torch model or a detector. Or
            such a model. Modules are looked up in the current folder, too.
        hints: What the user says about it.
    """
    hints = hints or Hints()
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__
    kind = kind_of(name) if isinstance(model, str | os.PathLike) else "object"
    if kind == "onnx":
        from logn.models.onnx.file import read_onnx
        from logn.models.onnx.model import OnnxModel

        return OnnxModel(read_onnx(name), hints)
    background = () if isinstance(hints.layer, str) else ("background",)
    hints.refuse(f"`{name}`, which is not an ONNX file", "tensor", *background)
    with _needing_torch():
        from logn.models.torch.model import open_file, open_object, open_pickle

    if kind == "pickle":
        refuse_pickle(name, trust=hints.trust)
        _look_here()
        return open_pickle(Path(name), hints)
    if kind == "transformers":
        return open_file(Path(name), kind, hints)
    made = call_function(name) if kind == "function" else model
    if isinstance(made, str | os.PathLike):  # what a function returns
        return open_model(made, hints)
    return open_object(made, name, hints)


def open_correctable(model: Any, hints: Hints | None = None) -> CorrectableModel:
    """Open a model to correct it and to write it anew; a source of proposals without a torch module is refused."""
    opened = open_model(model, hints)
    if isinstance(opened, ProposalModel):
        raise InputError(
            f"`{opened.name}` gives {opened.detector.name}, which has no torch model to correct. `logn collect` and "
            "`logn fit` give the correction of its logits."
        )
    return opened


def detector(model: Any, *, trust: bool = False, **options: Any) -> Detector:
    """Make a source of proposals of any detector: boxes and all class logits, before any activation or suppression.

    Args:
        model: A model of torchvision, Ultralytics, transformers (with `processor=`), rfdetr or MMDetection. Or a path:
            a Hugging Face folder, an `.onnx` file, an Ultralytics `.pt`. Or "package.module:function" or
            "file.py:function", a function of yours that returns any of these; modules are looked up in the current
            folder, too. An object of yours with `propose` is wrapped in a `logn.Detector`.
        trust: Open a `.pt` file, which is a pickle and runs its author's code.
        options: Fields of `logn.Hints`, such as `like` for ONNX files, and what the detector of that framework takes:
            `size` for Ultralytics, `class_names` for torchvision, `processor` for transformers and so on.

    Example:
        >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large as build
        >>> adapter = detector(build(weights=None, weights_backbone=None, num_classes=3), class_names=["cat", "dog"])
        >>> adapter.head.num_classes, adapter.head.background, adapter.head.activation
        (2, 0, 'softmax')
    """
    if isinstance(model, str | os.PathLike):
        if kind_of(os.fspath(model)) != "function":
            return open_model(model, Hints.of({**options, "trust": trust})).detector
        model = call_function(os.fspath(model))
        if isinstance(model, str | os.PathLike):
            return detector(model, trust=trust, **options)
    own = own_detector(model)
    if own is None:
        with _needing_torch():
            from logn.models.torch.model import framework_detector
        return framework_detector(model, KNOWN, **options)
    if options:
        name = type(model).__name__
        raise InputError(f"`{next(iter(options))}` does not apply to {name}, which has `propose`; leave it out.")
    return own


@contextmanager
def _needing_torch() -> Iterator[None]:
    """Name the extra where the import of what opens torch models fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", extra="torchvision") from error


def refuse_pickle(name: str, *, trust: bool) -> None:
    """Refuse a `.pt` file that the user does not trust.

    Example:
        >>> refuse_pickle("best.pt", trust=False)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `best.pt` is a pickle: opening it runs whatever code its author put there. If you trust
        it, pass `trust`.
    """
    if not trust:
        raise InputError(
            f"`{name}` is a pickle: opening it runs whatever code its author put there. If you trust it, pass `trust`."
        )


def is_hugging_face_folder(path: Path) -> bool:
    """Whether `path` is a folder with the configuration of a model, as `save_pretrained` writes it.

    Example:
        >>> is_hugging_face_folder(Path("no such folder"))
        False
    """
    return (path / "config.json").is_file()


def kind_of(name: str) -> str:
    """What kind of model a path or name is: "onnx", "pickle", "transformers" or "function"; others are refused.

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
    if is_hugging_face_folder(path):
        return "transformers"
    if path.is_file() and suffix in (".onnx", ".pt", ".pth"):
        return "onnx" if suffix == ".onnx" else "pickle"
    other = "not a model"
    if path.is_file():
        from logn.models.onnx.file import engine_file

        other = engine_file(path) or (_WEIGHTS if suffix in (".safetensors", ".bin") else other)
    raise InputError(f"`{name}` is {other}. A model is {KNOWN}.")


def call_function(name: str) -> Any:
    """Call a function of the user's: "package.module:function" or "file.py:function"."""
    module_name, _, path = name.rpartition(":")
    _look_here()
    try:
        function: Any = _module_in(Path(module_name)) if module_name.endswith(".py") else import_module(module_name)
        for part in path.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InputError(f"`{name}` cannot be imported: {error}.") from error
    if not callable(function):
        raise InputError(f"`{name}` is of type {type(function).__name__}; name a function that returns a model.")
    return function()


def _look_here() -> None:
    """Let Python find modules of the current folder, as for a script in it."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)


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
