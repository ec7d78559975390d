"""A digest of a model's weights, by which statistics know the model they belong to."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

from logn.logits.arrays import is_torch_tensor
from logn.logits.layer import unwrap

if TYPE_CHECKING:
    from torch import nn

# True while a state dict is only looked at: nothing is saved, so there is no need to warn about what is not in it.
only_looking: ContextVar[bool] = ContextVar("logn_only_looking", default=False)


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over the names, shapes, types and bytes of all tensors in the model's state.

    Device, wrappers and the order of the names do not count; a cast to another precision does. All weights are read:
    about a second for a gigabyte. The digest of an ONNX file is of another kind (`logn.logits.onnx.file.onnx_digest`).

    Example:
        >>> import torch
        >>> first = torch.nn.Linear(2, 3)
        >>> second = torch.nn.Linear(2, 3)
        >>> fingerprint(first) == fingerprint(second)
        False
        >>> _ = second.load_state_dict(first.state_dict())
        >>> fingerprint(first) == fingerprint(second)
        True
    """
    import torch

    digest = hashlib.sha256()
    looking = only_looking.set(True)
    try:
        state = unwrap(model).state_dict()
    finally:
        only_looking.reset(looking)
    for name, tensor in sorted(state.items()):
        if not is_torch_tensor(tensor):
            continue
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.device.type == "meta":
            continue
        # Bytes rather than numbers, since NumPy lacks bfloat16.
        octets = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        digest.update(memoryview(octets.numpy()))
    return digest.hexdigest()
