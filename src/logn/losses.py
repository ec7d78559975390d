"""The training losses under one name: `logn.losses.SeesawLoss` and the others. Importing this module imports torch."""

from __future__ import annotations

from logn.training.losses.balanced_groups import BalancedGroupsLoss
from logn.training.losses.balanced_softmax import BalancedSoftmaxLoss, LogitAdjustedLoss
from logn.training.losses.cross_entropy import CrossEntropyLoss
from logn.training.losses.equalization import EqualizationLoss, SoftmaxEqualizationLoss
from logn.training.losses.equalization_v2 import EqualizationV2Loss
from logn.training.losses.equilibrium import EquilibriumLoss
from logn.training.losses.focal import SigmoidFocalLoss, SoftmaxFocalLoss
from logn.training.losses.head_loss import HeadLayout, HeadLoss
from logn.training.losses.loss_factory import LOSS_NAMES, make_loss
from logn.training.losses.online_logit_normalization import OnlineLogitNormalizationLoss
from logn.training.losses.seesaw import SeesawLoss

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
