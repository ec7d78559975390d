"""The backbones of the light detector: small networks with weights from ImageNet, made cheap to train on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torchvision.models import mobilenet_v2, mobilenet_v3_large, resnet18, resnet34
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from logn_research.training.engine.backbone_weights import load_backbone

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
        mean: Of a channel of the images that the weights were trained with, in 0..1.
        std: Of the same.
    """

    build: Callable[[], nn.Module]
    blocks: Callable[[nn.Module], list[nn.Module]]
    levels: tuple[int, int, int]
    channels: tuple[int, int, int]
    frozen: int
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)


class SamePadding(nn.ZeroPad2d):
    """TensorFlow's padding of a convolution with stride 2 on an even number of pixels: the odd pixel comes last."""

    def __init__(self, kernel: int) -> None:
        before, after = (kernel - 2) // 2, (kernel - 1) // 2
        super().__init__((before, after, before, after))


def _convolution(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    padding = [SamePadding(kernel)] if stride == 2 else []
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=0 if padding else kernel // 2, groups=groups, bias=False)
    return [*padding, layer, nn.BatchNorm2d(outputs, eps=1e-3)]


class LiteBlock(nn.Module):
    """An inverted residual of EfficientNet-lite: expand, convolve each channel on its own, project."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = inputs * expand
        first = [*_convolution(inputs, inner), nn.ReLU6(inplace=True)] if expand > 1 else []
        self.layers = nn.Sequential(
            *first,
            *_convolution(inner, inner, kernel, stride, groups=inner),
            nn.ReLU6(inplace=True),
            *_convolution(inner, outputs),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Features of the next block."""
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


class EfficientNetLite0(nn.Sequential):
    """EfficientNet-lite0 without its last convolution and classifier: a stem and sixteen blocks."""

    # Kernel, stride, expansion, channels and number of blocks.
    STAGES = (
        (3, 1, 1, 16, 1),
        (3, 2, 6, 24, 2),
        (5, 2, 6, 40, 2),
        (3, 2, 6, 80, 3),
        (5, 1, 6, 112, 3),
        (5, 2, 6, 192, 4),
        (3, 1, 6, 320, 1),
    )

    def __init__(self) -> None:
        blocks: list[nn.Module] = [nn.Sequential(*_convolution(3, 32, 3, 2), nn.ReLU6(inplace=True))]
        inputs = 32
        for kernel, stride, expand, outputs, repeats in self.STAGES:
            for place in range(repeats):
                step = stride if place == 0 else 1
                blocks.append(LiteBlock(inputs, outputs, kernel=kernel, stride=step, expand=expand))
                inputs = outputs
        super().__init__(*blocks)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def _features(network: nn.Module) -> list[nn.Module]:
    return list(network.get_submodule("features").children())


def _residual_stages(network: nn.Module) -> list[nn.Module]:
    parts = dict(network.named_children())
    stem = nn.Sequential(parts["conv1"], parts["bn1"], parts["relu"], parts["maxpool"])
    return [stem, *(parts[f"layer{number}"] for number in range(1, 5))]


BACKBONES = {
    "mobilenet-v2": BackboneKind(mobilenet_v2, _features, (7, 14, 18), (32, 96, 320), frozen=4),
    "mobilenet-v3-large": BackboneKind(mobilenet_v3_large, _features, (7, 13, 16), (40, 112, 160), frozen=4),
    "efficientnet-lite0": BackboneKind(
        EfficientNetLite0,
        lambda network: list(network.children()),
        (6, 12, 17),
        (40, 112, 320),
        frozen=4,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
    ),
    "resnet18": BackboneKind(resnet18, _residual_stages, (3, 4, 5), (128, 256, 512), frozen=2),
    "resnet34": BackboneKind(resnet34, _residual_stages, (3, 4, 5), (128, 256, 512), frozen=2),
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
        weights: State dict of the network, with torchvision's names, or the names of another in the same order.

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
