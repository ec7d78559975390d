"""The note that a fold leaves on its module, so that no map is folded in twice by accident.

It is a plain attribute: weights, state dict and files stay as anybody would write them. It lives as long as the module
and its copies, and through casts. Of weights that were saved and loaded elsewhere it knows nothing; there only a map
that holds a fingerprint of the weights it was made for (`logn.record` takes it) tells that these are others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from logn.errors import InputError

ATTRIBUTE = "_logn_folded"
# A cast to bfloat16 moves a number by 2**-9 of it.
CAST_TOLERANCE = 2**-7


def mark_module(module: nn.Module) -> None:
    """Note on the module what its weights are after a fold.

    Example:
        >>> layer = nn.Linear(4, 3)
        >>> mark_module(layer)
        >>> is_folded(layer), is_folded(nn.Linear(4, 3))
        (True, False)
    """
    setattr(module, ATTRIBUTE, _summary(module))


def unmark_module(module: nn.Module) -> None:
    """Take the note off, where the fold was undone."""
    vars(module).pop(ATTRIBUTE, None)


def is_folded(module: Any) -> bool:
    """Whether the weights of `module` came out of a fold in this process, and are still these."""
    noted = getattr(module, ATTRIBUTE, None)
    if noted is None:
        return False
    current = _summary(module)
    return current.shape == noted.shape and torch.allclose(current, noted, rtol=CAST_TOLERANCE)


def refuse_folded(path: str, module: nn.Module) -> None:
    """Refuse a module whose weights came out of a fold."""
    if is_folded(module):
        raise InputError(
            f"Expected `{path}` to have no map folded into it, but it has one; allow_refold=True puts another "
            "on top of it."
        )


def _summary(module: nn.Module) -> Tensor:
    """A number or two per class, which other weights do not share: the norms of its weights, and its bias."""
    with torch.inference_mode(False), torch.no_grad():
        tensors = [tensor.detach() for tensor in (*module.parameters(False), *module.buffers(False))]
        # Clones, since those of inference mode cannot be computed with outside it.
        rows = [tensor.clone().double().cpu().reshape(len(tensor), -1) for tensor in tensors if tensor.dim() > 0]
        return torch.cat([row[:, 0] if row.shape[1] == 1 else row.norm(dim=1) for row in rows])
