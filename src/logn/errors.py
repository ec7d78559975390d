"""The errors that LogN raises for what a user can fix, and its warnings.

Every message names the parameter or the file, what is wrong with it, and what to do, in one sentence or two. The
command line prints it and exits with code 2.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Iterable
from typing import Any

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class InputError(ValueError):
    """A value, an array or a file is not what was expected.

    Example:
        >>> import logn
        >>> try:
        ...     logn.ClassMoments(0)
        ... except logn.InputError as error:
        ...     print(error)
        Expected `num_columns` to be a whole number of at least 1, but got 0.
    """


class MissingExtraError(ImportError):
    """An optional package is needed and not installed.

    Example:
        >>> raise MissingExtraError("torch", extra="torch")
        Traceback (most recent call last):
        ...
        logn.errors.MissingExtraError: The package `torch` is not installed: run pip install "logn[torch]", or in a
        clone of LogN pip install ".[torch]".
    """

    def __init__(self, package: str, *, extra: str) -> None:
        super().__init__(
            f'The package `{package}` is not installed: run pip install "logn[{extra}]", or in a clone of LogN '
            f'pip install ".[{extra}]".'
        )


class LogNWarning(UserWarning):
    """Something works but probably not as the user expects, such as a correction that moves all scores far.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("ignore", LogNWarning)  # for those who mean it
    """


def warn(message: str) -> None:
    """Warn with a `LogNWarning` that names the line of the user's code: the last one outside of this package.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn("All scores are equal.")
        >>> str(caught[0].message), caught[0].category.__name__
        ('All scores are equal.', 'LogNWarning')
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, LogNWarning, stacklevel=level)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: a question where a known one is close, else a full stop.

    Example:
        >>> did_you_mean("norcl", ["loga", "norcal"]), did_you_mean("x", ["loga"])
        ('; did you mean `norcal`?', '.')
    """
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean `{close[0]}`?" if close else "."


def import_extra(module: str, *, extra: str) -> Any:
    """Import a module of an optional package; where it is not installed, raise an error that names the extra.

    Example:
        >>> import_extra("no_such_package.masks", extra="evaluate")
        Traceback (most recent call last):
        ...
        logn.errors.MissingExtraError: The package `no_such_package` is not installed: ...
    """
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingExtraError(package, extra=extra) from error
