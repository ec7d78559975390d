"""Ranges and choices that annotations declare, as in `Annotated[float, Between(0, 1)]`, checked by `checked`."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from logn.errors import InputError

Target = TypeVar("Target", bound=Callable[..., Any])


@dataclass(frozen=True)
class Between:
    """A number from `low` to `high`; `above` leaves `low` itself out. NaN, True and False are no numbers.

    Example:
        >>> 0.5 in Between(0, 1), 0 in Between(0, above=True), str(Between(1)), str(Between(0, 1, above=True))
        (True, False, 'at least 1', 'above 0 and at most 1')
    """

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, Real):
            return False
        number = float(value)
        return self.low <= number <= self.high and not (self.above and number == self.low)

    def __str__(self) -> str:
        if not self.above and math.isfinite(self.high):
            return f"from {self.low:g} to {self.high:g}"
        low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        return low if self.high == math.inf else f"{low} and at most {self.high:g}"


class Whole(Between):
    """A whole number from `low` to `high`.

    Example:
        >>> 3 in Whole(1), 3.5 in Whole(1), str(Whole(1))
        (True, False, 'a whole number, at least 1')
    """

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, Integral) and super().__contains__(value)

    def __str__(self) -> str:
        return f"a whole number, {super().__str__()}"


class OneOf:
    """One of some values.

    Example:
        >>> "sigmoid" in OneOf("softmax", "sigmoid"), str(OneOf("softmax", "sigmoid"))
        (True, "'softmax' or 'sigmoid'")
    """

    def __init__(self, *choices: Any) -> None:
        self.choices = choices

    def __contains__(self, value: Any) -> bool:
        return any(value is choice or (type(value) is type(choice) and value == choice) for choice in self.choices)

    def __str__(self) -> str:
        *others, last = map(repr, self.choices)
        return f"{', '.join(others)} or {last}" if others else last


def check(name: str, value: Any, rule: Between | OneOf, *, optional: bool = False) -> None:
    """Refuse a value that breaks a rule; the message names the argument.

    Example:
        >>> check("strength", 1.5, Between(0, 1))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `strength` to be from 0 to 1, but got 1.5.
    """
    if value not in rule and not (optional and value is None):
        raise InputError(f"Expected `{name}` to be {rule}{' or None' if optional else ''}, but got {value!r:.80}.")


def checked(target: Target) -> Target:
    """Check arguments of a function, or fields of a dataclass, by the rules in their annotations.

    `Annotated[int, Between(1)] | None` takes None as well. On a dataclass it stands below `@dataclass`, and checks
    before `__post_init__`.

    Example:
        >>> @dataclass
        ... @checked
        ... class Options:
        ...     strength: Annotated[float, Between(0, 1)] = 1.0
        >>> Options(strength=2)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `strength` to be from 0 to 1, but got 2.
    """
    rules = functools.cache(functools.partial(_rules_of, target))

    def check_all(values: Mapping[str, Any]) -> None:
        for name, (rule, optional) in rules().items():
            if name in values:
                check(name, values[name], rule, optional=optional)

    if isinstance(target, type):
        before = getattr(target, "__post_init__", None)

        def post_init(self: Any) -> None:
            check_all({name: getattr(self, name) for name in rules()})
            if before is not None:
                before(self)

        target.__post_init__ = post_init  # type: ignore[attr-defined]
        return target
    signature = inspect.signature(target)

    @functools.wraps(target)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        check_all(signature.bind(*arguments, **options).arguments)
        return target(*arguments, **options)

    return wrapper  # type: ignore[return-value]


def _rules_of(target: Any) -> dict[str, tuple[Between | OneOf, bool]]:
    rules = {}
    for name, hint in get_type_hints(target, include_extras=True).items():
        for part in (hint, *get_args(hint)):
            if get_origin(part) is Annotated and isinstance(part.__metadata__[0], Between | OneOf):
                rules[name] = (part.__metadata__[0], type(None) in get_args(hint))
    return rules
