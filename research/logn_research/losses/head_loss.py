"""HeadLoss: the frame of all losses, with what they ask of the head and what its logits mean at test time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from logn.errors import InputError
from logn.statistics.head import check_background


def class_numbers(name: str, values: npt.ArrayLike, *, above_zero: bool = False) -> Tensor:
    """One finite number of 0 or more for each foreground class, in float64.

    Args:
        name: What to call them in an error.
        values: The numbers.
        above_zero: Refuse 0 too, where a logarithm is taken.

    Example:
        >>> class_numbers("counts", [100, 10, 0], above_zero=True)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `counts` to be above 0, but got 0 for class 2; give a class without a \
sample 1, for example numpy.maximum(counts, 1).
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"Expected `{name}` to be one number per foreground class, but got shape {array.shape}.")
    bad = ~np.isfinite(array) | (array < 0)
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        raise InputError(f"Expected `{name}` to be finite and not negative, but got {array[place]} for class {place}.")
    if above_zero and (array == 0).any():
        raise InputError(
            f"Expected `{name}` to be above 0, but got 0 for class {int(np.flatnonzero(array == 0)[0])}; give a class"
            f" without a sample 1, for example numpy.maximum({name}, 1)."
        )
    return torch.from_numpy(array.copy())


def sum_across_processes(values: Tensor) -> Tensor:
    """The sum of `values` over all processes; `values` itself where there is only one. No gradient passes.

    Every process must call it the same number of times, whatever its batch holds.

    Example:
        >>> import torch
        >>> sum_across_processes(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    values = values.detach()
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return values
    total = values.clone()
    distributed.all_reduce(total)
    return total


REDUCTIONS = ("mean", "sum", "none")


@dataclass(frozen=True)
class HeadLayout:
    """What the last layer of a model must look like for a loss, and how to read it at test time.

    Args:
        columns: How many outputs the layer has.
        activation: "softmax" or "sigmoid": what turns `HeadLoss.test_logits(output)` into scores.
        background: Place of the background among these test logits: None, 0 or -1.
        initial_bias: Where the bias of every output starts.

    Example:
        >>> HeadLayout(columns=4, background=0).test_columns(3)
        4
    """

    columns: int
    activation: str = "softmax"
    background: int | None = None
    initial_bias: float = 0.0

    def test_columns(self, num_classes: int) -> int:
        """How many columns the test logits have for `num_classes` foreground classes."""
        return num_classes + (self.background is not None)


class HeadLoss(nn.Module):
    """A loss of class logits. Call it with the output of the head `(N, columns)` and labels `(N,)`.

    With a background in front (`background=0`, as in torchvision) label 0 is the background and 1..F are the
    classes; with one at the end (`background=-1`, as in MMDetection) 0..F-1 are the classes and F is the background;
    without one (`background=None`, classifiers) labels are 0..F-1.

    Logits of half precision are computed in float32. Buffers are the state of the loss: they are saved with the model
    that holds the loss, change only in training mode, and are the same in all processes.

    Args:
        num_classes: Foreground classes, F.
        background: Where the background is: None, 0 or -1.
        reduction: "mean" over the rows, "sum", or "none" for one loss per row.

    Attributes:
        layout: What the head must look like.
        test_logits: Module from the head's output to logits whose ordinary softmax or sigmoid gives the scores. It is
            the identity where the output is such already.
        uses_instances: Whether the loss wants to know which object each row belongs to, as argument `instances`.
    """

    test_logits: nn.Module
    uses_instances = False

    def __init__(self, num_classes: int, *, background: int | None, reduction: str = "mean") -> None:
        super().__init__()
        if num_classes < 1:
            raise InputError(f"Expected `num_classes` to be at least 1, but got {num_classes}.")
        if reduction not in REDUCTIONS:
            raise InputError(f"Expected `reduction` to be one of {REDUCTIONS}, but got {reduction!r}.")
        self.num_classes, self.reduction = num_classes, reduction
        self.background = check_background(background)
        self.test_logits = nn.Identity()

    @property
    def layout(self) -> HeadLayout:
        """What the head must look like: by default a column per class and one for the background, for a softmax."""
        return HeadLayout(self.num_classes + (self.background is not None), background=self.background)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch; in training mode the state takes note of the batch first."""
        logits = self.checked(logits)
        if self.training:
            self.observe(logits.detach(), labels)
        return self.reduce(self.row_losses(logits, labels))

    def observe(self, logits: Tensor, labels: Tensor) -> None:
        """Bring the state up to date before the loss of the batch."""

    def row_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row, from float32 logits; losses that need more than rows have their own `forward`."""
        raise NotImplementedError

    def activate(self, logits: Tensor) -> Tensor:
        """Scores `(N, F)`, or `(N, F + 1)` with the background in its place, from the output of the head.

        Where the head has no background column, the background's score is 0.
        """
        scores = self.test_logits(self.checked(logits))
        scores = scores.softmax(-1) if self.layout.activation == "softmax" else scores.sigmoid()
        missing = self.background is not None and self.layout.background is None
        return self.beside_background(scores, 0.0) if missing else scores

    def checked(self, logits: Tensor) -> Tensor:
        """The logits in single precision or better, after a look at their shape."""
        columns = self.layout.columns
        if logits.ndim != 2 or logits.shape[1] != columns:
            raise InputError(
                f"Expected `logits` to have shape (N, {columns}) for {type(self).__name__} of {self.num_classes}"
                f" classes, but got {tuple(logits.shape)}."
            )
        return logits if logits.dtype == torch.float64 else logits.float()

    def reduce(self, rows: Tensor) -> Tensor:
        """One number from the losses of the rows; that of an empty batch is 0 and has a gradient."""
        if self.reduction == "none":
            return rows
        return rows.sum() if self.reduction == "sum" else rows.sum() / max(len(rows), 1)

    def is_foreground(self, labels: Tensor) -> Tensor:
        """Which labels are classes, not the background."""
        if self.background is None:
            return torch.ones_like(labels, dtype=torch.bool)
        return labels > 0 if self.background == 0 else labels < self.num_classes

    def class_of(self, labels: Tensor) -> Tensor:
        """The class 0..F-1 of each label; any class where it is the background."""
        first = 1 if self.background == 0 else 0
        return (labels - first).clamp(0, self.num_classes - 1)

    def one_hot(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Targets `(N, F)`: 1 at the class of the row, all 0 for the background."""
        targets = functional.one_hot(self.class_of(labels), self.num_classes).to(dtype)
        return targets * self.is_foreground(labels)[:, None]

    def beside_background(self, foreground: Tensor, value: float) -> Tensor:
        """Put a column of `value` at the place of the background, if there is one, beside `(..., F)`."""
        if self.background is None:
            return foreground
        column = torch.full_like(foreground[..., :1], value)
        parts = (column, foreground) if self.background == 0 else (foreground, column)
        return torch.cat(parts, dim=-1)

    def count_labels(self, labels: Tensor) -> Tensor:
        """How many rows there are of each column of `beside_background`, as int64."""
        return torch.bincount(labels, minlength=self.num_classes + (self.background is not None))


def log_odds(log_probability: Tensor) -> Tensor:
    """The logit whose sigmoid is the probability, from its logarithm; finite also where that rounds to 1.

    Example:
        >>> log_odds(torch.tensor([0.25, 1.0]).log()).sigmoid()
        tensor([0.2500, 1.0000])
    """
    # Double precision, since 1 - p is a small difference for sure scores.
    log_p = log_probability.double().clamp(max=-1e-12)
    return (log_p - torch.log(-torch.expm1(log_p))).to(log_probability.dtype)
