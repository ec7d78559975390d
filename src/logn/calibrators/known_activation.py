"""What is applied to the logits, where that is known, and what to assume where it is not.

A softmax without a background ignores a shift that all classes have in common; sigmoids do not. So where nobody said
which of the two follows, taking it for sigmoids is right for them and costs a softmax nothing.
"""

from __future__ import annotations

from logn.errors import InputError
from logn.statistics.metadata import ACTIVATIONS


def known_activation(recorded: str | None, background: int | None, given: str | None = "recorded") -> str | None:
    """The activation where it is known, None where it is not; beside a background it is a softmax.

    Args:
        recorded: What the statistics say.
        background: Place of the background column.
        given: What the user says: "softmax", "sigmoid", or "recorded" (or None) to believe the statistics.

    Example:
        >>> known_activation(None, 0), known_activation(None, None), known_activation(None, None, "softmax")
        ('softmax', None, 'softmax')
    """
    if given is not None and given not in (*ACTIVATIONS, "recorded"):
        raise InputError(f'Expected `activation` to be "softmax", "sigmoid" or "recorded", but got {given!r}.')
    activation = recorded if given in (None, "recorded") else given
    return "softmax" if activation is None and background is not None else activation


def assumed_activation(known: str | None) -> str:
    """What the scores are judged by: sigmoids where nobody knows.

    Example:
        >>> assumed_activation("softmax"), assumed_activation(None)
        ('softmax', 'sigmoid')
    """
    return "sigmoid" if known is None else known
