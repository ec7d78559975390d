"""What the files of the frameworks share: classes recognised by name, images of one size run together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from logn.models.detector import Detector
from logn.models.images import Images
from logn.models.layer import LogitLayer
from logn.models.opened import Traits

if TYPE_CHECKING:
    from torch import nn

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Loaded:
    """A torch model, read from a framework's own kind of file or given as an object, and how it is run and saved.

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
    detector: Detector | None = None
    is_folded: bool = False


def kinds_of(module: object, package: str) -> set[str]:
    """Names of the classes in `package` that `module` is an instance of, so that subclasses elsewhere count too.

    Example:
        >>> from collections import OrderedDict
        >>> class Mine(OrderedDict): ...
        >>> sorted(kinds_of(Mine(), "collections"))
        ['OrderedDict']
    """
    return {base.__name__ for base in type(module).__mro__ if f"{base.__module__}.".startswith(f"{package}.")}


# What finds the class layer of a module from the names of its classes in the framework; None for another module.
Locator = Callable[[Any, set[str]], LogitLayer | None]


def locate_inside(model: nn.Module, package: str, locate: Locator) -> LogitLayer | None:
    """The class layer of the first module that a framework knows, outermost first; its paths are those in `model`."""
    for prefix, module in model.named_modules():
        kinds = kinds_of(module, package)
        layer = locate(module, kinds) if kinds else None
        if layer is not None and prefix:
            paths = tuple(f"{prefix}.{path}" for path in layer.paths)
            return replace(layer, path=paths[0] if isinstance(layer.path, str) else paths)
        if layer is not None:
            return layer
    return None


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


@contextmanager
def calls_of(*modules: Any) -> Iterator[list[tuple[Any, Any]]]:
    """The positional inputs and the output of each call of the modules inside the block, in the order of the calls.

    Example:
        >>> from torch import nn, ones
        >>> layer = nn.Flatten()
        >>> with calls_of(layer) as calls:
        ...     _ = layer(ones(2, 3, 4))
        >>> [tuple(output.shape) for _, output in calls]
        [(2, 12)]
    """
    calls: list[tuple[Any, Any]] = []

    def see(module: Any, inputs: Any, output: Any) -> None:
        calls.append((inputs, output))

    handles = [module.register_forward_hook(see) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
