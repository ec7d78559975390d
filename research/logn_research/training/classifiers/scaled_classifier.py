"""Learnable weight scaling: a trained, frozen classifier in which only a scale per class is learnt."""

from __future__ import annotations

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

    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, *, scale_bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features, self.scale_bias = linear.in_features, linear.out_features, scale_bias
        # The names are those of the layer itself, so that its weights load and a correction folds into them.
        self.weight, self.bias = linear.requires_grad_(False).weight, linear.bias
        self.scale = nn.Parameter(torch.ones_like(linear.weight[:, 0]))

    def forward(self, features: Tensor) -> Tensor:
        """Logits `(N, out_features)`."""
        if self.scale_bias:
            return functional.linear(features, self.weight, self.bias) * self.scale
        logits = functional.linear(features, self.weight) * self.scale
        return logits if self.bias is None else logits + self.bias

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The ordinary layer that gives the same logits."""
        layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        layer = layer.to_empty(device=self.weight.device).to(self.weight.dtype)
        layer.weight.copy_(self.weight * self.scale[:, None])
        if self.bias is not None:
            layer.bias.copy_(self.bias * self.scale if self.scale_bias else self.bias)
        return layer
