"""What kind of model a path or a name stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from logn.deploy.transformers_folder import CONFIG
from logn.errors import InputError, MissingExtraError
from logn.evaluate.models.model_kinds import Correctable
from logn.evaluate.models.onnx_model import LogitHints, open_onnx
from logn.evaluate.models.open import FUNCTION, choose_device
from logn.logits.images import Preprocessing, preset_named
from logn.logits.onnx.file import engine_file

KNOWN = (
    "an `.onnx` file, a Hugging Face folder (as save_pretrained writes it), a `.pt` file of Ultralytics, or a "
    "function that returns a model: `package.module:function` or `file.py:function`"
)
_OTHERS = {
    ".safetensors": "weights without a model: name its folder, or a function that returns the model with them",
    ".bin": "weights without a model: name its folder, or a function that returns the model with them",
}


def open_model(
    name: str, hints: LogitHints, like: str | None, given: Mapping[str, Any], *, trust: bool, device: str
) -> Correctable:
    """Open a model to correct it.

    Args:
        name: A path, or "package.module:function".
        hints: What the user says about its logits.
        like: The name of a preset for the preprocessing.
        given: Fields of a `Preprocessing` that the user gives.
        trust: Whether a pickle may be opened.
        device: Where a model of torch runs.
    """
    path = Path(name)
    if path.suffix.lower() == ".onnx":
        return open_onnx(path, like, given, hints)
    if not path.exists() and not FUNCTION.fullmatch(name):
        raise InputError(f"Expected `{name}` to be {KNOWN}, but there is no such file or folder.")
    other = engine_file(path) or _OTHERS.get(path.suffix.lower())
    if other is not None and path.is_file():
        raise InputError(f"Expected `{name}` to be {KNOWN}, but it is {other}.")
    hints.refuse(f"`{name}`")
    return _open_torch(name, path, hints.activation, like, given, trust=trust, device=device)


def _open_torch(
    name: str,
    path: Path,
    activation: str | None,
    like: str | None,
    given: Mapping[str, Any],
    *,
    trust: bool,
    device: str,
) -> Correctable:
    try:
        from logn.evaluate.models import torch_files
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "torchvision"):
            raise
        raise MissingExtraError(error.name, extra="torchvision") from error
    opening = torch_files.Opening(
        choose_device(device), trust, given.get("size"), activation, _preprocessing(path, like, given)
    )
    if not path.exists():
        return torch_files.open_function(name, opening)
    if path.suffix.lower() in (".pt", ".pth") and path.is_file():
        return torch_files.open_ultralytics_file(path, opening)
    if (path / CONFIG).is_file():
        return torch_files.open_transformers(path, opening)
    raise InputError(f"Expected `{name}` to be {KNOWN}, but it is none of these.")


def _preprocessing(path: Path, like: str | None, given: Mapping[str, Any]) -> Preprocessing | None:
    """What the user says in full; the size alone is for models that say the rest themselves."""
    if like is None and not {*given} - ({"size"} if path.exists() else set()):
        return None
    base = Preprocessing() if like is None else preset_named(like).preprocessing
    return replace(base, **given)
