"""The warning that an attached map is not part of a state dict, said when the state dict is made."""

from __future__ import annotations

import sys
import warnings
import weakref
from contextvars import ContextVar
from typing import Any

from torch import nn

from logn.errors import LogNWarning
from logn.logits.fingerprint import only_looking

NOT_SAVED = (
    "The attached map is not in the state dict: to keep it, fold it into the weights (`logn.fold`) before saving, or "
    "save the map too (`affine.save`) and attach it again after loading."
)
# They read a state dict to compile, trace or export the model, hooks and all: nothing is saved, nothing is lost.
_READERS = ("torch.jit", "torch.onnx", "torch.export", "torch.fx", "torch._")

# The state dict that was warned of last, so that a layer of several modules warns once per call; own to each thread.
_warned: ContextVar[weakref.ref[Any] | None] = ContextVar("logn_warned_state_dict", default=None)


def warn_on_save(module: nn.Module) -> Any:
    """Let every `state_dict()` of `module`, or of what it is part of, warn; returns the handle that ends it.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> handle = warn_on_save(layer)
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     _ = nn.Sequential(layer, layer).state_dict()
        >>> print(str(caught[0].message)[:43], len(caught))
        The attached map is not in the state dict:  1
    """
    # A hook for the end of the call, not for its start: only that one sees the state dict, and MMEngine, which has a
    # state dict of its own, runs no other. PyTorch 2.4 has it under a private name.
    register = getattr(module, "register_state_dict_post_hook", module._register_state_dict_hook)
    return register(_say_it_is_not_saved)


def _say_it_is_not_saved(module: nn.Module, state_dict: Any, prefix: str, local_metadata: Any) -> None:
    last = _warned.get()
    if only_looking.get() or (last is not None and last() is state_dict):
        return
    level, caller = _caller()
    if caller.startswith(_READERS):
        return
    try:
        _warned.set(weakref.ref(state_dict))
    except TypeError:  # a plain dict, which somebody handed in to be filled
        _warned.set(None)
    warnings.warn(NOT_SAVED, LogNWarning, stacklevel=level)


def _caller() -> tuple[int, str]:
    """How far up the code is that asked for the state dict, as a `stacklevel` of the hook, and its module's name."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, nn.Module.__module__):
        frame, level = frame.f_back, level + 1
    return level, str(frame.f_globals.get("__name__", ""))
