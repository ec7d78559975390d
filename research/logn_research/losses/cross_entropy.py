"""Cross entropy after a softmax: the baseline of all tables."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from logn_research.losses.head_loss import HeadLoss


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
