"""Losses for long-tailed data: each is a module that takes logits and labels."""

from __future__ import annotations

from logn_research.losses.balanced_groups import BalancedGroupsLoss
from logn_research.losses.head_loss import HeadLayout, HeadLoss
from logn_research.losses.loss_factory import LOSS_NAMES, make_loss
from logn_research.losses.sigmoid import (
    EqualizationLoss,
    EqualizationV2Loss,
    SigmoidFocalLoss,
    SoftmaxEqualizationLoss,
    SoftmaxFocalLoss,
)
from logn_research.losses.softmax import (
    BalancedSoftmaxLoss,
    CrossEntropyLoss,
    EquilibriumLoss,
    LogitAdjustedLoss,
    OnlineLogitNormalizationLoss,
    SeesawLoss,
)

__all__ = [
    "LOSS_NAMES",
    "BalancedGroupsLoss",
    "BalancedSoftmaxLoss",
    "CrossEntropyLoss",
    "EqualizationLoss",
    "EqualizationV2Loss",
    "EquilibriumLoss",
    "HeadLayout",
    "HeadLoss",
    "LogitAdjustedLoss",
    "OnlineLogitNormalizationLoss",
    "SeesawLoss",
    "SigmoidFocalLoss",
    "SoftmaxEqualizationLoss",
    "SoftmaxFocalLoss",
    "make_loss",
]
