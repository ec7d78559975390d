"""Losses with a sigmoid for each class, and their softmax forms: focal, equalization and its second version."""

from __future__ import annotations

import math

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from logn.errors import InputError
from logn.methods.checks import checked_number
from logn_research.losses.head_loss import HeadLayout, HeadLoss, class_numbers, log_odds, sum_across_processes


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
