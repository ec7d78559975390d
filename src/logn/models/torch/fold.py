"""fold: write a map into the weights of a model, which then costs nothing, and prove it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from logn.errors import InputError, warn
from logn.methods.affine import ClassAffine
from logn.models.frameworks.transformers import keep_untied
from logn.models.hooks import give_own_slots
from logn.models.layer import LogitLayer, find_modules, output_width, unwrap
from logn.models.locate import layer_of
from logn.models.output_check import Pass, compare, is_comparable, together, watch
from logn.models.torch.attach import MARK, maps_of_modules, mark_folded, refuse_attached
from logn.models.write import Proof

# How far the folded layer may be off in float64, relative to the largest logit of the trial.
TRIAL_TOLERANCE = 1e-9
WAY_OUT = "use logn.attach instead"
# How far an output that is to stay may move, relative to its largest number; more where its precision is coarser.
OUTPUT_TOLERANCE = 1e-5
ROUNDINGS = 4.0
# Of each call of a class layer so many numbers are kept for the proof; a few heads of 1,204 columns give more.
MOST_VALUES = 1 << 24


def fold(
    model: nn.Module,
    layer: LogitLayer | str,
    affine: ClassAffine | Sequence[ClassAffine],
    *,
    allow_refold: bool = False,
    allow_mismatch: bool = False,
) -> None:
    """Write `affine` into the weights and biases of `layer`, in place; speed and state dict keys stay the same.

    The arithmetic is float64, rounded once to the precision of the weights. Every module is checked on random input
    before any is changed. Raises InputError for a layer that does not follow its weights (a cosine head normalises
    them), and for a shift of a layer without a bias, whose new weights would no longer load into the model's own class.
    A weight tied to a module outside `layer` is copied for the layer first, with a warning.

    Folding twice is refused in the same process, and wherever `affine` holds a fingerprint of the weights it was made
    for. Weights that were saved and loaded elsewhere do not show that they hold a correction.

    Args:
        model: A torch module.
        layer: Where the logits are (`logn.locate_logits`), or the path of their module.
        affine: The map; for a layer with `stages=True` one per stage, or one for all.
        allow_refold: Fold on top of a map that is folded already. With `affine.inverse()` this undoes it, up to
            rounding. Whether `affine` was made for these weights is not checked then, as the earlier fold has changed
            them.
        allow_mismatch: Only warn where `affine` was made for other weights or another activation, for example those of
            the model before it was retrained. To know, all weights are digested once (some seconds for a model of
            gigabytes), if `affine` names a fingerprint.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2, dtype=torch.float64))
        >>> features = torch.rand(3, 4, dtype=torch.float64)
        >>> affine = ClassAffine([2.0, 1.0], [0.0, 1.0])
        >>> expected = affine(model(features))
        >>> fold(model, LogitLayer("0"), affine)
        >>> torch.allclose(model(features), expected)
        True
    """
    fold_checked(model, layer_of(model, layer), affine, allow_refold=allow_refold, allow_mismatch=allow_mismatch)


def fold_checked(
    model: nn.Module,
    layer: LogitLayer,
    affine: ClassAffine | Sequence[ClassAffine],
    check: Callable[[], None] = lambda: None,
    *,
    warns_of_ties: bool = True,
    allow_refold: bool = False,
    allow_mismatch: bool = False,
) -> None:
    """As `fold`, but the model is as before where `check`, which may run it, raises.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> weight = model[0].weight.detach().clone()
        >>> def refuse():
        ...     raise InputError("No.")
        >>> try:
        ...     fold_checked(model, LogitLayer("0"), ClassAffine([2.0, 1.0], [0.0, 1.0]), refuse)
        ... except InputError:
        ...     print(torch.equal(model[0].weight, weight))
        True
    """
    maps = maps_of_modules(model, layer, affine, allow_refold=allow_refold, allow_mismatch=allow_mismatch)
    # Tensors made in inference mode could never be trained again.
    with torch.inference_mode(False), torch.no_grad(), ExitStack() as undo:
        undo.enter_context(give_own_slots(model, layer))
        modules = find_modules(model, layer)
        folded = _folded_tensors(layer, modules, maps)
        outside = _parameters_outside(model, modules)
        written: dict[int, Tensor] = {}
        ties: list[str] = []
        for module, tensors in folded.items():
            undo.callback(_restore, module, {name: (old, old.data) for name, old in module.named_parameters("", False)})
            for name, tensor in tensors.items():
                tie = outside.get(id(getattr(module, name)))
                if tie is not None:
                    ties.append(f"`{layer.paths[modules.index(module)]}.{name}` was tied to `{tie}`")
                _write(module, name, tensor, written, alone=tie is not None)
            mark_folded(module)
        check()
        undo.pop_all()
        if ties:
            keep_untied(model)
        for tie in ties if warns_of_ties else ():
            warn(f"{tie}; it now has a copy of its own, so do not tie them again when loading.")


def _folded_tensors(
    layer: LogitLayer, modules: Sequence[nn.Module], maps: Sequence[ClassAffine]
) -> dict[nn.Module, dict[str, Tensor]]:
    """The new tensors of each distinct module; whatever is wrong is found before anything changes."""
    folded: dict[nn.Module, dict[str, Tensor]] = {}
    for index, (path, module, logit_map) in enumerate(zip(layer.paths, modules, maps, strict=True)):
        check_foldable(path, module, shifts=bool(logit_map.shift.any()))
        if module not in folded:
            scale, shift = layer.channels(logit_map.scale, index, elsewhere=1.0), layer.channels(logit_map.shift, index)
            folded[module] = _folded(path, module, torch.as_tensor(scale), torch.as_tensor(shift))
        elif logit_map != maps[modules.index(module)]:
            raise InputError(f"`{path}` is the same module in several stages, whose maps differ; pass one map for all.")
    return folded


def _folded(path: str, module: nn.Module, scale: Tensor, shift: Tensor) -> dict[str, Tensor]:
    """The new tensors of a module: computed in float64, tried out, rounded."""
    old = {name: tensor.detach().double().cpu() for name, tensor in module.named_parameters(recurse=False)}
    exact = {"weight": old["weight"] * scale.reshape(-1, *[1] * (old["weight"].dim() - 1))}
    if "bias" in old:
        exact["bias"] = old["bias"] * scale + shift
    _try_out(path, module, exact, scale, shift)
    rounded = {name: tensor.to(module.get_parameter("weight")) for name, tensor in exact.items()}
    for name, tensor in rounded.items():
        if not torch.isfinite(tensor).all():
            raise InputError(f"The folded {name} of `{path}` overflows {tensor.dtype}; fold the model in float32.")
    return rounded


def check_foldable(path: str, module: nn.Module, *, shifts: bool = True) -> None:
    """Refuse a module that cannot take a map, with the reason and the way out.

    Args:
        path: Its path.
        module: The module.
        shifts: Whether the map has shifts, which need a bias.

    Example:
        >>> check_foldable("fc", nn.Linear(4, 2, bias=False))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `fc` (Linear) has no bias for the correction, and weights with one would not load \
