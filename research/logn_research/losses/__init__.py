"""Losses for long-tailed data, one file each."""

from __future__ import annotations

from logn_research.losses.balanced_groups import BalancedGroupsLoss
from logn_research.losses.balanced_softmax import BalancedSoftmaxLoss, LogitAdjustedLoss
from logn_research.losses.cross_entropy import CrossEntropyLoss
from logn_research.losses.equalization import EqualizationLoss, SoftmaxEqualizationLoss
from logn_research.losses.equalization_v2 import EqualizationV2Loss
from logn_research.losses.equilibrium import EquilibriumLoss
from logn_research.losses.focal import SigmoidFocalLoss, SoftmaxFocalLoss
from logn_research.losses.head_loss import HeadLayout, HeadLoss
from logn_research.losses.loss_factory import LOSS_NAMES, make_loss
from logn_research.losses.online_logit_normalization import OnlineLogitNormalizationLoss
from logn_research.losses.seesaw import SeesawLoss

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
