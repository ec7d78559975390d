"""fold: write a map into the weights of a model, which then costs nothing, and prove it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from logn.errors import InputError, warn
from logn.methods.affine import ClassAffine
from logn.models.frameworks.transformers import keep_untied
from logn.models.hooks import give_own_slots
from logn.models.layer import LogitLayer, find_modules, output_width, unwrap, with_class_axis
from logn.models.locate import layer_of
from logn.models.output_check import Pass, compare, is_comparable, together, watch
from logn.models.proof import Proof
from logn.models.torch.attach import maps_of_modules, mark_module, refuse_attached, unmark_module

# How far the folded layer may be off in float64, relative to the largest logit of the trial.
TRIAL_TOLERANCE = 1e-9
WAY_OUT = "use logn.attach instead"
# How far an output that is to stay may move, relative to its largest number; more where its precision is coarser.
OUTPUT_TOLERANCE = 1e-5
ROUNDINGS = 4.0
SEPARATE_SCORES = (
    "pass the class scores alone through self.scores = torch.nn.Identity() in forward, name that as "
    'logn.LogitLayer("scores", num_columns=…), and use logn.attach (in Python check_output=False leaves this check out)'
)


@dataclass(frozen=True)
class _Fold:
    """What is to be written: the new tensors of one module, in the precision they will have."""

    path: str
    module: nn.Module
    tensors: dict[str, Tensor]


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
    layer = layer_of(model, layer)
    fold_checked(model, layer, affine, lambda: None, allow_refold=allow_refold, allow_mismatch=allow_mismatch)


def fold_checked(
    model: nn.Module,
    layer: LogitLayer,
    affine: ClassAffine | Sequence[ClassAffine],
    check: Callable[[], None],
    *,
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
        for slot in give_own_slots(model, layer):
            undo.callback(slot.restore)
        folds = _prepare_all(layer, find_modules(model, layer), maps)
        outside = _parameters_outside(model, folds)
        written: dict[int, Tensor] = {}
        for item in folds.values():
            undo.callback(_restore, item.module, _state_of(item.module))
        tied = False
        for item in folds.values():
            tied |= _write(item, outside, written)
        check()
        undo.pop_all()
        if tied:
            keep_untied(model)


def _state_of(module: nn.Module) -> dict[str, Any]:
    """What a fold may replace in a module; it writes to no storage, so the tensors need not be copied."""
    data = {name: parameter.data for name, parameter in module._parameters.items() if parameter is not None}
    return {"parameters": dict(module._parameters), "data": data}


def _restore(module: nn.Module, state: Mapping[str, Any]) -> None:
    module._parameters.update(state["parameters"])
    for name, tensor in state["data"].items():
        if not tensor.is_inference():  # else a fold gives the module a new parameter
            state["parameters"][name].data = tensor
    unmark_module(module)


def _prepare_all(layer: LogitLayer, modules: Sequence[nn.Module], maps: Sequence[ClassAffine]) -> dict[int, _Fold]:
    """The fold of every distinct module, by identity; whatever is wrong is found before anything changes."""
    folds: dict[int, _Fold] = {}
    for index, (path, module, logit_map) in enumerate(zip(layer.paths, modules, maps, strict=True)):
        check_foldable(path, module, shifts=bool(logit_map.shift.any()))
        if id(module) not in folds:
            folds[id(module)] = _prepare(layer, index, module, logit_map)
        elif logit_map != maps[list(modules).index(module)]:
            raise InputError(f"`{path}` is the same module in several stages, whose maps differ; pass one map for all.")
    return folds


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
    if not is_plain(weight):
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


def is_plain(weight: Tensor) -> bool:
    """Whether `weight` is an ordinary floating point tensor: not quantised, sharded, or without memory."""
    ordinary = type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point() and weight.element_size() >= 2
    return ordinary and weight.device.type != "meta"


def _prepare(layer: LogitLayer, index: int, module: nn.Module, affine: ClassAffine) -> _Fold:
    """Compute the new tensors in float64, try them out, round them; nothing is changed yet."""
    path = layer.paths[index]
    scale = torch.tensor(layer.channels(affine.scale, index, elsewhere=1.0), dtype=torch.float64)
    shift = torch.tensor(layer.channels(affine.shift, index), dtype=torch.float64)
    exact = _folded_tensors(module, scale, shift)
    _try_out(path, module, exact, scale, shift)
    weight = module._parameters["weight"]
    assert weight is not None  # noqa: S101 - check_foldable saw it
    rounded = {name: tensor.to(weight) for name, tensor in exact.items()}
    for name, tensor in rounded.items():
        if not torch.isfinite(tensor).all():
            raise InputError(f"The folded {name} of `{path}` overflows {weight.dtype}; fold the model in float32.")
    return _Fold(path, module, rounded)


def _folded_tensors(module: nn.Module, scale: Tensor, shift: Tensor) -> dict[str, Tensor]:
    """Weight and bias after the fold, in float64."""
    exact = {name: tensor.detach().double().cpu() for name, tensor in module.named_parameters(recurse=False)}
    folded = {"weight": exact["weight"] * scale.reshape(-1, *[1] * (exact["weight"].dim() - 1))}
    return {**folded, "bias": exact["bias"] * scale + shift} if "bias" in exact else folded


def _try_out(path: str, module: nn.Module, exact: dict[str, Tensor], scale: Tensor, shift: Tensor) -> None:
    """Run a float64 copy with the old and the new tensors and compare: what does not follow them is refused."""
    kind = type(module).__name__
    try:
        trial = _float64_copy(module)
        inputs = _trial_input(trial)
        before = trial.forward(inputs)
        for name, tensor in exact.items():
            _assign(trial, name, tensor)
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
    trial = copy.copy(module)
    trial._parameters = {
        name: None if tensor is None else nn.Parameter(tensor.detach().to("cpu", torch.float64), requires_grad=False)
        for name, tensor in module._parameters.items()
    }
    trial._buffers = {
        name: tensor.to("cpu", torch.float64) if tensor is not None and tensor.is_floating_point() else tensor
        for name, tensor in module._buffers.items()
    }
    trial._modules = {
        name: None if child is None else copy.deepcopy(child).to("cpu", torch.float64)
        for name, child in module._modules.items()
    }
    return trial.eval()


def _trial_input(module: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    weight = module.weight
    channels = weight.shape[1] * getattr(module, "groups", 1)
    kernel = weight.shape[2:]
    dilation = getattr(module, "dilation", (1,) * len(kernel))
    sizes = [step * (size - 1) + 4 for step, size in zip(dilation, kernel, strict=True)]
    return torch.randn(4, channels, *sizes, generator=generator, dtype=torch.float64)


def _assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Put `tensor` in the place of the parameter `name`."""
    setattr(module, name, nn.Parameter(tensor, requires_grad=getattr(module, name).requires_grad))


