"""Losses with the class frequencies in the logits: balanced softmax and the logit-adjusted loss."""

from __future__ import annotations

import math

import numpy.typing as npt
from torch import Tensor
from torch.nn import functional

from logn.calibrators.checks import checked_number
from logn_research.losses.head_loss import HeadLoss, class_numbers


class LogitAdjustedLoss(HeadLoss):
    """Cross entropy of `x + tau log(prior)` (Menon et al., ICLR 2021).

    Head: one column per class and one for the background. Test: softmax of `x` itself. State: none.

    Args:
        counts: Training samples of each foreground class, above 0.
        background: Where the background is: None, 0 or -1.
        tau: Strength; 0 is cross entropy.
        background_count: Samples of the background, by default as many as of all classes together: its logit is then
            left alone, as by `logn.methods.logit_adjustment`.
        reduction: "mean", "sum" or "none".

    Example:
        >>> import torch
        >>> loss = LogitAdjustedLoss([100, 10, 1], background=None)
        >>> loss(torch.tensor([[0.0, 1.5, -2.0]]), torch.tensor([1]))
        tensor(1.1738)
    """

    shift: Tensor

    def __init__(
        self,
        counts: npt.ArrayLike,
        *,
        background: int | None,
        tau: float = 1.0,
        background_count: float | None = None,
        reduction: str = "mean",
    ) -> None:
        frequencies = class_numbers("counts", counts, above_zero=True)
        super().__init__(len(frequencies), background=background, reduction=reduction)
        total = float(frequencies.sum())
        behind = total if background_count is None else checked_number("background_count", background_count, above=0)
        strength = checked_number("tau", tau)
        shift = self.beside_background(strength * (frequencies / total).log(), strength * math.log(behind / total))
        self.register_buffer("shift", shift, persistent=False)

    def row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        return functional.cross_entropy(logits + self.shift.to(logits.dtype), labels, reduction="none")


class BalancedSoftmaxLoss(LogitAdjustedLoss):
    """Cross entropy of `x + log n` (Ren et al., NeurIPS 2020): the logit-adjusted loss with tau 1.

    Head: one column per class and one for the background. Test: softmax of `x` itself. State: none.

    Args:
        counts: Training samples of each foreground class, above 0; a common factor changes nothing.
        background: Where the background is: None, 0 or -1.
        background_count: Samples of the background, by default as many as of all classes together.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self,
        counts: npt.ArrayLike,
        *,
        background: int | None,
        background_count: float | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(counts, background=background, background_count=background_count, reduction=reduction)
