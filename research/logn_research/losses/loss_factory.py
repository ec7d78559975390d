"""Losses by name, as the command line writes them: `seesaw`, `eql:threshold=0.005`, `online-logn:margin=min`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from logn.base.arrays import FloatArray
from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn_research.losses.balanced_groups import BalancedGroupsLoss
from logn_research.losses.head_loss import HeadLoss
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

DEFAULT_LOSS = "cross-entropy"
Make = Callable[..., HeadLoss]


def parse_loss(spec: str) -> tuple[str, dict[str, Any]]:
    """Split a specification into the name of a loss and its options.

    Example:
        >>> parse_loss("seesaw:p=0.6,q=1")
        ('seesaw', {'p': 0.6, 'q': 1.0})
        >>> parse_loss("loce:p=1")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the options of the loss `loce` to be among decay, ... but got `p`.
    """
    name, _, rest = spec.strip().partition(":")
    if name not in _LOSSES:
        raise InputError(f"Expected `loss` to be one of {', '.join(_LOSSES)}, but got {name!r}.")
    options: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        option, equals, text = part.partition("=")
        known = _LOSSES[name][1]
        if option not in known or not equals:
            listed = ", ".join(known) or "none"
            raise InputError(f"Expected the options of the loss `{name}` to be among {listed}, but got `{option}`.")
        options[option] = _value(option, text)
    return name, options


def make_loss(spec: str, counts: ClassCounts, *, background: int | None = 0) -> HeadLoss:
    """The loss that `spec` names, for training data with these class counts.

    Args:
        spec: A name of `LOSS_NAMES`, with options after a colon.
        counts: Images and objects of each foreground class, and the number of images. A class that never occurs
            counts as one sample where a loss takes the logarithm.
        background: Where the background is: None, 0 or -1.

    Example:
        >>> make_loss("bags", ClassCounts([2000, 50, 5]), background=-1).layout.columns
        9
    """
    name, options = parse_loss(spec)
    return _LOSSES[name][0](counts, background=background, **options)


def layout_of(spec: str, num_classes: int, *, background: int | None = 0) -> HeadLoss:
    """The loss with made-up counts: its `layout` and `test_logits` depend on the number of classes only.

    Example:
        >>> layout_of("seesaw", 3).layout.columns
        5
    """
    return make_loss(parse_loss(spec)[0], ClassCounts(np.ones(num_classes), num_images=1), background=background)


def _value(option: str, text: str) -> float | str | bool:
    if text in ("min", "positives", "rows"):
        return text
    if option == "bias_corrected":
        if text not in ("true", "false"):
            raise InputError(f"Expected the option `{option}` of the loss to be true or false, but got {text!r}.")
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise InputError(f"Expected the option `{option}` of the loss to be a number, but got {text!r}.") from None


def _by_classes(loss: Make) -> Make:
    return lambda counts, **options: loss(counts.num_classes, **options)


def _by_instances(loss: Make) -> Make:
    return lambda counts, **options: loss(np.maximum(counts.instance_counts, 1), **options)


def _image_shares(counts: ClassCounts) -> FloatArray:
    if counts.num_images is None:
        raise InputError("Expected `counts` to know the number of images, for the equalization loss, but got None.")
    shares: FloatArray = counts.image_counts / max(counts.num_images, 1)
    return shares


def _by_image_shares(loss: Make) -> Make:
    return lambda counts, **options: loss(_image_shares(counts), **options)


_LOSSES: Mapping[str, tuple[Make, tuple[str, ...]]] = {
    "cross-entropy": (_by_classes(CrossEntropyLoss), ()),
    "focal": (_by_classes(SigmoidFocalLoss), ("gamma", "alpha", "divide_by", "weight")),
    "focal-softmax": (_by_classes(SoftmaxFocalLoss), ("gamma",)),
    "eql": (_by_image_shares(EqualizationLoss), ("threshold",)),
    "eql-softmax": (_by_image_shares(SoftmaxEqualizationLoss), ("threshold", "probability")),
    "eql-v2": (_by_classes(EqualizationV2Loss), ("gamma", "mu", "alpha")),
    "seesaw": (_by_classes(SeesawLoss), ("p", "q", "eps")),
    "bags": (_by_instances(BalancedGroupsLoss), ("others_per_row",)),
    "loce": (_by_classes(EquilibriumLoss), ("decay", "background_score")),
    "balanced-softmax": (_by_instances(BalancedSoftmaxLoss), ("background_count",)),
    "logit-adjusted": (_by_instances(LogitAdjustedLoss), ("tau", "background_count")),
    "online-logn": (_by_classes(OnlineLogitNormalizationLoss), ("margin", "momentum", "bias_corrected", "eps")),
}

LOSS_NAMES = tuple(_LOSSES)
