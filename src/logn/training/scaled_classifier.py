"""Learnable weight scaling: a trained, frozen classifier in which only a scale per class is learnt."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional


class ScaledLinear(nn.Module):
    """A linear classifier with frozen weights and a scale per class that is trained (LWS; Kang et al., ICLR 2020).

    Args:
        linear: The trained classifier; its weights are shared, and frozen.
        scale_bias: Scale the bias too, `s (w x + b)`, as for image classifiers; False is `s w x + b`, as in detectors.

    Example:
        >>> layer = ScaledLinear(nn.Linear(4, 3))
        >>> [name for name, weight in layer.named_parameters() if weight.requires_grad]
        ['scale']
    """

    def __init__(self, linear: nn.Linear, *, scale_bias: bool = True) -> None:
        super().__init__()
        self.linear, self.scale_bias = linear.requires_grad_(False), scale_bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.scale = nn.Parameter(torch.ones_like(linear.weight[:, 0]))

    def forward(self, features: Tensor) -> Tensor:
        """Logits `(N, out_features)`."""
        if self.scale_bias:
            logits: Tensor = self.linear(features)
            return logits * self.scale
        bias = self.linear.bias
        logits = functional.linear(features, self.linear.weight) * self.scale
        return logits if bias is None else logits + bias

    def merged(self) -> nn.Linear:
        """The ordinary layer that gives the same logits."""
        layer = copy.deepcopy(self.linear)
        with torch.no_grad():
            layer.weight.mul_(self.scale[:, None])
            if self.scale_bias and layer.bias is not None:
                layer.bias.mul_(self.scale)
        return layer
