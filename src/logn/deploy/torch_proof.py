"""Proving that a folded torch model does what it should: its class layer against the one before, as the model runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from logn.calibrators.class_affine import ClassAffine
from logn.deploy.onnx_proof import HALF_TOLERANCE, TOLERANCE, Proof
from logn.errors import InputError
from logn.logits.layer import LogitLayer, find_modules, with_class_axis


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
        >>> from logn.deploy.fold import fold
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
    tolerance = (HALF_TOLERANCE if half else TOLERANCE) * max(1.0, seen.largest)
    return Proof(seen.difference, seen.largest, tolerance, seen.rows)


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


def check_fold_proof(proof: Proof, name: str) -> Proof:
    """Refuse a fold whose proof does not hold.

    Example:
        >>> check_fold_proof(Proof(0.5, 3.0, 3e-4, 10), "best.pt")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the corrected `best.pt` to give scale * logit + shift, but it is off by 0.5 at
        logits of up to 3; nothing was written.
    """
    if proof.rows == 0:
        raise InputError(f"Expected the class layer of `{name}` to run on the images, but it did not.")
    if not proof.holds:
        raise InputError(
            f"Expected the corrected `{name}` to give scale * logit + shift, but it is off by "
            f"{proof.largest_difference:.3g} at logits of up to {proof.largest_logit:.3g}; nothing was written."
        )
    return proof


def check_same_weights(found: nn.Module, wanted: nn.Module, name: str) -> None:
    """Refuse a model from a file whose weights are not, bit for bit, those that were to be written.

    Example:
        >>> check_same_weights(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), "model")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the written `model` to hold the weights of the corrected model, but `bias` is
        not the same; nothing was written.
    """
    mine, other = (model.state_dict() for model in (found, wanted))
    for key in sorted({*mine, *other}):
        one, two = mine.get(key), other.get(key)
        if not isinstance(one, Tensor) or not isinstance(two, Tensor) or not _same(one, two):
            raise InputError(
                f"Expected the written `{name}` to hold the weights of the corrected model, but `{key}` is not the "
                "same; nothing was written."
            )


def _same(one: Tensor, two: Tensor) -> bool:
    return one.dtype == two.dtype and torch.equal(one.cpu().nan_to_num(), two.cpu().nan_to_num())
