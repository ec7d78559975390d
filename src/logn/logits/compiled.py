"""Hooks and torch.compile: compiled code neither looks for new hooks nor should contain our statistics."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def compile_anew() -> None:
    """Have torch compile again what it compiled so far, since it would not see that hooks came or went.

    Where nothing was compiled, this does nothing, and torch is not imported for it.

    Example:
        >>> compile_anew()
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
