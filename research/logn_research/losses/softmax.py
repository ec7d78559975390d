"""Losses that end in a softmax: cross entropy, balanced softmax, Seesaw, LOCE's equilibrium loss, online LogN."""

from __future__ import annotations

import math

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from logn.errors import InputError
from logn.methods.checks import checked_number
from logn_research.losses.head_loss import HeadLayout, HeadLoss, class_numbers, sum_across_processes


class CrossEntropyLoss(HeadLoss):
    """`-log softmax(x)_y`.

    Head: one column per class and one for the background. Test: softmax. State: none.

    Args:
        num_classes: Foreground classes.
        background: Where the background is: None, 0 or -1.
        reduction: "mean", "sum" or "none".

    Example:
        >>> import torch
        >>> loss = CrossEntropyLoss(3, background=-1)
        >>> loss(torch.tensor([[2.0, 0.5, -1.0, 3.0]]), torch.tensor([0]))
        tensor(1.3841)
    """

    def row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        return functional.cross_entropy(logits, labels, reduction="none")


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


class SeesawLoss(HeadLoss):
    """Cross entropy of `x_j + log(M_yj K_yj)` among the classes, with a separate objectness for the background.

    Mitigation `M_yj = (N_j / N_y)^p` where class j has been seen less often than class y, else 1; compensation
    `K_yj = (s_j / max(s_y, eps))^q` where that is above 1, else 1, with `s` the softmax of the class logits. `N` counts
    the rows seen in training, the present batch included.

    Head: with a background, F class columns and then two of objectness (foreground, background), whatever the place
    of the background among labels and scores; without one, F columns. Test: softmax of the classes times that of the
    objectness, or the plain softmax. State: `counts`, added up over all processes (the reference counts in each
    process for itself).

    Args:
        num_classes: Foreground classes.
        background: Where the background is: 0 or -1; None is the plain form for classifiers.
        p: Strength of the mitigation.
        q: Strength of the compensation.
        eps: Floor of the true class's score in the compensation.
        reduction: "mean" over all rows (so the class term is not a mean over the foreground), "sum" or "none".

    Example:
        >>> loss = SeesawLoss(3, background=-1)
        >>> loss.activate(torch.tensor([[1.0, 0.8, 0.2, 0.3, -0.4]]))
        tensor([[0.2946, 0.2412, 0.1324, 0.3318]])
    """

    counts: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        background: int | None,
        p: float = 0.8,
        q: float = 2.0,
        eps: float = 0.01,
        reduction: str = "mean",
    ) -> None:
        super().__init__(num_classes, background=background, reduction=reduction)
        self.p, self.q, self.eps = p, q, eps
        labels = num_classes + (self.background is not None)
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int64))
        if self.background is not None:
            self.test_logits = ObjectnessTimesClass(self.background)

    @property
    def layout(self) -> HeadLayout:
        """The classes, and two more columns where there is a background."""
        extra = 0 if self.background is None else 2
        return HeadLayout(self.num_classes + extra, background=self.background)

    def observe(self, logits: Tensor, labels: Tensor) -> None:
        """Count the labels of the batch."""
        self.counts += sum_across_processes(self.count_labels(labels))

    def row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        objectness, classes = self.terms(logits, labels)
        return objectness + classes

    def terms(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Objectness and class loss of each row; the latter is 0 for the background."""
        logits = self.checked(logits)
        scores = logits[:, : self.num_classes]
        foreground, truth = self.is_foreground(labels), self.class_of(labels)
        classes = functional.cross_entropy(scores + self.log_weights(scores, truth), truth, reduction="none")
        if self.background is None:
            return torch.zeros_like(classes), classes
        objectness = functional.cross_entropy(logits[:, self.num_classes :], (~foreground).long(), reduction="none")
        return objectness, torch.where(foreground, classes, 0.0)

    def log_weights(self, logits: Tensor, truth: Tensor) -> Tensor:
        """`log(M K)` for each row and class; 0 at the true class. No gradient passes."""
        seen = self.counts[1:] if self.background == 0 else self.counts[: self.num_classes]
        log_seen = seen.clamp(min=1).to(logits.dtype).log()
        mitigation = self.p * (log_seen - log_seen[truth][:, None]).clamp(max=0)
        score = logits.detach().log_softmax(-1)
        floor = torch.tensor(self.eps, dtype=score.dtype, device=score.device).log()
        true_score = score.gather(1, truth[:, None])
        compensation = self.q * (score - torch.maximum(true_score, floor)).clamp(min=0)
        return mitigation + compensation


class ObjectnessTimesClass(nn.Module):
    """From F class logits and two of objectness to the logarithms of the scores, which a softmax leaves as they are.

    Args:
        background: Where the background's score goes: 0 or -1.

    Example:
        >>> ObjectnessTimesClass(0)(torch.tensor([[0.0, 0.0, 0.0, 0.0]])).softmax(-1)
        tensor([[0.5000, 0.2500, 0.2500]])
    """

    def __init__(self, background: int) -> None:
        super().__init__()
        self.background = background

    def forward(self, logits: Tensor) -> Tensor:
        """Logarithms of the scores `(N, F + 1)`."""
        objectness = logits[:, -2:].log_softmax(-1)
        classes = logits[:, :-2].log_softmax(-1) + objectness[:, :1]
        parts = (objectness[:, 1:], classes) if self.background == 0 else (classes, objectness[:, 1:])
        return torch.cat(parts, dim=1)


INITIAL_SCORE = 0.01


class EquilibriumLoss(HeadLoss):
    """Cross entropy of `x + log s`, with `s` the running mean of the score that each class gets where it is true.

    Each object brings one value, the mean softmax score of its rows at their class. With `k` values of mean `v` a
    class moves by `s <- a^k s + (1 - a^k) v`, before the loss of the same batch. The background's `s` is fixed.

    Head: one column per class and one for the background. Test: softmax. State: `mean_score`; the values of all
    processes count.

    Args:
        num_classes: Foreground classes.
        background: Where the background is: None, 0 or -1.
        decay: The `a` above.
        background_score: The `s` of the background.
        reduction: "mean", "sum" or "none".

    Example:
        >>> loss = EquilibriumLoss(3, background=-1).eval()
        >>> loss(torch.tensor([[2.0, 0.5, -1.0, 3.0]]), torch.tensor([0]))  # all s are equal: cross entropy
        tensor(1.3841)
    """

    mean_score: Tensor
    uses_instances = True

    def __init__(
        self,
        num_classes: int,
        *,
        background: int | None,
        decay: float = 0.9,
        background_score: float = INITIAL_SCORE,
        reduction: str = "mean",
    ) -> None:
        super().__init__(num_classes, background=background, reduction=reduction)
        if not 0 <= decay < 1:
            raise InputError(f"Expected `decay` to be from 0 to below 1, but got {decay}.")
        self.decay, self.background_score = decay, background_score
        self.register_buffer("mean_score", torch.full((num_classes,), INITIAL_SCORE, dtype=torch.float64))

    def forward(self, logits: Tensor, labels: Tensor, instances: Tensor | None = None) -> Tensor:
        """The loss of a batch.

        Args:
            logits: `(N, columns)`.
            labels: `(N,)`.
            instances: `(N,)` numbers that are equal for rows of the same object. Without them the rows of a class
                count as one object.
        """
        logits = self.checked(logits)
        if self.training:
            self.remember(*self.object_scores(logits.detach(), labels, instances))
        return self.reduce(self.row_losses(logits, labels))

    def object_scores(self, logits: Tensor, labels: Tensor, instances: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean score of each object of the batch, and its class."""
        rows = torch.where(self.is_foreground(labels))[0]
        scores = logits[rows].softmax(-1).gather(1, labels[rows, None])[:, 0].double()
        classes = self.class_of(labels[rows])
        # An object is its class and its number, so that numbers may repeat over classes.
        keys = classes[:, None] if instances is None else torch.stack((classes, instances[rows]), dim=1)
        found, place = torch.unique(keys, dim=0, return_inverse=True)
        sums = scores.new_zeros(len(found)).index_add(0, place, scores)
        return sums / torch.bincount(place, minlength=len(found)).clamp(min=1), found[:, 0]

    @torch.no_grad()
    def remember(self, scores: Tensor, classes: Tensor) -> None:
        """Let one score of each object (or of each class drawn from a memory) join the running means.

        Every process must call this in every iteration, also with nothing to add.
        """
        sums = self.mean_score.new_zeros(2, self.num_classes)
        sums[0].index_add_(0, classes, scores.detach().to(sums.dtype))
        sums[1].index_add_(0, classes, torch.ones_like(scores, dtype=sums.dtype))
        total, count = sum_across_processes(sums)
        kept = self.decay**count
        self.mean_score.mul_(kept).add_((1 - kept) * total / count.clamp(min=1))

    def row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        # A class that always scores 0 must not make the logarithm infinite.
        margin = self.beside_background(self.mean_score.clamp(min=1e-12), self.background_score).log()
        return functional.cross_entropy(logits + margin.to(logits.dtype), labels, reduction="none")


class OnlineLogitNormalizationLoss(HeadLoss):
    """Cross entropy of `x_c sqrt(var_c + eps) + mean_c - margin` for the classes; the background's logit as it is.

    Mean and variance are moving averages over the batches of the raw logits `x`, the present one included, and start
    at 0 and 1. With `bias_corrected` the start is taken out again, as in Adam: over a run that is not much longer than
    the averages span, most of them would be start. No gradient passes through them. The paper tries the margins 0
    (which helps) and "min" (which hurts).

    Head: one column per class and one for the background. Test: softmax of `x` itself. State: `mean` and `variance`;
    the batches of all processes count as one.

    Args:
        num_classes: Foreground classes.
        background: Where the background is: None, 0 or -1.
        margin: A number, or "min" for the smallest of the foreground means.
        momentum: Share of the present batch in the averages. The paper does not state its own; at this one the
            averages span about a thousand iterations.
        bias_corrected: Divide by `1 - (1 - momentum)^batches`, so that the averages hold batches only.
        eps: Added to the variance.
        reduction: "mean", "sum" or "none".

    Example:
        >>> loss = OnlineLogitNormalizationLoss(3, background=-1, eps=0.0).eval()
        >>> loss(torch.tensor([[2.0, 0.5, -1.0, 3.0]]), torch.tensor([0]))  # mean 0 and variance 1: cross entropy
        tensor(1.3841)
    """

    mean: Tensor
    variance: Tensor
    batches: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        background: int | None,
        margin: float | str = 0.0,
        momentum: float = 1e-3,
        bias_corrected: bool = False,
        eps: float = 1e-5,
        reduction: str = "mean",
    ) -> None:
        super().__init__(num_classes, background=background, reduction=reduction)
        if isinstance(margin, str) and margin != "min":
            raise InputError(f'Expected `margin` to be a number or "min", but got {margin!r}.')
        if not 0 < momentum <= 1:
            raise InputError(f"Expected `momentum` to be above 0 and at most 1, but got {momentum}.")
        self.margin, self.momentum, self.eps = margin, momentum, eps
        columns = num_classes + (self.background is not None)
        self.register_buffer("mean", torch.zeros(columns, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(columns, dtype=torch.float64))
        self.bias_corrected = bias_corrected
        if bias_corrected:  # only where it counts, so that runs from before it existed can be resumed
            self.register_buffer("batches", torch.zeros(1, dtype=torch.float64))

    def observe(self, logits: Tensor, labels: Tensor) -> None:
        """Let the mean and the unbiased variance of the batch join the averages; a batch of one row has none."""
        rows = logits.double()
        sums = sum_across_processes(torch.cat((rows.sum(0), rows.new_tensor([len(rows)]))))
        mean, count = sums[:-1] / sums[-1].clamp(min=1), sums[-1]
        squares = sum_across_processes((rows - mean).square().sum(0))
        step = torch.where(count > 1, self.momentum, 0.0)
        self.mean += step * (mean - self.mean)
        self.variance += step * (squares / (count - 1).clamp(min=1) - self.variance)
        if self.bias_corrected:
            self.batches += (count > 1).to(self.batches.dtype)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of each column, as far as they are known: 0 and 1 before the first batch."""
        if not self.bias_corrected:
            return self.mean, self.variance
        start = (1 - self.momentum) ** self.batches
        share = torch.where(self.batches > 0, 1 - start, 1.0)  # before the first batch there is nothing but the start
        left = torch.where(self.batches > 0, start, 0.0)
        return self.mean / share, (self.variance - left) / share

    def inverse(self, logits: Tensor) -> Tensor:
        """The logits as the loss sees them."""
        classes = slice(1, None) if self.background == 0 else slice(self.num_classes)
        mean, variance = (values[classes] for values in self.statistics())
        margin = mean.min() if isinstance(self.margin, str) else self.margin
        scale = self.beside_background((variance + self.eps).sqrt(), 1.0)
        shift = self.beside_background(mean - margin, 0.0)
        return logits * scale.to(logits.dtype) + shift.to(logits.dtype)

    def row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        return functional.cross_entropy(self.inverse(logits), labels, reduction="none")