into the model's own class; use logn.attach instead.
    """
    refuse_attached(path, module)
    kind = type(module).__name__
    weight = module._parameters.get("weight")
    if weight is None:
        raise InputError(f"`{path}` ({kind}) has no weight of its own, since it is computed or quantised; {WAY_OUT}.")
    ordinary = type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point() and weight.element_size() >= 2
    if not ordinary or weight.device.type == "meta":
        raise InputError(
            f"The weights of `{path}` are {weight.dtype} ({type(weight).__name__}, {weight.device.type}): quantised, "
            f"sharded or not loaded; {WAY_OUT}."
        )
    if output_width(module) != len(weight):
        raise InputError(
            f"`{path}` ({kind}) has weights of shape {tuple(weight.shape)}, not one row per output; {WAY_OUT}."
        )
    if shifts and module._parameters.get("bias") is None:
        raise InputError(
            f"`{path}` ({kind}) has no bias for the correction, and weights with one would not load into the model's "
            f"own class; {WAY_OUT}."
        )


def _try_out(path: str, module: nn.Module, tensors: Mapping[str, Tensor], scale: Tensor, shift: Tensor) -> None:
    """Run a float64 copy with the old and the new tensors and compare: what does not follow them is refused."""
    kind = type(module).__name__
    try:
        trial = _float64_copy(module)
        inputs = _trial_input(trial)
        before = trial.forward(inputs)
        trial._parameters.update({name: nn.Parameter(tensor) for name, tensor in tensors.items()})
        after = trial.forward(inputs)
        shape = [-1] + [1] * (inputs.dim() - 2)
        expected = before * scale.reshape(shape) + shift.reshape(shape)
        error = float((after - expected).abs().max() / expected.abs().max().clamp(min=1.0))
    except (RuntimeError, TypeError, ValueError, AttributeError) as problem:
        raise InputError(
            f"`{path}` ({kind}) does not run by itself, so the fold cannot be tried ({problem}); {WAY_OUT}."
        ) from problem
    if not error <= TRIAL_TOLERANCE:
        raise InputError(
            f"`{path}` ({kind}) does not give weight * input + bias (a cosine head normalises its weight in every "
            f"pass, so scaling it has no effect); {WAY_OUT}."
        )


def _float64_copy(module: nn.Module) -> nn.Module:
    """A copy on the CPU for one pass. Its hooks are neither copied nor run: they may hold anything."""

    def as_double(tensor: Any) -> Any:
        is_number = tensor is not None and tensor.is_floating_point()
        return tensor.detach().to("cpu", torch.float64) if is_number else tensor

    trial = copy.copy(module)
    trial._parameters = {name: as_double(tensor) for name, tensor in module._parameters.items()}
    trial._buffers = {name: as_double(tensor) for name, tensor in module._buffers.items()}
    trial._modules = {
        name: None if child is None else copy.deepcopy(child).to("cpu", torch.float64)
        for name, child in module._modules.items()
    }
    return trial.eval()


def _trial_input(module: nn.Module) -> Tensor:
    weight = module._parameters["weight"]
    assert weight is not None  # noqa: S101 - check_foldable saw it
    kernel = weight.shape[2:]
    dilation = getattr(module, "dilation", (1,) * len(kernel))
    sides = [step * (size - 1) + 4 for step, size in zip(dilation, kernel, strict=True)]
    channels = weight.shape[1] * getattr(module, "groups", 1)
    return torch.randn(4, channels, *sides, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _parameters_outside(model: nn.Module, modules: Sequence[nn.Module]) -> dict[int, str]:
    """Names of the parameters that other modules than these hold, by identity."""
    return {
        id(parameter): f"{path}.{name}" if path else name
        for path, module in unwrap(model).named_modules()
        if module not in modules
        for name, parameter in module._parameters.items()
        if parameter is not None
    }


def _write(module: nn.Module, name: str, tensor: Tensor, written: dict[int, Tensor], *, alone: bool) -> None:
    """Write a new tensor. Storage is not written to, so what shares only memory stays.

    Args:
        module: The module.
        name: The name of its parameter.
        tensor: What it becomes.
        written: The new tensors so far, by the identity of the parameter; grows.
        alone: Whether other modules hold the parameter, so that this one needs another.
    """
    current: nn.Parameter = getattr(module, name)
    # The data of a parameter made in inference mode cannot be replaced outside of it.
    if not alone and not current.is_inference():
        if id(current) not in written:
            # The parameter itself stays, for optimizers and for modules of the layer that share it.
            written[id(current)] = tensor
            current.data = tensor
            return
        if torch.equal(written[id(current)], tensor):
            return
    setattr(module, name, nn.Parameter(tensor, requires_grad=current.requires_grad))


def _restore(module: nn.Module, parameters: Mapping[str, tuple[nn.Parameter, Tensor]]) -> None:
    for name, (parameter, data) in parameters.items():
        module._parameters[name] = parameter
        if not parameter.is_inference():
            parameter.data = data
    vars(module).pop(MARK, None)


def watch_logits(model: nn.Module, layer: LogitLayer, run: Callable[[], object]) -> list[Pass]:
    """The logits of `layer`, and what `model` returns, while `run` runs it on some images; for `prove`.

    Args:
        model: A torch module; modes and random numbers are afterwards as they were.
        layer: Where the logits are.
        run: Runs it.
    """
    layers = {path: partial(_excerpt, layer, index) for index, path in enumerate(layer.paths)}
    with give_own_slots(model, layer):
        return watch(model, layers, run)


def _excerpt(layer: LogitLayer, index: int, output: Tensor) -> Tensor:
    rows: Tensor = layer.rows(output, index)
    step = 1 if is_comparable(layer) else -(-rows.numel() // MOST_VALUES)
    return rows if step <= 1 else rows.flatten(0, -2)[::step]


def prove(layer: LogitLayer, maps: Sequence[ClassAffine], before: Sequence[Pass], after: Sequence[Pass]) -> Proof:
    """Compare a model with its corrected self on the same inputs: new logits are the map of the old ones.

    Where a classifier returns its logits, all else that it returns must stay; what does not is refused.

    Args:
        layer: Where the logits are.
        maps: The map of each stage.
        before: What `watch_logits` saw of the model.
        after: What it saw of the corrected one.

    Example:
        >>> model, layer, images = nn.Sequential(nn.Linear(4, 2)), LogitLayer("0"), torch.rand(3, 4)
        >>> before, affine = watch_logits(model, layer, lambda: model(images)), ClassAffine([2.0, 1.0], [0.0, 1.0])
        >>> fold(model, layer, affine)
        >>> proof = prove(layer, [affine], before, watch_logits(model, layer, lambda: model(images)))
        >>> proof.holds, proof.rows
        (True, 3)
    """
    if _shapes(before) != _shapes(after):
        raise InputError(f"With the correction `{layer.name}` runs on something else, since its logits decide on what.")
    maps_by_path = {path: maps[stage] for path, stage in zip(layer.paths, layer.stage_of, strict=True)}
    calls = [
        (maps_by_path[path], *rows)
        for old, new in zip(before, after, strict=True)
        for path in old.rows
        for rows in zip(old.rows[path], new.rows[path], strict=True)
    ]
    pairs = ((affine(rows.double()).numpy(), new_rows.double().numpy()) for affine, rows, new_rows in calls)
    proof = Proof.of(pairs, half=any(new_rows.element_size() < 4 for _, _, new_rows in calls))
    if proof.holds and is_comparable(layer):
        for old, new in zip(before, after, strict=True):
            _check_kept(layer, old, new)
    return proof


def _shapes(passes: Sequence[Pass]) -> list[dict[str, list[torch.Size]]]:
    return [{path: [rows.shape for rows in calls] for path, calls in item.rows.items()} for item in passes]


def _check_kept(layer: LogitLayer, before: Pass, after: Pass) -> None:
    """Refuse what a model returns, if it is neither the mapped logits nor as before.

    Passes that return no class scores (labels, chosen boxes) are not compared.
    """
    rows, mapped = ([call for calls in item.rows.values() for call in calls] for item in (before, after))
    scores = [name for name, tensor in before.parts if compare(together(rows), [tensor]).agrees]
    returned = dict(after.parts)
    for name, tensor in before.parts if scores else ():
        new = returned.get(name, tensor.new_empty(0))
        stays = compare(together(mapped), [new]).agrees is not False if name in scores else _is_unmoved(tensor, new)
        if not stays:
            raise InputError(
                f"The correction of `{layer.name}` would change the output{f' `{name}`' if name else ''} too: "
                "something else in the model reads the layer or its logits; pass the class scores alone through "
                'self.scores = torch.nn.Identity() in forward, name that as logn.LogitLayer("scores", num_columns=…), '
                "and use logn.attach (in Python check_output=False leaves this check out)."
            )


def _is_unmoved(before: Tensor, after: Tensor) -> bool:
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    first, second = before.double().nan_to_num(), after.double().nan_to_num()
    allowed = max(OUTPUT_TOLERANCE, ROUNDINGS * torch.finfo(before.dtype).eps)
    return before.numel() == 0 or float((first - second).abs().max()) <= allowed * max(1.0, float(first.abs().max()))
