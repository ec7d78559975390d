"""Online inverse LogN: the paper's eq. 3, which trains against the inverse of the correction."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from logn.errors import InputError
from logn_research.losses.head_loss import HeadLoss, sum_across_processes


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
