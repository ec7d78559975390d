"""Modules that stand in several slots of one ModuleList, and how to give a slot a module of its own.

Decoders without box refinement put one class layer into the slot of every decoder layer, and two-stage ones into the
slot that picks the proposals too. What a hook sees, or a fold changes, would then be all of them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logn.logits.layer import LogitLayer, unwrap

if TYPE_CHECKING:
    from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")
HOOK_FLAGS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")


@dataclass(frozen=True)
class OwnSlot:
    """A slot that was given a module of its own, and the shared module that was there."""

    parent: Any
    name: str
    shared: nn.Module

    def restore(self) -> None:
        """Put the shared module back."""
        self.parent._modules[self.name] = self.shared


def give_own_slots(model: nn.Module, layer: LogitLayer) -> list[OwnSlot]:
    """Give each path of `layer` a module of its own where its ModuleList has the same one in slots outside `layer`.

    The new module has the very parameters of the shared one, so nothing about what the model computes, saves or trains
    changes; hooks on it, and tensors assigned to it, are its own.

    Example:
        >>> from torch import nn
        >>> shared = nn.Linear(4, 3)
        >>> model = nn.ModuleDict({"class_embed": nn.ModuleList([shared, shared])})
        >>> (slot,) = give_own_slots(model, LogitLayer("class_embed.1"))
        >>> model["class_embed"][1] is shared, model["class_embed"][1].weight is shared.weight
        (False, True)
        >>> slot.restore()
        >>> model["class_embed"][1] is shared
        True
    """
    inner = unwrap(model)
    slots = []
    for path in layer.paths:
        parent_path, _, name = path.rpartition(".")
        parent: Any = inner.get_submodule(parent_path)
        # Only the slots of a list have one role each; two attributes may be two names for the same thing.
        if type(parent).__name__ != "ModuleList":
            continue
        module = parent._modules[name]
        prefix = f"{parent_path}." if parent_path else ""
        holders = {f"{prefix}{other}" for other, child in parent._modules.items() if child is module}
        if not holders <= set(layer.paths):
            parent._modules[name] = _twin(module)
            slots.append(OwnSlot(parent, name, module))
    return slots


def _twin(module: Any) -> Any:
    """A module of the same parameters, with tables of its own."""
    twin = copy.copy(module)
    for name in ("_parameters", "_buffers", "_modules", *HOOKS, *HOOK_FLAGS):
        if name in twin.__dict__:
            setattr(twin, name, copy.copy(twin.__dict__[name]))
    return twin
