"""The layers that could give the class logits, for the errors that ask to name one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from logn.logits.layer import output_width

if TYPE_CHECKING:
    from torch import nn

LISTED = 12
# Words in the names of class layers; those are listed first, since a detector may well end in its backbone.
CLASS_WORDS = ("cls", "class", "score", "logit")


def candidates(model: nn.Module, widths: Sequence[int] = ()) -> list[tuple[str, str, int]]:
    """Path, kind and width of each layer: first those of the wanted widths, then those named like a class layer.

    Example:
        >>> from torch import nn
        >>> candidates(nn.ModuleDict({"class_embed": nn.Linear(8, 6), "body": nn.Conv2d(3, 8, 3)}), widths=[8])
        [('body', 'Conv2d', 8), ('class_embed', 'Linear', 6)]
    """
    seen = [(path, type(module).__name__, output_width(module)) for path, module in model.named_modules()]
    found = [(path, kind, width) for path, kind, width in reversed(seen) if width and path]
    return sorted(
        found,
        key=lambda item: (item[2] not in widths, not any(word in item[0].lower() for word in CLASS_WORDS)),
    )


def listed_candidates(model: nn.Module, widths: Sequence[int] = ()) -> str:
    """The first of them as a list in words."""
    found = candidates(model, widths)
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return ", ".join(f"{path} ({kind}, {width})" for path, kind, width in found[:LISTED]) + more
