"""What a correction may change: the class scores, and nothing else that a model returns.

A class layer may be read by more than the class scores: its weight may serve twice, its logits may feed a box head, a
hook may set its weights in every pass. So the model runs on one batch before and after, and all it returns is compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.logits.hooks import never_compiled, recompile
from logn.logits.layer import LogitLayer, find_modules, unwrap, with_class_axis
from logn.logits.output_check import as_it_was, compare, is_comparable, returned_parts, together

# How far an output may move, relative to its largest number; more where its precision is coarser.
TOLERANCE = 1e-5
ROUNDINGS = 4.0
_WAY_OUT = (
    "let the class scores alone pass through a module of their own in forward, such as self.scores = "
    'torch.nn.Identity(), and name that (LogitLayer("scores", num_classes=…), with logn.attach), or say '
    "check_output=False if you know better"
)


@dataclass
class Pass:
    """One forward pass: the logits of each call of the class layer, and all tensors that the model returned."""

    rows: list[Tensor] = field(default_factory=list)
    parts: list[tuple[str, Tensor]] = field(default_factory=list)


def watch_outputs(model: nn.Module, layer: LogitLayer, run: Callable[[], object]) -> list[Pass]:
    """What `model` returns while `run` runs it; nothing for a detector that decodes its logits before it returns them.

    Args:
        model: A torch module; modes and random numbers are afterwards as they were.
        layer: Where the logits are.
        run: Runs it on some images.
    """
    if not is_comparable(layer):
        return []
    inner, layer, passes = unwrap(model), with_class_axis(model, layer), list[Pass]()

    def begin(module: nn.Module, inputs: Any) -> None:
        passes.append(Pass())

    def capture(module: nn.Module, inputs: Any, output: Any) -> None:
        if passes:
            passes[-1].rows.append(layer.rows(output.detach()).cpu().clone())

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        passes[-1].parts.extend((name, tensor.cpu().clone()) for name, tensor in returned_parts(output))

    with as_it_was(inner), contextlib.ExitStack() as hooks:
        hooks.callback(recompile)
        hooks.callback(inner.register_forward_pre_hook(never_compiled(begin)).remove)
        for module in {id(module): module for module in find_modules(inner, layer)}.values():
            hooks.callback(module.register_forward_hook(never_compiled(capture)).remove)
        hooks.callback(inner.register_forward_hook(never_compiled(end)).remove)
        recompile()
        run()
    return passes


def check_kept(layer: LogitLayer, affine: ClassAffine, before: Sequence[Pass], after: Sequence[Pass]) -> None:
    """Refuse a correction after which the model returns anything but mapped class scores and all else as it was.

    Passes that return no class scores (labels, chosen boxes) are not compared.

    Example:
        >>> logits, boxes = torch.rand(4, 3), torch.rand(4, 4)
        >>> affine = ClassAffine([1.0, 1.0, 1.0], [0.0, 1.0, 2.0])
        >>> before = Pass([logits], [("logits", logits), ("boxes", boxes)])
        >>> check_kept(LogitLayer("fc"), affine, [before], [Pass([], [("logits", affine(logits)), ("boxes", boxes)])])
        >>> check_kept(LogitLayer("fc"), affine, [before], [Pass([], [("logits", affine(logits)), ("boxes", -boxes)])])
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the correction of `fc` to change the class scores alone, but the output \
`boxes` changes too: something else in the model reads the layer or its logits; ...
    """
    for was, now in zip(before, after, strict=False):
        rows, mapped = together([was.rows]), together([[affine(call) for call in was.rows]])
        scores = [name for name, tensor in was.parts if rows and compare(rows, [tensor]).agrees]
        new = dict(now.parts)
        for name, tensor in was.parts if scores else ():
            if name in scores:
                verdict = compare(mapped, [new[name]]) if name in new else None
                if verdict is None or verdict.agrees is False or verdict.rescaled:
                    raise InputError(
                        f"Expected the corrected model to return the map of the class scores{_named(name)}, but it "
                        f"returns others: something sets the weights of `{layer.name}` in each pass, or reads them or "
                        f"its logits elsewhere; {_WAY_OUT}."
                    )
            elif name not in new or not _same(tensor, new[name]):
                raise InputError(
                    f"Expected the correction of `{layer.name}` to change the class scores alone, but the output"
                    f"{_named(name)} changes too: something else in the model reads the layer or its logits; "
                    f"{_WAY_OUT}."
                )


def _named(name: str) -> str:
    return f" `{name}`" if name else ""


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    first, second = one.double().nan_to_num(), two.double().nan_to_num()
    allowed = max(TOLERANCE, ROUNDINGS * torch.finfo(one.dtype).eps)
    return one.numel() == 0 or float((first - second).abs().max()) <= allowed * max(1.0, float(first.abs().max()))
