"""Class layers: linear, normalised and scaled ones; box regressors and mask predictors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from logn.errors import InputError


class ScaledLinear(nn.Module):
    """A linear classifier with frozen weights and a scale per class that is trained (LWS; Kang et al., ICLR 2020).

    Args:
        linear: The trained classifier; its weights are shared, and frozen.

    Example:
        >>> layer = ScaledLinear(nn.Linear(4, 3))
        >>> [name for name, weight in layer.named_parameters() if weight.requires_grad]
        ['scale']
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # The names are those of the layer itself, so that its weights load and a correction folds into them.
        self.weight, self.bias = linear.requires_grad_(False).weight, linear.bias
        self.scale = nn.Parameter(torch.ones_like(linear.weight[:, 0]))

    def forward(self, features: Tensor) -> Tensor:
        """Logits `(N, out_features)`."""
        logits = functional.linear(features, self.weight) * self.scale
        return logits if self.bias is None else logits + self.bias


CLASSIFIERS = ("linear", "cosine", "scaled")


def _unit(values: Tensor, *, dim: int, power: float, eps: float) -> Tensor:
    """Divide by the norm to the given power; `eps` is added to it, as in the reference, not taken as a floor."""
    norm: Tensor = torch.linalg.vector_norm(values, dim=dim, keepdim=True)
    return values / ((norm if power == 1.0 else norm**power) + eps)


class NormedLinear(nn.Module):
    """A linear layer on unit features and unit weights: `T · x/(|x|^a + e) · w/(|w|^a + e) + b`.

    The temperature is kept per class, so that a per-class affine map of the logits folds into this layer exactly:
    multiply `temperature` and `bias` by the scale, then add the shift to `bias`. It is a buffer: it is saved with
    the weights and not trained.

    Args:
        in_features: Length of a feature vector.
        out_features: How many logits come out.
        temperature: The factor T.
        power: The exponent a of both norms; 1 gives the cosine.
        eps: The small number e that is added to both norms.

    Example:
        >>> layer = NormedLinear(2, 1, temperature=20.0)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 4.0]]))
        >>> round(layer(torch.tensor([[6.0, 8.0]])).item(), 3)
        20.0
    """

    temperature: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        temperature: float = 20.0,
        power: float = 1.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.power, self.eps = power, eps
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.register_buffer("temperature", torch.full((out_features,), float(temperature)))
        nn.init.normal_(self.weight, std=0.01)

    def forward(self, features: Tensor) -> Tensor:
        """Logits `(N, out_features)` of features `(N, in_features)`."""
        weight = _unit(self.weight, dim=1, power=self.power, eps=self.eps)
        unit = _unit(features, dim=1, power=self.power, eps=self.eps)
        return functional.linear(unit, weight) * self.temperature + self.bias


class NormedConv2d(nn.Module):
    """The 1x1 convolution that does at every position what `NormedLinear` does to a vector.

    Example:
        >>> layer = NormedConv2d(8, 3)
        >>> layer(torch.randn(2, 8, 5, 5)).shape
        torch.Size([2, 3, 5, 5])
    """

    temperature: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        temperature: float = 20.0,
        power: float = 1.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.power, self.eps = power, eps
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self.register_buffer("temperature", torch.full((out_channels,), float(temperature)))
        nn.init.normal_(self.weight, std=0.01)

    def forward(self, features: Tensor) -> Tensor:
        """Logits `(N, out_channels, H, W)` of features `(N, in_channels, H, W)`."""
        weight = _unit(self.weight, dim=1, power=self.power, eps=self.eps)
        unit = _unit(features, dim=1, power=self.power, eps=self.eps)
        return functional.conv2d(unit, weight) * self.temperature[:, None, None] + self.bias[:, None, None]


