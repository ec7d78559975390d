"""Seesaw loss: rare classes are punished less by frequent ones, unless they are wrong (Wang et al., CVPR 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from logn_research.losses.head_loss import HeadLayout, HeadLoss, sum_across_processes


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
