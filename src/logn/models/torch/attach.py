"""attach: apply a map to a model's logits while it runs, and take it off again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from logn.errors import InputError, warn
from logn.methods.affine import ClassAffine
from logn.models.hooks import give_own_slots, recompile
from logn.models.layer import (
    LogitLayer,
    count_columns,
    find_modules,
    fingerprint,
    output_width,
)
from logn.models.locate import layer_of

# Where a module keeps the numbers that tell that a map was folded into it.
MARK = "_logn_folded"
# A cast to bfloat16 moves a number by 2**-9 of it.
CAST_TOLERANCE = 2**-7


def mark_folded(module: nn.Module) -> None:
    """Note on a module what its weights are after a fold, so that other weights, loaded later, take a fold again.

    Example:
        >>> layer = nn.Linear(4, 3)
        >>> mark_folded(layer)
        >>> refuse_folded("fc", layer)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `fc` has a map folded into it already; take the model before it (in Python \
allow_refold=True puts another on top).
        >>> _ = layer.load_state_dict(nn.Linear(4, 3).state_dict())
        >>> refuse_folded("fc", layer)
    """
    setattr(module, MARK, _weight_of_each_class(module))


def refuse_folded(path: str, module: nn.Module) -> None:
    """Refuse a module whose weights came out of a fold, and are still these."""
    noted = getattr(module, MARK, None)
    if noted is None:
        return
    current = _weight_of_each_class(module)
    if current.shape == noted.shape and torch.allclose(current, noted, rtol=CAST_TOLERANCE):
        raise InputError(
            f"`{path}` has a map folded into it already; take the model before it (in Python "
            "allow_refold=True puts another on top)."
        )


@torch.no_grad()
def _weight_of_each_class(module: nn.Module) -> Tensor:
    """The first weight of each class, and its bias."""
    tensors = [tensor for name in ("weight", "bias") if (tensor := module._parameters.get(name)) is not None]
    # Clones, since tensors of inference mode cannot be computed with outside of it.
    return torch.cat([tensor.clone().double().cpu().reshape(len(tensor), -1)[:, 0] for tensor in tensors])


class AttachedMap:
    """The handle of an attached map: `remove()` takes the map off; as a context manager it does so at the end."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def remove(self) -> None:
        """Take the map off; the model is then exactly as before. Removing twice does nothing."""
        self._undo.close()

    def __enter__(self) -> AttachedMap:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def attach(
    model: nn.Module,
    layer: LogitLayer | str,
    affine: ClassAffine | Sequence[ClassAffine],
    *,
    allow_refold: bool = False,
    allow_mismatch: bool = False,
) -> AttachedMap:
    """Correct the class logits of `model` from now on, without changing its weights.

    The correction is a forward hook on the modules of `layer`. It is copied with the model, is differentiable, and
    works with tracing, exports and `torch.compile`.

    It is not part of the state dict, so no checkpoint holds it (nor `save_pretrained`, nor Lightning); `state_dict()`
    warns about that. To save it with the weights, use `logn.fold`; or save it beside them (`affine.save`) and attach it
    again. Only `torch.save(model)`, which pickles the whole model, includes it.

    Args:
        model: A torch module.
        layer: Where the logits are (`logn.locate_logits`), or the path of their module.
        affine: The map; for a layer with `stages=True` one per stage, or one for all.
        allow_refold: Attach even to a layer that has a map folded into its weights.
        allow_mismatch: Only warn where `affine` was made for another layer, other weights or another activation, for
            example those of the model before it was retrained. To know, all weights are digested once, if `affine`
            names a fingerprint.

    Returns:
        The handle, whose `remove()` undoes it.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> features = torch.rand(3, 4)
        >>> plain = model(features)
        >>> with attach(model, LogitLayer("0"), ClassAffine([2.0, 1.0], [0.0, 1.0])):
        ...     mapped = model(features)
        >>> torch.allclose(mapped, plain * torch.tensor([2.0, 1.0]) + torch.tensor([0.0, 1.0]))
        True
        >>> torch.equal(model(features), plain)
        True
    """
    layer = layer_of(model, layer)
    maps = maps_of_modules(model, layer, affine, allow_refold=allow_refold, allow_mismatch=allow_mismatch)
    for path, module in zip(layer.paths, find_modules(model, layer), strict=True):
        refuse_attached(path, module)
    with ExitStack() as undo:
        undo.callback(recompile)
        undo.enter_context(give_own_slots(model, layer))
        modules = find_modules(model, layer)
        # A module that has two paths runs its hooks once per call, so it gets one.
        for module in dict.fromkeys(modules):
            index = modules.index(module)
            undo.callback(module.register_forward_hook(_MapHook(layer, index, module, maps[index])).remove)
        undo.callback(warn_on_save(modules[0]).remove)
        recompile()
        return AttachedMap(undo.pop_all())