def _parameters_outside(model: nn.Module, folds: dict[int, _Fold]) -> dict[int, str]:
    """Names of the parameters that modules outside the fold hold, by identity."""
    return {
        id(parameter): f"{path}.{name}" if path else name
        for path, module in unwrap(model).named_modules()
        if id(module) not in folds
        for name, parameter in module._parameters.items()
        if parameter is not None
    }


def _write(item: _Fold, outside: dict[int, str], written: dict[int, Tensor]) -> bool:
    """Write the new tensors; say whether any was tied. Storage is not written to, so what shares only memory stays."""
    tied = False
    for name, tensor in item.tensors.items():
        current = getattr(item.module, name)
        if id(current) in outside:
            warn(
                f"`{item.path}.{name}` was tied to `{outside[id(current)]}`; it now has a copy of its own, so do not "
                "tie them again when loading."
            )
            _assign(item.module, name, tensor)
            tied = True
        elif current.is_inference():  # its data cannot be replaced outside of inference mode
            _assign(item.module, name, tensor)
        elif id(current) not in written:
            # The parameter itself stays, for optimizers and for modules of the layer that share it.
            written[id(current)] = tensor
            current.data = tensor
        elif not torch.equal(written[id(current)], tensor):
            _assign(item.module, name, tensor)
    mark_module(item.module)
    return tied


def copied_layer(model: nn.Module, layer: LogitLayer) -> list[nn.Module]:
    """Copies of the modules of `layer`, to compare with once they have changed."""
    return [copy.deepcopy(module) for module in find_modules(model, layer)]


def prove_fold(
    model: nn.Module,
    layer: LogitLayer,
    plain: Sequence[nn.Module],
    maps: Sequence[ClassAffine],
    run: Callable[[], object],
) -> Proof:
    """Run a folded model and compare every output of its class layer with the map of what the plain layer gives there.

    Args:
        model: The folded model, best as it came back from its file.
        layer: Where its logits are.
        plain: The modules of `layer` before the fold (`copied_layer`).
        maps: The map of each stage.
        run: Runs the model, on images.

    Example:
        >>> from logn.models.torch.fold import fold
        >>> model, layer = nn.Sequential(nn.Linear(4, 2)), LogitLayer("0")
        >>> plain, affine = copied_layer(model, layer), ClassAffine([2.0, 1.0], [0.0, 1.0])
        >>> fold(model, layer, affine)
        >>> proof = prove_fold(model, layer, plain, [affine], lambda: model(torch.rand(3, 4)))
        >>> proof.holds, proof.rows
        (True, 3)
    """
    layer = with_class_axis(model, layer)
    modules = find_modules(model, layer)
    seen = _Seen()
    with ExitStack() as hooks, torch.inference_mode():
        for index, module in {id(module): (index, module) for index, module in enumerate(modules)}.values():
            affine = maps[layer.stage_of[index]]
            compare = _comparing(layer, index, plain[index], affine, seen)
            hooks.callback(module.register_forward_hook(compare).remove)
        run()
    half = any(tensor.element_size() < 4 for module in modules for tensor in module.parameters())
    return Proof.of(seen.difference, seen.largest, seen.rows, half=half)


