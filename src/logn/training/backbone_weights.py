"""Reading the weights of a ResNet from a local file; nothing is ever downloaded."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from logn.errors import InputError


def read_backbone_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read a state dict from a `.safetensors` file or from a file that `torch.save` wrote.

    Only tensors are read: a file that asks for any other Python object is refused, not run.

    Args:
        path: The file, with torchvision's names (`conv1.weight`, `layer1.0.bn1.weight`, …).
    """
    if not Path(path).is_file():
        raise InputError(f"Expected `weights` to be a file, but there is no `{path}`.")
    try:
        if Path(path).suffix == ".safetensors":
            state: Any = load_file(str(path))
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # PyTorch's own message advises to run what the file asks for
            reason = "it is not a file of tensors alone, as `torch.save(model.state_dict(), path)` writes"
        raise InputError(f"Expected `{path}` to hold weights, but it cannot be read ({reason}).") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise InputError(f"Expected `{path}` to hold a state dict of tensors, but got {type(state).__name__}.")
    return dict(state)
