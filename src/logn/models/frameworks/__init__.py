"""Where each framework keeps its class logits, recognised by class names; nothing of a framework is imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def class_names(module: Any, package: str) -> set[str]:
    """Names of the classes in `package` that `module` is an instance of, so that subclasses elsewhere count too.

    Example:
        >>> from collections import OrderedDict
        >>> class Mine(OrderedDict): ...
        >>> sorted(class_names(Mine(), "collections"))
        ['OrderedDict']
    """
    return {base.__name__ for base in type(module).__mro__ if _is_in(base.__module__, package)}


def modules_from(model: nn.Module, package: str) -> Iterator[tuple[str, Any, set[str]]]:
    """The modules of `model` whose class comes from `package`, outermost first: prefix, module, names of its classes.

    The prefix is to be put before the path of anything inside the module.
    """
    for path, module in model.named_modules():
        names = class_names(module, package)
        if names:
            yield f"{path}." if path else "", module, names


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
