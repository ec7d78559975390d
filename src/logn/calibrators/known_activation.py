"""What is applied to the logits, where that is known, and what to assume where it is not.

A softmax without a background ignores a shift that all classes have in common; sigmoids do not. So where nobody said
which of the two follows, taking it for sigmoids is right for them and costs a softmax nothing.
"""

from __future__ import annotations

from logn.errors import InputError
from logn.statistics.moments import StatisticsMetadata
from logn.statistics.sums import ACTIVATIONS


def known_activation(
    recorded: StatisticsMetadata, background: int | None, given: str | None = "recorded"
) -> str | None:
    """The activation where it is known, None where it is not.

    Beside a background column it is a softmax, and so it is where each image has one row of logits.

    Args:
        recorded: What the statistics say.
        background: Index of the background column.
        given: What the user says: "softmax", "sigmoid", or "recorded" (or None) to believe the statistics.

    Example:
        >>> known_activation(StatisticsMetadata(), 0), known_activation(StatisticsMetadata(), None)
        ('softmax', None)
        >>> known_activation(StatisticsMetadata(population="images"), None)
        'softmax'
    """
    if given is not None and given not in (*ACTIVATIONS, "recorded"):
        raise InputError(f'Expected `activation` to be "softmax", "sigmoid" or "recorded", but got {given!r}.')
    activation = recorded.activation if given in (None, "recorded") else given
    if activation is None and (background is not None or recorded.population == "images"):
        return "softmax"
    return activation


def assumed_activation(known: str | None) -> str:
    """What the scores are judged by: sigmoids where nobody knows.

    Example:
        >>> assumed_activation("softmax"), assumed_activation(None)
        ('softmax', 'sigmoid')
    """
    return "sigmoid" if known is None else known
