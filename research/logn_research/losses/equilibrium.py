"""LOCE's equilibrium loss: margins by how well each class is recognised so far (Feng et al., ICCV 2021)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from logn.errors import InputError
from logn_research.losses.head_loss import HeadLoss, sum_across_processes

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
