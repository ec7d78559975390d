"""Public names that are imported when they are first used, from the stub beside a package's `__init__.py`.

So a package costs next to nothing to import, and type checkers, editors and Python read one list.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path


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
    stub = ast.parse(Path(f"{init_file}i").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    module_of = {alias.name: str(node.module) for node in imports for alias in node.names}

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
