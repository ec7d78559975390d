"""What the files of the frameworks share: recognise classes by name, and run a model up to one of its methods."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from logn.models.images import Images
from logn.models.opened import Traits
from logn.models.proposals import ProposingDetector

if TYPE_CHECKING:
    from torch import nn

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class LoadedFile:
    """A model that a framework read from its own kind of file.

    Args:
        network: The torch module, in evaluation mode.
        traits: What is known of it.
        class_names: Of the classes, where the file names them.
        save: Writes the network to a path, in the same kind of file.
        run: Runs the network on RGB images.
        detector: The network as a source of proposals; None for a model without boxes.
        is_folded: Whether the file itself says that a correction is in it.
    """

    network: nn.Module
    traits: Traits
    class_names: tuple[str, ...] | None
    save: Callable[[nn.Module, Path], object]
    run: Callable[[Images], object]
    detector: ProposingDetector | None = None
    is_folded: bool = False


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


def in_groups(
    items: Sequence[Item], shape: Callable[[Item], object], run: Callable[[list[Item]], Sequence[Result]]
) -> list[Result]:
    """Run the items of one shape together, and give the results in the order of the items.

    Example:
        >>> in_groups(["a", "bc", "d"], len, lambda group: [f"{text}{len(group)}" for text in group])
        ['a2', 'bc1', 'd2']
    """
    groups = defaultdict(list)
    for number, item in enumerate(items):
        groups[shape(item)].append(number)
    results: dict[int, Result] = {}
    for numbers in groups.values():
        results.update(zip(numbers, run([items[number] for number in numbers]), strict=True))
    return [results[number] for number in range(len(items))]


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