class _Seen:
    """What the hooks have seen so far."""

    difference, largest, rows = 0.0, 0.0, 0


def _comparing(
    layer: LogitLayer, index: int, plain: nn.Module, affine: ClassAffine, seen: _Seen
) -> Callable[[nn.Module, Any, Any], None]:
    channels = [layer.channels(affine.scale, index, elsewhere=1.0), layer.channels(affine.shift, index)]

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        before = plain(*inputs).double()
        axis = layer.axis_in(before)
        shape = [-1 if place == axis else 1 for place in range(before.dim())]
        scale, shift = (torch.as_tensor(values, device=before.device).reshape(shape) for values in channels)
        expected = before * scale + shift
        difference = (output.double() - expected).abs().nan_to_num(nan=torch.inf)
        if output.numel():
            seen.difference = max(seen.difference, float(difference.max()))
            seen.largest = max(seen.largest, float(expected.abs().max()))
        seen.rows += output.numel() // output.shape[axis] * layer.anchors_of(index)

    return hook


def check_same_weights(found: nn.Module, wanted: nn.Module, name: str) -> None:
    """Refuse a model from a file whose weights are not, bit for bit, those that were to be written.

    Example:
        >>> check_same_weights(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), "model")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: The written `model` differs from the corrected model in `bias`; nothing was written.
    """
    mine, other = (model.state_dict() for model in (found, wanted))
    for key in sorted({*mine, *other}):
        one, two = mine.get(key), other.get(key)
        if not isinstance(one, Tensor) or not isinstance(two, Tensor) or not _same(one, two):
            raise InputError(f"The written `{name}` differs from the corrected model in `{key}`; nothing was written.")


def _same(one: Tensor, two: Tensor) -> bool:
    return one.dtype == two.dtype and torch.equal(one.cpu().nan_to_num(), two.cpu().nan_to_num())


def watch_outputs(model: nn.Module, layer: LogitLayer, run: Callable[[], object]) -> list[Pass]:
    """What `model` returns while `run` runs it; nothing for a detector that decodes its logits before it returns them.

    Args:
        model: A torch module; modes and random numbers are afterwards as they were.
        layer: Where the logits are.
        run: Runs it on some images.
    """
    whole = with_class_axis(model, layer)
    return watch(model, dict.fromkeys(layer.paths, whole), run) if is_comparable(layer) else []


def check_kept(layer: LogitLayer, affine: ClassAffine, before: Sequence[Pass], after: Sequence[Pass]) -> None:
    """Refuse a correction after which the model returns anything but mapped class scores and all else as it was.

    Passes that return no class scores (labels, chosen boxes) are not compared.

    Example:
        >>> logits, boxes = torch.rand(4, 3), torch.rand(4, 4)
        >>> affine = ClassAffine([1.0, 1.0, 1.0], [0.0, 1.0, 2.0])
        >>> before = Pass({"fc": [logits]}, [("logits", logits), ("boxes", boxes)])
        >>> check_kept(LogitLayer("fc"), affine, [before], [Pass({}, [("logits", affine(logits)), ("boxes", boxes)])])
        >>> check_kept(LogitLayer("fc"), affine, [before], [Pass({}, [("logits", affine(logits)), ("boxes", -boxes)])])
        Traceback (most recent call last):
        ...
        logn.errors.InputError: The correction of `fc` would change the output `boxes` too: something else in the \
model reads the layer or its logits; ...
    """
    for was, now in zip(before, after, strict=False):
        calls = [rows for module_calls in was.rows.values() for rows in module_calls]
        rows, mapped = together(calls), together([affine(call) for call in calls])
        scores = [name for name, tensor in was.parts if rows and compare(rows, [tensor]).agrees]
        new = dict(now.parts)
        for name, tensor in was.parts if scores else ():
            if name in scores:
                verdict = compare(mapped, [new[name]]) if name in new else None
                if verdict is None or verdict.agrees is False:
                    raise InputError(
                        f"The corrected model does not return the mapped class scores{_named(name)}: something sets "
                        f"the weights of `{layer.name}` in each pass, or reads them or its logits elsewhere; "
                        f"{SEPARATE_SCORES}."
                    )
            elif name not in new or not _unmoved(tensor, new[name]):
                raise InputError(
                    f"The correction of `{layer.name}` would change the output{_named(name)} too: something else in "
                    f"the model reads the layer or its logits; {SEPARATE_SCORES}."
                )


def _named(name: str) -> str:
    return f" `{name}`" if name else ""


def _unmoved(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    first, second = one.double().nan_to_num(), two.double().nan_to_num()
    allowed = max(OUTPUT_TOLERANCE, ROUNDINGS * torch.finfo(one.dtype).eps)
    return one.numel() == 0 or float((first - second).abs().max()) <= allowed * max(1.0, float(first.abs().max()))