def class_layer(kind: str, in_features: int, columns: int, *, temperature: float) -> nn.Module:
    """Make the layer whose output are the class logits: `linear`, `cosine` or `scaled` (frozen but for a scale).

    Args:
        kind: One of `CLASSIFIERS`.
        in_features: Length of a feature vector.
        columns: How many logits come out.
        temperature: Of the cosine classifier.

    Example:
        >>> class_layer("cosine", 4, 3, temperature=20.0)
        NormedLinear()
    """
    if kind in ("linear", "scaled"):
        layer = nn.Linear(in_features, columns)
        nn.init.normal_(layer.weight, std=0.01)
        nn.init.zeros_(layer.bias)
        return layer if kind == "linear" else ScaledLinear(layer)
    if kind == "cosine":
        return NormedLinear(in_features, columns, temperature=temperature)
    raise InputError(f"Expected `classifier` to be one of {CLASSIFIERS}, but got {kind!r}.")


class BoxPredictor(nn.Module):
    """Class logits and box offsets of each region; the names of its layers are torchvision's.

    Args:
        in_features: Length of a region's feature vector.
        num_classes: Foreground classes; there is one more column, the background, in column 0.
        classifier: `linear`, `cosine` or `scaled`.
        temperature: Of the cosine classifier.
        class_agnostic: One box per region instead of one per column.
        logits: How many logits the loss wants, instead of one per column.
        initial_bias: Where the bias of the logits starts.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        classifier: str,
        temperature: float,
        class_agnostic: bool,
        logits: int | None = None,
        initial_bias: float = 0.0,
    ) -> None:
        super().__init__()
        self.cls_score = class_layer(classifier, in_features, logits or num_classes + 1, temperature=temperature)
        nn.init.constant_(self.cls_score.get_parameter("bias"), initial_bias)
        self.bbox_pred = nn.Linear(in_features, 4 if class_agnostic else 4 * (num_classes + 1))
        nn.init.normal_(self.bbox_pred.weight, std=0.001)
        nn.init.zeros_(self.bbox_pred.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, `(N, F + 1)` unless the loss wants others, and offsets `(N, 4)` or `(N, 4 (F + 1))`."""
        features = features.flatten(start_dim=1)
        return self.cls_score(features), self.bbox_pred(features)


class MaskPredictor(nn.Module):
    """Double the resolution, then one mask logit per position and class (or one for all classes).

    Asked for certain classes, it computes only their masks: with LVIS's 1,203 classes that saves nearly all of the
    work and gigabytes of memory, and changes neither the result nor the gradient.

    Args:
        in_channels: Channels of the mask features.
        hidden: Channels after the transposed convolution.
        columns: 1 for class-agnostic masks, else F + 1 with an unused background in column 0.
        classifier: `linear` for a plain 1x1 convolution, `cosine` for the normalised one.
        temperature: Of the normalised convolution.
    """

    mask_fcn_logits: nn.Conv2d | NormedConv2d

    def __init__(self, in_channels: int, hidden: int, columns: int, *, classifier: str, temperature: float) -> None:
        super().__init__()
        self.conv5_mask = nn.ConvTranspose2d(in_channels, hidden, 2, 2)
        nn.init.kaiming_normal_(self.conv5_mask.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(torch.as_tensor(self.conv5_mask.bias))
        if classifier == "cosine":
            self.mask_fcn_logits = NormedConv2d(hidden, columns, temperature=temperature)
        else:
            self.mask_fcn_logits = nn.Conv2d(hidden, columns, 1)

    def forward(self, features: Tensor, columns: Tensor | None = None) -> Tensor:
        """Mask logits `(N, columns, 2H, 2W)`, or `(N, 2H, 2W)` of the given column of each region."""
        hidden = functional.relu(self.conv5_mask(features), inplace=True)
        layer = self.mask_fcn_logits
        if columns is None:
            logits: Tensor = layer(hidden)
            return logits
        if layer.weight.shape[0] == 1:
            return layer(hidden)[:, 0]  # type: ignore[no-any-return]
        weight, bias = layer.weight[columns].flatten(start_dim=1), torch.as_tensor(layer.bias)[columns]
        if isinstance(layer, NormedConv2d):
            weight = _unit(weight, dim=1, power=layer.power, eps=layer.eps) * layer.temperature[columns, None]
            hidden = _unit(hidden, dim=1, power=layer.power, eps=layer.eps)
        chosen = torch.bmm(weight[:, None], hidden.flatten(start_dim=2))
        return chosen.reshape(len(hidden), *hidden.shape[2:]) + bias[:, None, None]
