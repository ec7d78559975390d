"""Public names that are imported when they are first used, from the stub beside a package's `__init__.py`.

So a package costs next to nothing to import, and type checkers, editors and Python read one list.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # `typing` would take longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable


def attach_stub(package: str, init_file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """The functions `__getattr__` and `__dir__` and the list `__all__` of a package, from its `__init__.pyi`.

    Args:
        package: The `__name__` of the package.
        init_file: Its `__file__`; the stub has the same name with an `i` behind it and holds lines
            `from MODULE import NAME as NAME`.

    Example:
        >>> import logn.thresholds
        >>> _, _, names = attach_stub("logn.thresholds", logn.thresholds.__file__)
        >>> "OperatingPoints" in names
        True
    """
    module_of: dict[str, str] = {}
    with open(f"{init_file}i", encoding="utf-8") as stub:
        for line in stub:
            if line.startswith("from "):
                module, _, names = line.removeprefix("from ").partition(" import ")
                module_of[names.partition(" as ")[0]] = module

    def import_name(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            if module_of[name] == package:
                return importlib.import_module(f"{package}.{name}")
            value = getattr(importlib.import_module(module_of[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            from logn.errors import MissingExtraError

            raise MissingExtraError("torch", extra="torch") from error
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return import_name, list_names, sorted(module_of)
