"""Balanced group softmax (BAGS): classes compete only with classes about as frequent (Li et al., CVPR 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from logn.errors import InputError
from logn_research.losses.head_loss import HeadLayout, HeadLoss, class_numbers, log_odds

BOUNDARIES = (10.0, 100.0, 1000.0)


class BalancedGroupsLoss(HeadLoss):
    """The sum of a cross entropy for each group of classes and one for foreground against background.

    A group holds the classes whose counts lie between two boundaries, and an "others" for all else. Of the rows that
    are "others" to a group only `others_per_row` times as many as the group's own are drawn, and a batch without a row
    of the group does not train it.

    Head: F + groups + 2 columns: for each group "others" and then its classes in order, at last foreground and
    background. Test: softmax in each group, without "others", times the probability of the foreground; the scores do
    not add up to 1. State: none that changes; `test_logits.group_of_class` is saved, since the scores need it. The
    method's own schedule trains this layer only, on a trained and frozen detector.

    Args:
        instance_counts: Training instances of each foreground class.
        background: Where the background is among labels and scores: 0 or -1.
        boundaries: Counts where a new group begins.
        others_per_row: How many rows of "others" to draw for each of the group's own.

    Example:
        >>> loss = BalancedGroupsLoss([2000, 50, 5], background=-1)
        >>> loss.layout.columns, loss.test_logits.group_of_class.tolist()
        (9, [3, 1, 0])
    """

    test_logits: GroupScores

    def __init__(
        self,
        instance_counts: npt.ArrayLike,
        *,
        background: int | None,
        boundaries: Sequence[float] = BOUNDARIES,
        others_per_row: float = 8.0,
    ) -> None:
        counts = class_numbers("instance_counts", instance_counts)
        super().__init__(len(counts), background=background)
        if self.background is None:
            raise InputError("Expected `background` to be 0 or -1 for the balanced group softmax, but got None.")
        if list(boundaries) != sorted(set(boundaries)):
            raise InputError(f"Expected `boundaries` to be in ascending order, but got {tuple(boundaries)}.")
        self.others_per_row = others_per_row
        groups = np.searchsorted(np.asarray(boundaries, dtype=np.float64), counts.numpy(), side="right")
        self.test_logits = GroupScores(self.num_classes, len(boundaries) + 1, self.background)
        self.test_logits.group_of_class.copy_(torch.from_numpy(groups))

    @property
    def layout(self) -> HeadLayout:
        """All classes, "others" of each group, foreground and background."""
        columns = self.num_classes + self.test_logits.num_groups + 2
        return HeadLayout(columns, activation="sigmoid", background=self.background)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, with a fresh draw of the "others"."""
        logits = self.checked(logits)
        foreground, truth = self.is_foreground(labels), self.class_of(labels)
        starts, columns = self.test_logits.columns()
        total = logits[:, -2:].log_softmax(-1).gather(1, (~foreground).long()[:, None]).sum().neg() / max(
            len(labels), 1
        )
        group_of_row = torch.where(foreground, self.test_logits.group_of_class[truth], -1)
        for group in range(self.test_logits.num_groups):
            inside = group_of_row == group
            rows = self._drawn(inside)
            begin, end = int(starts[group]), int(starts[group + 1])
            target = torch.where(inside, columns[truth] - begin, 0)[rows]
            loss = functional.cross_entropy(logits[rows, begin:end], target, reduction="sum")
            total = total + loss / max(len(rows), 1)
        return total

    def _drawn(self, inside: Tensor) -> Tensor:
        """The rows of a group and a random few of the others; none where the group has no row."""
        own, others = torch.where(inside)[0], torch.where(~inside)[0]
        wanted = round(self.others_per_row * len(own))
        if wanted < len(others):
            others = others[torch.randperm(len(others), device=others.device)[:wanted]]
        return torch.cat((own, others))


class GroupScores(nn.Module):
    """From the columns of all groups to one logit per class, whose sigmoid is the score.

    Args:
        num_classes: Foreground classes.
        num_groups: Groups of classes, that of the background not counted.
        background: Where the background's score goes: 0 or -1.

    Example:
        >>> GroupScores(1, 1, -1)(torch.zeros(1, 4)).sigmoid()
        tensor([[0.2500, 0.5000]])
    """

    group_of_class: Tensor

    def __init__(self, num_classes: int, num_groups: int, background: int) -> None:
        super().__init__()
        self.num_groups, self.background = num_groups, background
        self.register_buffer("group_of_class", torch.zeros(num_classes, dtype=torch.int64))

    def columns(self) -> tuple[Tensor, Tensor]:
        """Where each group starts (with the end of the last), and the column of each class."""
        groups = self.group_of_class
        sizes = torch.bincount(groups, minlength=self.num_groups)
        starts = functional.pad((sizes + 1).cumsum(0), (1, 0))
        order = torch.argsort(groups, stable=True)
        # In the order of the groups, class columns are consecutive but for the "others" before each group.
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        return starts, places + groups + 1

    def forward(self, logits: Tensor) -> Tensor:
        """Logits `(N, F + 1)` for an ordinary sigmoid."""
        starts, columns = self.columns()
        ends = starts.tolist()
        inside = torch.cat([logits[:, a:b].log_softmax(-1) for a, b in pairwise(ends)], dim=1)
        objectness = logits[:, -2:].log_softmax(-1)
        classes = inside[:, columns] + objectness[:, :1]
        parts = (objectness[:, 1:], classes) if self.background == 0 else (classes, objectness[:, 1:])
        return log_odds(torch.cat(parts, dim=1))
