"""The errors that LogN raises for what a user can mend.

Every message is one sentence that names the parameter or the file, what was expected, and what came. The command
line prints it and exits with code 2.
"""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


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
        logn.errors.MissingExtraError: Expected the package `torch` to be installed: run pip install "logn[torch]",
        or in a clone of LogN pip install ".[torch]".
    """

    def __init__(self, package: str, *, extra: str) -> None:
        super().__init__(
            f'Expected the package `{package}` to be installed: run pip install "logn[{extra}]", '
            f'or in a clone of LogN pip install ".[{extra}]".'
        )


class LogNWarning(UserWarning):
    """Something works but probably not as the user expects, such as a correction that moves all scores far.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("ignore", LogNWarning)  # for those who mean it
    """


def renamed_argument(name: str, value: Value | None, older_name: str, older_value: Value | None) -> Value | None:
    """The value of an argument that has an older name, under whichever of the two it was given; None for neither.

    Example:
        >>> renamed_argument("num_bootstrap", None, "draws", 100)
        100
        >>> renamed_argument("num_bootstrap", 100, "draws", 100)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `num_bootstrap` or its older name `draws`, but got both.
    """
    if value is not None and older_value is not None:
        raise InputError(f"Expected `{name}` or its older name `{older_name}`, but got both.")
    return older_value if value is None else value
