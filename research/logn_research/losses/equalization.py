"""Equalization loss: rare classes are spared the discouraging gradients of others (Tan et al., CVPR 2020)."""

from __future__ import annotations

import math

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from logn.calibrators.checks import checked_number
from logn.errors import InputError
from logn_research.losses.head_loss import HeadLayout, HeadLoss, class_numbers

# The prior probability 0.001 that the sigmoid heads of EQL and EQL v2 start from.
RARE_PRIOR_BIAS = -math.log(0.999 / 0.001)


class EqualizationLoss(HeadLoss):
    """Binary cross entropy per class, in which foreground rows of other classes don't push rare classes down.

    Head: one column per class, none for the background, bias at the prior 0.001. Test: sigmoid. State: none.

    Args:
        image_frequencies: Share of the annotated training images that hold each class.
        background: Which label is the background: None, 0 or -1.
        threshold: Classes with a smaller share are rare; 0.0011 is for LVIS v1 (0.00177 for v0.5).
        reduction: "mean" over the rows, "sum" or "none".

    Example:
        >>> loss = EqualizationLoss([0.5, 0.01, 0.0005], background=-1)
        >>> loss(torch.tensor([[2.0, 0.5, -1.0]]), torch.tensor([0]))
        tensor(1.1010)
    """

    rare: Tensor

    def __init__(
        self,
        image_frequencies: npt.ArrayLike,
        *,
        background: int | None,
        threshold: float = 0.0011,
        reduction: str = "mean",
    ) -> None:
        frequencies = class_numbers("image_frequencies", image_frequencies)
        super().__init__(len(frequencies), background=background, reduction=reduction)
        self.register_buffer("rare", frequencies < checked_number("threshold", threshold), persistent=False)

    @property
    def layout(self) -> HeadLayout:
        """A sigmoid for each class, all of them very improbable at first."""
        return HeadLayout(self.num_classes, activation="sigmoid", initial_bias=RARE_PRIOR_BIAS)

    def row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, over all classes."""
        targets = self.one_hot(labels, logits.dtype)
        spared = self.is_foreground(labels)[:, None] & self.rare & (targets == 0)
        entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return entropy.masked_fill(spared, 0.0).sum(1)


class SoftmaxEqualizationLoss(HeadLoss):
    """Cross entropy in whose softmax rare classes are left out at random, unless they are the true one.

    Head: one column per class and one for the background. Test: softmax. State: none.

    Args:
        class_frequencies: Share of each class among the training images (or of images that hold it).
        background: Where the background is: None, 0 or -1. Its rows keep all classes, and it is never rare.
        threshold: Classes with a smaller share are rare.
        probability: Of leaving a rare class out, drawn for every row and class.
        reduction: "mean", "sum" or "none".

    Example:
        >>> loss = SoftmaxEqualizationLoss([0.9, 0.09, 0.0001], background=None, probability=1.0)
        >>> loss(torch.tensor([[2.0, 0.5, -1.0]]), torch.tensor([0]))
        tensor(0.2014)
    """

    rare: Tensor

    def __init__(
        self,
        class_frequencies: npt.ArrayLike,
        *,
        background: int | None,
        threshold: float = 4.3e-4,
        probability: float = 0.9,
        reduction: str = "mean",
    ) -> None:
        frequencies = class_numbers("class_frequencies", class_frequencies)
        super().__init__(len(frequencies), background=background, reduction=reduction)
        if not 0 <= probability <= 1:
            raise InputError(f"Expected `probability` to be from 0 to 1, but got {probability}.")
        self.probability = probability
        rare = self.beside_background((frequencies < checked_number("threshold", threshold)).float(), 0.0) > 0
        self.register_buffer("rare", rare, persistent=False)

    def row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, with a fresh draw of the classes to leave out."""
        drawn = torch.rand(logits.shape, device=logits.device) < self.probability
        others = torch.arange(logits.shape[1], device=logits.device) != labels[:, None]
        left_out = drawn & self.rare & others & self.is_foreground(labels)[:, None]
        return functional.cross_entropy(logits.masked_fill(left_out, -math.inf), labels, reduction="none")
