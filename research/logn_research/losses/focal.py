"""Focal loss: easy rows count less (Lin et al., ICCV 2017)."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional

from logn.errors import InputError
from logn_research.losses.head_loss import HeadLayout, HeadLoss


class SigmoidFocalLoss(HeadLoss):
    """`-a_t (1 - p_t)^g log p_t` for every class by itself, added up over classes and rows.

    Head: one column per class, none for the background (its rows have no positive class), bias at the prior 0.01.
    Test: sigmoid. State: none.

    Args:
        num_classes: Foreground classes.
        background: Which label is the background: None, 0 or -1.
        gamma: How much less easy rows count.
        alpha: Weight of positives; negatives have `1 - alpha`.
        divide_by: "positives" as one-stage detectors do, or "rows". Only for the reduction "mean".
        weight: Factor of the whole loss, against those of boxes and masks.
        reduction: "mean", "sum" or "none".

    Example:
        >>> import torch
        >>> loss = SigmoidFocalLoss(3, background=-1)
        >>> loss(torch.tensor([[2.0, 0.5, -1.0]]), torch.tensor([0]))
        tensor(0.3005)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        background: int | None,
        gamma: float = 2.0,
        alpha: float = 0.25,
        divide_by: str = "positives",
        weight: float = 1.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(num_classes, background=background, reduction=reduction)
        if divide_by not in ("positives", "rows"):
            raise InputError(f"Expected `divide_by` to be positives or rows, but got {divide_by!r}.")
        if not weight > 0:
            raise InputError(f"Expected `weight` to be above 0, but got {weight}.")
        self.gamma, self.alpha, self.divide_by, self.weight = gamma, alpha, divide_by, weight

    @property
    def layout(self) -> HeadLayout:
        """A sigmoid for each class, all of them improbable at first."""
        return HeadLayout(self.num_classes, activation="sigmoid", initial_bias=-math.log(0.99 / 0.01))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        logits = self.checked(logits)
        rows = self.row_losses(logits, labels)
        if self.reduction == "mean" and self.divide_by == "positives":
            return rows.sum() / self.is_foreground(labels).sum().clamp(min=1)
        return self.reduce(rows)

    def elements(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row and class, `(N, F)`."""
        targets = self.one_hot(labels, logits.dtype)
        probability = logits.sigmoid()
        missed = probability + targets - 2 * probability * targets  # 1 - p_t
        alpha = self.alpha * targets + (1 - self.alpha) * (1 - targets)
        entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return self.weight * alpha * missed**self.gamma * entropy

    def row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, over all classes."""
        return self.elements(logits, labels).sum(1)


class SoftmaxFocalLoss(HeadLoss):
    """`-(1 - p_y)^g log p_y` after a softmax, for classifiers and for heads with a background column.

    Head: one column per class and one for the background. Test: softmax. State: none.

    Args:
        num_classes: Foreground classes.
        background: Where the background is: None, 0 or -1.
        gamma: How much less easy rows count.
        reduction: "mean", "sum" or "none".

    Example:
        >>> import torch
        >>> loss = SoftmaxFocalLoss(3, background=None)
        >>> loss(torch.tensor([[1.0, -0.5, 0.5]]), torch.tensor([2]))
        tensor(0.4934)
    """

    def __init__(
        self, num_classes: int, *, background: int | None, gamma: float = 2.0, reduction: str = "mean"
    ) -> None:
        super().__init__(num_classes, background=background, reduction=reduction)
        self.gamma = gamma

    def row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        entropy = functional.cross_entropy(logits, labels, reduction="none")
        # expm1 rounds to a tiny negative number for sure rows, whose power would not be a number.
        missed = (-(-entropy).expm1()).clamp(min=0)
        return missed**self.gamma * entropy