def maps_of_modules(
    model: nn.Module,
    layer: LogitLayer,
    affine: ClassAffine | Sequence[ClassAffine],
    *,
    allow_refold: bool = False,
    allow_mismatch: bool = False,
) -> tuple[ClassAffine, ...]:
    """One map per module, checked against the layer and, unless a fold has changed them already, the weights."""
    maps = tuple(affine) if isinstance(affine, Sequence) else (affine,)
    # One map for all stages may come from any of them.
    layer_names = [(name,) for name in layer.stage_names] if isinstance(affine, Sequence) else [layer.stage_names]
    if len(maps) != len(layer_names):
        raise InputError(f"Expected `affine` to have one map per stage ({layer.num_stages}), but got {len(maps)}.")
    for logit_map in maps:
        if not isinstance(logit_map, ClassAffine):
            raise InputError(f"Expected `affine` to be a ClassAffine, but got {type(logit_map).__name__}.")
    if not allow_refold:  # before the weights are compared, since a fold has changed them
        for path, module in zip(layer.paths, find_modules(model, layer), strict=True):
            refuse_folded(path, module)
    is_of_weights = any(logit_map.head is not None and logit_map.head.source_kind == "torch" for logit_map in maps)
    digest = fingerprint(model) if is_of_weights and not allow_refold else None
    head = layer.head(count_columns(model, layer), source=digest)
    for logit_map, names in zip(maps, layer_names, strict=True):
        logit_map.check_fits(head, f"`{layer.name}`", allow_mismatch=allow_mismatch)
        _check_layer_of(logit_map, {layer.name, *names}, allow_mismatch)
    return tuple(maps[stage if len(maps) > 1 else 0] for stage in layer.stage_of)


def _check_layer_of(logit_map: ClassAffine, names: set[str], allow_mismatch: bool) -> None:
    """Refuse a map that was recorded at another layer, or warn of it."""
    head = logit_map.head
    # The tensors of an ONNX file have names of their own.
    if head is None or head.layer is None or head.source_kind == "onnx":
        return
    if any({*head.layer.split(", ")} == {*name.split(", ")} for name in names):
        return
    sentence = f"`affine` was recorded at `{head.layer}`, not at `{min(names, key=len)}`"
    if not allow_mismatch:
        raise InputError(f"{sentence}; collect statistics there (in Python allow_mismatch=True only warns).")
    warn(f"{sentence}.")


def has_map(module: nn.Module) -> bool:
    """Whether a map is attached to `module`."""
    return any(isinstance(hook, _MapHook) for hook in module._forward_hooks.values())


def refuse_attached(path: str, module: nn.Module) -> None:
    """Refuse a module that has a map attached."""
    if has_map(module):
        raise InputError(f"`{path}` has a map attached already; call .remove() on its handle first.")


class _MapHook:
    """A forward hook for an affine map; holds it as tensors of the precision and device of the output."""

    def __init__(self, layer: LogitLayer, index: int, module: nn.Module, affine: ClassAffine) -> None:
        self._layer = layer
        self._index = index
        # A width that is not known beforehand has to be checked in each pass, or a narrow output would be broadcast.
        self._check_width = output_width(module) is None
        self._scale = layer.channels(affine.scale, index, elsewhere=1.0).tolist()
        self._shift = layer.channels(affine.shift, index).tolist()
        self._cache: dict[tuple[torch.dtype, torch.device, int], tuple[Tensor, Tensor]] = {}
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.is_floating_point() and weight.device.type != "meta":
            # Made before the first call, so that a compiled or traced model finds constants.
            self._constants(weight.dtype, weight.device, weight.ndim)

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Tensor:
        axis = self._layer.axis_in(output)
        if self._check_width:
            self._layer.columns_in(output.shape[axis], self._index)
        scale, shift = self._constants(output.dtype, output.device, output.dim())
        # One pass over the logits. Half precision is mapped in float32 and rounded once.
        return torch.addcmul(shift, output.to(scale.dtype), scale).to(output.dtype)

    def _constants(self, dtype: torch.dtype, device: torch.device, dimensions: int) -> tuple[Tensor, Tensor]:
        """Scale and shift, shaped to broadcast along the class axis."""
        key = (dtype, device, dimensions)
        if key not in self._cache:
            shape = [1] * dimensions
            shape[-1 if self._layer.class_axis is None else self._layer.class_axis] = len(self._scale)
            working = torch.float32 if dtype.itemsize < 4 else dtype
            # Made outside inference mode, which may be on now, since autograd may need them later.
            with torch.inference_mode(False):
                scale = torch.tensor(self._scale, dtype=working, device=device).reshape(shape)
                shift = torch.tensor(self._shift, dtype=working, device=device).reshape(shape)
            self._cache[key] = (scale, shift)
        return self._cache[key]


NOT_SAVED = (
    "The attached map is not in the state dict: to keep it, fold it into the weights (`logn.fold`) before saving, or "
    "save the map too (`affine.save`) and attach it again after loading."
)


def warn_on_save(module: nn.Module) -> Any:
    """Let every `state_dict()` of `module`, or of what it is part of, warn; returns the handle that ends it.

    Example:
        >>> import warnings
        >>> layer = nn.Linear(2, 2)
        >>> handle = warn_on_save(layer)
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     _ = nn.Sequential(layer).state_dict()
        >>> print(str(caught[0].message)[:43], len(caught))
        The attached map is not in the state dict:  1
    """
    # A hook for the end of the call, not for its start: MMEngine, which has a state dict of its own, runs no other.
    # PyTorch 2.4 has it under a private name.
    register = getattr(module, "register_state_dict_post_hook", module._register_state_dict_hook)
    return register(_warn_not_saved)


def _warn_not_saved(module: nn.Module, state_dict: Any, prefix: str, local_metadata: Any) -> None:
    warn(NOT_SAVED)
