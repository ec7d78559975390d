"""The mark that a fold leaves in the weights, so that no map is folded in twice by accident.

The mark is the lowest bit of the first 64 weights of the layer, zeros aside: it changes them by at most one unit in
the last place. Hence a folded model has the very same state dict keys as before and loads anywhere with `strict=True`,
and the mark goes with the weights through state dicts, safetensors, copies and ONNX files, where a buffer would break
the loading and an attribute would be lost. Training the layer further, or loading other weights, wipes it out, as it
should. A cast to another precision wipes it out too; for that there is an attribute on the module as well, which
lives as long as the module.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from logn.errors import InputError

ATTRIBUTE = "_logn_folded"
BITS = 64
# With fewer weights than this the pattern could be there by chance, so only the attribute counts.
FEWEST_BITS = 24


def marked(weight: Tensor) -> Tensor:
    """A copy of `weight` that carries the mark.

    Example:
        >>> import torch
        >>> weight = torch.rand(4, 16)
        >>> has_mark(weight), has_mark(marked(weight))
        (False, True)
    """
    flat = weight.detach().clone(memory_format=torch.contiguous_format).view(-1)
    places, pattern = _places_and_pattern(flat)
    bits = flat[places].view(_integer_type(flat.dtype))
    flat[places] = ((bits & ~1) | pattern.to(bits.dtype)).view(flat.dtype)
    return torch.empty_like(weight, requires_grad=False).copy_(flat.view(weight.shape))


def has_mark(weight: Tensor) -> bool:
    """Whether the weights carry the mark."""
    if not is_plain(weight):
        return False
    flat = weight.detach().reshape(-1)
    places, pattern = _places_and_pattern(flat)
    if len(places) < FEWEST_BITS:
        return False
    bits = flat[places].view(_integer_type(flat.dtype))
    return bool(((bits & 1) == pattern.to(bits.dtype)).all())


def is_plain(weight: Tensor) -> bool:
    """Whether `weight` is an ordinary floating point tensor: not quantised, sharded, or without memory."""
    ordinary = type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point() and weight.element_size() >= 2
    return ordinary and weight.device.type != "meta"


def mark_module(module: Any) -> None:
    """Remember on the module too that its weights came out of a fold."""
    setattr(module, ATTRIBUTE, str(module.weight.dtype))


def is_folded(module: Any) -> bool:
    """Whether the weights of `module` came out of a fold."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or not is_plain(weight):
        return False
    if has_mark(weight):
        return True
    folded_type = getattr(module, ATTRIBUTE, None)
    if folded_type is None:
        return False
    # In the precision of the fold the bits decide, unless the layer is too small for them.
    few = len(_places_and_pattern(weight.detach().reshape(-1))[0]) < FEWEST_BITS
    return few or folded_type != str(weight.dtype)


def refuse_folded(path: str, module: nn.Module) -> None:
    """Refuse a module whose weights came out of a fold."""
    if is_folded(module):
        raise InputError(
            f"Expected `{path}` to have no map folded into it, but it has one; allow_refold=True puts another "
            "on top of it."
        )


def _places_and_pattern(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Where the bits are, and what they are."""
    # Weights that pruning set to 0 stay 0. Whether a weight counts does not hang on its lowest bit.
    places = (flat.abs() >= torch.finfo(flat.dtype).tiny).nonzero().reshape(-1)[:BITS]
    digest = hashlib.sha256(b"logn.folded").digest()
    bits = [digest[index // 8] >> (index % 8) & 1 for index in range(BITS)]
    return places, torch.tensor(bits[: len(places)], device=flat.device)


def _integer_type(dtype: torch.dtype) -> torch.dtype:
    return {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
