"""Backbones of the light detector, and weights from local files; nothing is ever downloaded."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import mobilenet_v2, resnet18
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

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


def load_backbone(
    network: nn.Module, weights: Mapping[str, Tensor], *, what: str = "the ResNet", used: nn.Module | None = None
) -> None:
    """Put weights into a network; every layer but its classifier must be there, with the same shapes.

    Args:
        network: With torchvision's names.
        weights: The state dict, in the order of the file.
        what: The network, in words.
        used: The part of the network that is needed; by default all but its classifier.
    """
    wanted = _needed(network, used)
    _check_weights(wanted, weights, what)
    network.load_state_dict({name: weights[name] for name in wanted}, strict=False)


def _needed(network: nn.Module, used: nn.Module | None) -> dict[str, Tensor]:
    everything = _counted_out(network.state_dict(keep_vars=True))
    if used is None:
        return {name: tensor for name, tensor in everything.items() if not name.startswith("fc.")}
    ours = {id(tensor) for tensor in used.state_dict(keep_vars=True).values()}
    return {name: tensor for name, tensor in everything.items() if id(tensor) in ours}


def _counted_out(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # How many batches a normalisation saw: nothing depends on it, and many files don't have it.
    return {name: tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")}


def _check_weights(wanted: Mapping[str, Tensor], weights: Mapping[str, Tensor], what: str) -> None:
    missing = [name for name in wanted if name not in weights]
    if missing:
        raise InputError(
            f"The `weights` do not fit {what}: {len(missing)} of {len(wanted)} tensors are missing, {missing[0]} first."
        )
    for name, tensor in wanted.items():
        if weights[name].shape != tensor.shape:
            shapes = tuple(tensor.shape), tuple(weights[name].shape)
            raise InputError(f"The `weights` do not fit {what}: {name} needs shape {shapes[0]}, but has {shapes[1]}.")


PYRAMID_CHANNELS = 96
#: Pixels of the image per cell, of each level that regions are sampled from.
STRIDES = {"0": 8, "1": 16, "2": 32}
# Images that the frozen blocks see at once on a CPU: their activations stay in its cache, twice as quick as 16.
FROZEN_IMAGES = 1


@dataclass(frozen=True)
class BackboneKind:
    """One of the networks.

    Args:
        build: Makes the whole network, with random weights.
        blocks: Gives its blocks, one after the other, without its classifier.
        levels: Number of blocks after which the features have stride 8, 16 and 32.
        channels: Channels of these features.
        frozen: How many of the blocks stay as they are where weights are given: those of stride 2 and 4.
    """

    build: Callable[[], nn.Module]
    blocks: Callable[[nn.Module], list[nn.Module]]
    levels: tuple[int, int, int]
    channels: tuple[int, int, int]
    frozen: int


def _features(network: nn.Module) -> list[nn.Module]:
    return list(network.get_submodule("features").children())


def _residual_stages(network: nn.Module) -> list[nn.Module]:
    parts = dict(network.named_children())
    stem = nn.Sequential(parts["conv1"], parts["bn1"], parts["relu"], parts["maxpool"])
    return [stem, *(parts[f"layer{number}"] for number in range(1, 5))]


BACKBONES = {
    "mobilenet-v2": BackboneKind(mobilenet_v2, _features, (7, 14, 18), (32, 96, 320), frozen=4),
    "resnet18": BackboneKind(resnet18, _residual_stages, (3, 4, 5), (128, 256, 512), frozen=2),
}


class FoldedConv2d(nn.Conv2d):
    """A convolution and the frozen batch normalisation after it, in one: the weight is scaled, not the output.

    The same output and the same gradient of the weight as the two layers, without their two more passes over the
    activations.

    Example:
        >>> layers = nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3).eval()
        >>> x = torch.rand(1, 2, 4, 4)
        >>> torch.allclose(FoldedConv2d(*layers)(x), layers[1](layers[0](x)), atol=1e-6)
        True
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, layer: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            groups=layer.groups,
            bias=False,
        )
        self.weight = layer.weight
        mean, variance = torch.as_tensor(norm.running_mean), torch.as_tensor(norm.running_var)
        scale = norm.weight.detach() / (variance + norm.eps).sqrt()
        # PyTorch has no quick bfloat16 gradient of these on a CPU: it takes four times as long as in float32.
        self.keeps_float = layer.groups == layer.in_channels and max(layer.stride) > 1
        self.register_buffer("scale", scale[:, None, None, None])
        self.register_buffer("shift", norm.bias.detach() - mean * scale)

    def forward(self, input: Tensor) -> Tensor:
        """What the normalisation would give."""
        if self.keeps_float and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                full: Tensor = self._conv_forward(input.float(), self.weight * self.scale, self.shift)
            return full
        normed: Tensor = self._conv_forward(input, self.weight * self.scale, self.shift)
        return normed


def fold_norms(module: nn.Module) -> None:
    """Freeze every batch normalisation that follows a convolution, and fold it into that layer.

    Example:
        >>> block = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3), nn.ReLU())
        >>> fold_norms(block)
        >>> [type(layer).__name__ for layer in block]
        ['FoldedConv2d', 'Identity', 'ReLU']
    """
    before: tuple[str, nn.Module] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d) and before is not None and isinstance(before[1], nn.Conv2d):
            setattr(module, before[0], FoldedConv2d(before[1], child))
            setattr(module, name, nn.Identity())
        else:
            fold_norms(child)
        before = name, child


class LightBackbone(nn.Module):
    """A small network and a feature pyramid of strides 8, 16, 32 and 64.

    With weights, its normalisation is frozen, and its first blocks are frozen and run without gradients. Without them
    all of it is trained.

    Args:
        name: One of `BACKBONES`.
        pretrained: Whether there are weights, now or from a checkpoint later.
        weights: State dict of the network, with torchvision's names.

    Example:
        >>> backbone = LightBackbone("resnet18")
        >>> {name: tuple(x.shape) for name, x in backbone(torch.zeros(1, 3, 64, 64)).items()}
        {'0': (1, 96, 8, 8), '1': (1, 96, 4, 4), '2': (1, 96, 2, 2), 'pool': (1, 96, 1, 1)}
    """

    out_channels = PYRAMID_CHANNELS

    def __init__(self, name: str, *, pretrained: bool = False, weights: dict[str, Tensor] | None = None) -> None:
        super().__init__()
        kind = BACKBONES[name]
        network = kind.build()
        used = nn.Sequential(*kind.blocks(network)[: kind.levels[-1]])
        if weights is not None:
            load_backbone(network, weights, what=name, used=used)
        self.frozen = nn.Sequential()
        if pretrained:
            fold_norms(used)
            self.frozen = used[: kind.frozen].requires_grad_(False)
        first = len(self.frozen)
        ends = (first, *kind.levels)
        self.stages = nn.ModuleList(used[start:end] for start, end in pairwise(ends))
        self.pyramid = FeaturePyramidNetwork(list(kind.channels), PYRAMID_CHANNELS, LastLevelMaxPool())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Pyramid features of a batch of images, whose sides are multiples of 32."""
        x = images.contiguous(memory_format=torch.channels_last)
        if len(self.frozen):
            with torch.no_grad():
                at_once = FROZEN_IMAGES if x.device.type == "cpu" else len(x)
                x = torch.cat([self.frozen(part) for part in torch.split(x, at_once)])
        levels = {}
        for name, stage in zip(STRIDES, self.stages, strict=True):
            x = levels[name] = stage(x)
        features: dict[str, Tensor] = self.pyramid(levels)
        return features
