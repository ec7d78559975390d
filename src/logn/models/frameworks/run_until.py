"""Run a framework's own inference up to one of its methods, and see what that method is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class _Reached(Exception):  # noqa: N818 - no error: all that is wanted has been seen
    pass


def run_until(
    owner: Any,
    method: str,
    run: Callable[[], object],
    wanted: Callable[[dict[str, Any]], bool] = lambda given: True,
) -> dict[str, Any] | None:
    """Call `run` until it calls `owner.method`, and give the arguments of that call by name; None if it never does.

    So everything up to there is the framework's own code, and nothing after it is run. Of several calls the first
    that is `wanted` counts; those before it go through.

    Example:
        >>> class Head:
        ...     def decode(self, scores, limit=100):
        ...         raise NotImplementedError
        >>> head = Head()
        >>> run_until(head, "decode", lambda: head.decode([0.5]))
        {'scores': [0.5]}
    """
    original = getattr(owner, method)
    signature = inspect.signature(original)
    seen: list[dict[str, Any]] = []

    def instead(*values: Any, **named: Any) -> Any:
        given = dict(signature.bind(*values, **named).arguments)
        if not wanted(given):
            return original(*values, **named)
        seen.append(given)
        raise _Reached

    setattr(owner, method, instead)
    try:
        run()
    except _Reached:
        return seen[0]
    finally:
        delattr(owner, method)
    return None
