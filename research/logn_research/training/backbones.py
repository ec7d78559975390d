"""Weights of backbones from local files; nothing is ever downloaded."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from logn.errors import InputError


def read_backbone_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read a state dict from a `.safetensors` file or from a file that `torch.save` wrote.

    Only tensors are read: a file that asks for any other Python object is refused, not run.

    Args:
        path: The file, with torchvision's names (`conv1.weight`, `layer1.0.bn1.weight`, …).
    """
    if not Path(path).is_file():
        raise InputError(f"There is no file `{path}` to read `weights` from.")
    try:
        if Path(path).suffix == ".safetensors":
            state: Any = load_file(str(path))
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # PyTorch's own message advises to run what the file asks for
            reason = "it is not a file of tensors alone, as `torch.save(model.state_dict(), path)` writes"
        raise InputError(f"The weights `{path}` cannot be read: {reason}.") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise InputError(f"`{path}` holds no state dict of tensors: save `model.state_dict()`.")
    return dict(state)


def load_backbone(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put weights into a ResNet; every layer but its classifier must be there, with the same shapes.

    Args:
        network: With torchvision's names.
        weights: The state dict, in the order of the file.
    """
    # How many batches a normalisation saw: nothing depends on it, and many files don't have it.
    wanted = {
        name: tensor
        for name, tensor in network.state_dict().items()
        if not name.startswith("fc.") and not name.endswith("num_batches_tracked")
    }
    _check_weights(wanted, weights)
    network.load_state_dict({name: weights[name] for name in wanted}, strict=False)


def _check_weights(wanted: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    missing = [name for name in wanted if name not in weights]
    if missing:
        raise InputError(
            f"The `weights` do not fit the ResNet: {len(missing)} of {len(wanted)} tensors are missing, {missing[0]} "
            "first."
        )
    for name, tensor in wanted.items():
        if weights[name].shape != tensor.shape:
            shapes = tuple(tensor.shape), tuple(weights[name].shape)
            raise InputError(
                f"The `weights` do not fit the ResNet: {name} needs shape {shapes[0]}, but has {shapes[1]}."
            )
