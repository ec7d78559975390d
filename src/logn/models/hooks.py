"""Running a model and watching it: batches, hooks, forward passes, modules that stand in several slots."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from logn.base.arrays import is_torch_tensor
from logn.errors import InputError
from logn.models.layer import LogitLayer, unwrap

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

IMAGE_KEYS = ("pixel_values", "images", "image", "inputs", "img", "x")
LABEL_KEYS = ("labels", "label", "targets", "target", "mask_labels", "class_labels")


def recompile() -> None:
    """Make torch compile again what it has compiled so far: it would not see that hooks were added or removed.

    Where nothing was compiled, this does nothing, and torch is not imported for it.

    Example:
        >>> recompile()
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def never_compiled(function: FunctionT) -> FunctionT:
    """Keep torch.compile from compiling `function` into a model that calls it.

    Example:
        >>> never_compiled(len)([1, 2])
        2
    """
    if "torch._dynamo" not in sys.modules:
        return function
    disabled: FunctionT = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled


@contextlib.contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients for a while; modes and random numbers are then as if nothing had run."""
    devices = sorted({tensor.device.index or 0 for tensor in model.parameters() if tensor.device.type == "cuda"})
    with evaluation_mode(model), torch.random.fork_rng(devices=devices), torch.inference_mode():
        yield


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; a module that was frozen in it before stays so afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class ForwardPasses:
    """Hold back what the calls of a module want to have done until the model's forward pass ends.

    A decoder that predicts after each of its layers calls one class layer many times, and only the last call makes the
    prediction. Calls outside a forward pass of the model are done at once.

    Example:
        >>> from torch import nn, rand
        >>> model, done = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), []
        >>> passes = ForwardPasses(model)
        >>> handles = [
        ...     layer.register_forward_hook(lambda *_, name=name: passes.at_the_end(0, lambda: done.append(name)))
        ...     for name, layer in model.named_children()
        ... ]
        >>> _ = model(rand(1, 2))
        >>> done
        ['1']
        >>> passes.remove()
    """

    def __init__(self, model: nn.Module) -> None:
        self._running = False
        self._pending: dict[int, Callable[[], None]] = {}
        self._handles = (model.register_forward_pre_hook(self._begin), model.register_forward_hook(self._end))

    def at_the_end(self, index: int, action: Callable[[], None]) -> None:
        """Do `action` when the pass ends, unless another of the same index comes after it."""
        if self._running:
            self._pending[index] = action
        else:
            action()

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, *_: Any) -> None:
        # A pass that an error cut short has no prediction.
        self._pending.clear()
        self._running = True

    def _end(self, *_: Any) -> None:
        self._running = False
        for action in self._pending.values():
            action()
        self._pending.clear()


def give_own_slots(model: nn.Module, layer: LogitLayer) -> contextlib.ExitStack:
    """Give each path of `layer` a module of its own where its ModuleList has the same one in slots outside `layer`.

    The new module has the very parameters of the shared one, so nothing about what the model computes, saves or trains
    changes; hooks on it, and tensors assigned to it, are its own. Closing what is returned puts the shared ones back.

    Example:
        >>> from torch import nn
        >>> shared = nn.Linear(4, 3)
        >>> model = nn.ModuleDict({"class_embed": nn.ModuleList([shared, shared])})
        >>> with give_own_slots(model, LogitLayer("class_embed.1")):
        ...     print(model["class_embed"][1] is shared, model["class_embed"][1].weight is shared.weight)
        False True
        >>> model["class_embed"][1] is shared
        True
    """
    inner, undo = unwrap(model), contextlib.ExitStack()
    for path in layer.paths:
        parent_path, _, name = path.rpartition(".")
        parent: Any = inner.get_submodule(parent_path)
        # Only the slots of a list have one role each; two attributes may be two names for the same thing.
        if type(parent).__name__ != "ModuleList":
            continue
        shared = parent._modules[name]
        prefix = f"{parent_path}." if parent_path else ""
        if not {f"{prefix}{slot}" for slot, child in parent._modules.items() if child is shared} <= set(layer.paths):
            twin = copy.copy(shared)
            # Tables of hooks, parameters and children of its own, with the same entries.
            vars(twin).update({key: value.copy() for key, value in vars(shared).items() if isinstance(value, dict)})
            parent._modules[name] = twin
            undo.callback(parent._modules.__setitem__, name, shared)
    return undo


def run_on_batch(model: nn.Module, batch: Any) -> Any:
    """Run `model` on the images of a batch, whatever the loader packs around them.

    Example:
        >>> import torch
        >>> model = torch.nn.Flatten()
        >>> images, labels = torch.rand(2, 3, 4, 4), torch.tensor([0, 1])
        >>> [tuple(run_on_batch(model, batch).shape) for batch in (images, (images, labels), {"image": images})]
        [(2, 48), (2, 48), (2, 48)]
    """
    if isinstance(batch, Mapping):
        return _run_on_mapping(model, batch)
    if is_torch_tensor(batch) or _is_image_list(batch):
        return model(batch)
    if isinstance(batch, list | tuple) and batch:
        images = batch[0]
        is_label = is_torch_tensor(images) and images.dim() < 2 and not images.is_floating_point()
        if is_label and any(_is_images(item) for item in batch[1:]):
            raise InputError(
                f"`loader` gives labels first ({images.dtype} of shape {tuple(images.shape)}), images after them; pass "
                "forward=lambda model, batch: model(batch[1])."
            )
        if is_torch_tensor(images):
            return model(images)
        if _is_image_list(images):
            return model(list(images))
    raise InputError(
        f"`loader` gives {_describe(batch)}, not image tensors; pass forward=lambda model, batch: … to run the model "
        "on it."
    )


def _run_on_mapping(model: nn.Module, batch: Mapping[str, Any]) -> Any:
    if "pixel_values" in batch or "input_ids" in batch:
        # What Hugging Face's models take by name; labels would only make them compute a loss.
        return model(**{name: value for name, value in batch.items() if name not in LABEL_KEYS})
    for name in IMAGE_KEYS:
        if name in batch:
            return model(batch[name])
    raise InputError(
        f"`loader` gives {_describe(batch)}, but no images under any of {', '.join(IMAGE_KEYS)}; pass "
        "forward=lambda model, batch: … to run the model on it."
    )


def _is_images(item: Any) -> bool:
    return is_torch_tensor(item) and item.dim() >= 3 and item.is_floating_point()


def _is_image_list(batch: Any) -> bool:
    """A list of (C, H, W) images of any size, as detectors take it."""
    is_list = isinstance(batch, list | tuple) and len(batch) > 0
    return is_list and all(_is_images(image) and image.dim() == 3 for image in batch)


def _describe(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a mapping with {', '.join(map(str, batch)) or 'nothing'}"
    if isinstance(batch, list | tuple):
        return f"a {type(batch).__name__} of {', '.join(type(item).__name__ for item in batch[:4]) or 'nothing'}"
    return type(batch).__name__
