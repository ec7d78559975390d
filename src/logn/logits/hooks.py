"""ForwardPasses: tell the last call of a module within a forward pass of the model from the earlier ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import nn


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def recompile() -> None:
    """Make torch compile again what it has compiled so far: it would not see that hooks were added or removed.

    Where nothing was compiled, this does nothing, and torch is not imported for it.

    Example:
        >>> recompile()
    """
    if "torch._dynamo" in sys.modules:
        import torch

        torch.compiler.reset()


def never_compiled(function: FunctionT) -> FunctionT:
    """Keep torch.compile from compiling `function` into a model that calls it.

    Example:
        >>> never_compiled(len)([1, 2])
        2
    """
    if "torch._dynamo" not in sys.modules:
        return function
    import torch

    disabled: FunctionT = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled


class ForwardPasses:
    """Hold back what the calls of a module want to have done until the model's forward pass ends.

    A decoder that predicts after each of its layers calls one class layer many times, and only the last call makes the
    prediction. Calls outside a forward pass of the model are done at once.

    Example:
        >>> from torch import nn, rand
        >>> model, done = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), []
        >>> passes = ForwardPasses(model)
        >>> handles = [
        ...     layer.register_forward_hook(lambda *_, name=name: passes.at_the_end(0, lambda: done.append(name)))
        ...     for name, layer in model.named_children()
        ... ]
        >>> _ = model(rand(1, 2))
        >>> done
        ['1']
        >>> passes.remove()
    """

    def __init__(self, model: nn.Module) -> None:
        self._running = False
        self._pending: dict[int, Callable[[], None]] = {}
        self._handles = (model.register_forward_pre_hook(self._begin), model.register_forward_hook(self._end))

    def at_the_end(self, index: int, action: Callable[[], None]) -> None:
        """Do `action` when the pass ends, unless another of the same index comes after it."""
        if self._running:
            self._pending[index] = action
        else:
            action()

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, *_: Any) -> None:
        # A pass that an error cut short has no prediction.
        self._pending.clear()
        self._running = True

    def _end(self, *_: Any) -> None:
        self._running = False
        for action in self._pending.values():
            action()
        self._pending.clear()
