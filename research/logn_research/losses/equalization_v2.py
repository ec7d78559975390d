"""Equalization loss v2: positive and negative gradients of each class are brought into balance (Tan et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from logn_research.losses.equalization import RARE_PRIOR_BIAS
from logn_research.losses.head_loss import HeadLayout, HeadLoss, log_odds, sum_across_processes


class EqualizationV2Loss(HeadLoss):
    """Binary cross entropy whose weights follow the ratio of positive to negative gradients of a class so far.

    With `g` that ratio and `f(g) = 1 / (1 + exp(-gamma (g - mu)))`, negatives weigh `f(g)` and positives
    `1 + alpha (1 - f(g))`; the background column always weighs 1. The gradients are added up over all iterations,
    after the loss of each, so the first iteration is plain binary cross entropy.

    Head: one column per class and one for the background, bias at the prior 0.001. Test: `sigmoid(x_c) *
    (1 - sigmoid(x_background))`. State: `positive_gradient`, `negative_gradient`, `ratio`; each batch's gradients are
    added up over all processes.

    Args:
        num_classes: Foreground classes.
        background: Where the background is: 0 or -1, or None for classifiers, which have no such column.
        gamma: Steepness of `f`.
        mu: Where `f` is one half.
        alpha: How much positives can gain.
        reduction: "mean" over the rows, "sum" or "none".

    Example:
        >>> loss = EqualizationV2Loss(3, background=-1)
        >>> loss.activate(torch.tensor([[1.0, 0.8, 0.2, 1.5]]))
        tensor([[0.1334, 0.1259, 0.1003, 0.8176]])
    """

    positive_gradient: Tensor
    negative_gradient: Tensor
    ratio: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        background: int | None,
        gamma: float = 12.0,
        mu: float = 0.8,
        alpha: float = 4.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(num_classes, background=background, reduction=reduction)
        self.gamma, self.mu, self.alpha = gamma, mu, alpha
        self.register_buffer("positive_gradient", torch.zeros(num_classes, dtype=torch.float64))
        self.register_buffer("negative_gradient", torch.zeros(num_classes, dtype=torch.float64))
        # So balanced that all weights are 1 until the first gradients are known.
        self.register_buffer("ratio", torch.full((num_classes,), 100.0, dtype=torch.float64))
        if self.background is not None:
            self.test_logits = BackgroundGate(self.background)

    @property
    def layout(self) -> HeadLayout:
        """Sigmoids, all of them very improbable at first."""
        columns = self.num_classes + (self.background is not None)
        return HeadLayout(columns, activation="sigmoid", background=self.background, initial_bias=RARE_PRIOR_BIAS)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Weight of positives and of negatives for each column."""
        balance = torch.sigmoid(self.gamma * (self.ratio - self.mu))
        positive = self.beside_background(1 + self.alpha * (1 - balance), 1.0)
        return positive, self.beside_background(balance, 1.0)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch; in training mode its gradients then join the sums."""
        logits = self.checked(logits)
        targets = functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
        positive, negative = (weight.to(logits.dtype) for weight in self.weights())
        weight = positive * targets + negative * (1 - targets)
        entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        if self.training:
            self._collect(logits.detach(), targets, weight)
        return self.reduce((weight * entropy).sum(1))

    def _collect(self, logits: Tensor, targets: Tensor, weight: Tensor) -> None:
        gradient = ((logits.sigmoid() - targets).abs() * weight).double()
        sums = torch.stack(((gradient * targets).sum(0), (gradient * (1 - targets)).sum(0)))
        sums = sum_across_processes(sums)
        classes = slice(1, None) if self.background == 0 else slice(self.num_classes)
        self.positive_gradient += sums[0, classes]
        self.negative_gradient += sums[1, classes]
        self.ratio.copy_(self.positive_gradient / (self.negative_gradient + 1e-10))


class BackgroundGate(nn.Module):
    """Logits of `sigmoid(x_c) * (1 - sigmoid(x_background))`; the background's own stays as it is.

    Args:
        background: Place of the background column, 0 or -1.

    Example:
        >>> BackgroundGate(0)(torch.tensor([[0.0, 0.0]])).sigmoid()
        tensor([[0.5000, 0.2500]])
    """

    def __init__(self, background: int) -> None:
        super().__init__()
        self.background = background

    def forward(self, logits: Tensor) -> Tensor:
        """Logits for an ordinary sigmoid."""
        place = self.background % logits.shape[1]
        background = logits[:, place : place + 1]
        gated = log_odds(functional.logsigmoid(logits) + functional.logsigmoid(-background))
        columns = torch.arange(logits.shape[1], device=logits.device)
        return torch.where(columns == place, logits, gated)
