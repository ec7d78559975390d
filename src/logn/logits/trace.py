"""Hold a layer against what the model returns while it runs, and find the layer by what it gives."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logn.errors import InputError, LogNWarning
from logn.logits.arrays import is_torch_tensor
from logn.logits.candidates import listed_candidates
from logn.logits.hooks import never_compiled, recompile
from logn.logits.layer import LogitLayer, class_axis_of, find_modules, output_width, unwrap
from logn.logits.returned import UNKNOWN, Verdict, compare, returned_tensors

if TYPE_CHECKING:
    from torch import Tensor, nn

# Detectors decode their logits into boxes and scores before they return them.
COMPARABLE_POPULATIONS = (None, "images", "image locations")
WAY_OUT = (
    "name the layer whose output the model returns; where it returns a mix of several, pass that through a module of "
    "its own in forward, such as self.logits = torch.nn.Identity(), and name that "
    '(LogitLayer("logits", num_classes=…), with logn.attach)'
)


class OutputCheck:
    """Compare the logits of a layer with what the model returns, once, in the first forward pass that can tell.

    Passes in training mode, and those that return nothing like the logits, decide nothing. A pass that shows that the
    model returns something else than these logits, multiplies them first (a temperature), or applies another activation
    than `layer` says, is refused.

    Args:
        model: A torch module.
        layer: Where the logits are, with its class axis.
        on_activation: Called with the activation when the forward pass shows one.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Sigmoid()).eval()
        >>> with OutputCheck(model, LogitLayer("0", class_axis=-1), on_activation=print):
        ...     _ = model(torch.rand(5, 4))
        sigmoid
    """

    def __init__(self, model: nn.Module, layer: LogitLayer, on_activation: Callable[[str], None] | None = None) -> None:
        self.verdict = UNKNOWN
        self._model, self._layer, self._on_activation = unwrap(model), layer, on_activation
        # Replicas of a data-parallel model run in threads.
        self._passes = threading.local()
        self._handles: list[Any] = []
        self._own: set[int] = set()

    def __enter__(self) -> OutputCheck:
        if not is_comparable(self._layer):
            return self
        self._handles.append(self._model.register_forward_pre_hook(never_compiled(self._begin)))
        for index, module in enumerate(find_modules(self._model, self._layer)):
            # After the other hooks, so that a map attached to the layer counts.
            self._handles.append(module.register_forward_hook(never_compiled(self._capture_of(index))))
            self._own.add(self._handles[-1].id)
        self._handles.append(self._model.register_forward_hook(never_compiled(self._end)))
        recompile()
        return self

    def __exit__(self, *_: Any) -> None:
        self._remove()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _begin(self, module: nn.Module, *_: Any) -> None:
        undecided = self.verdict.agrees is None and not module.training
        self._passes.captured = {} if undecided else None

    def _capture_of(self, index: int) -> Callable[..., None]:
        def capture(module: nn.Module, inputs: Any, output: Any) -> None:
            captured = getattr(self._passes, "captured", None)
            if next(reversed(module._forward_hooks)) not in self._own:
                self._passes.captured = None  # a hook that came later, such as an attached map, changes the output
            elif captured is not None and is_torch_tensor(output):
                # A copy, since what follows may work in place.
                rows = self._layer.rows(output.detach(), index)
                captured.setdefault(index, []).append(rows.clone())

        return capture

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        captured, self._passes.captured = getattr(self._passes, "captured", None), None
        if not captured:
            return
        verdict = compare(
            together([captured[index] for index in sorted(captured)]),
            returned_tensors(output),
            may_drop_columns=self._layer.background is not None,
        )
        self._take(verdict, output)

    def _take(self, verdict: Verdict, output: Any) -> None:
        self.verdict = verdict
        if verdict.agrees is False:
            raise InputError(_not_returned(self._model, self._layer, returned_tensors(output)))
        if verdict.rescaled:
            raise _rescaled(self._layer, verdict)
        if verdict.rectified:
            warn_of_rectifier(self._layer.name)
        if verdict.activation is None:
            return
        stated = self._layer.activation
        if stated is not None and stated != verdict.activation:
            raise InputError(
                f"Expected `layer.activation` to be what the model applies to `{self._layer.name}`, "
                f"{verdict.activation!r}, but got {stated!r}; write activation={verdict.activation!r}, or leave it out."
            )
        if self._on_activation is not None:
            self._on_activation(verdict.activation)


def is_comparable(layer: LogitLayer) -> bool:
    """Whether the logits of `layer` are expected in what the model returns: a classifier's, one row per image."""
    whole = layer.final_only is None and not layer.stages and not layer.extra_columns and layer.anchors == 1
    return whole and layer.population in COMPARABLE_POPULATIONS


def together(calls: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """What the calls of one or of several layers may have become: the logits of each, of all calls, or their mean."""
    import torch

    single = [rows for path in calls for rows in path]
    if len(single) == 1:
        return single
    shapes = {tuple(rows.shape) for rows in single}
    means = [torch.stack([rows.float() for rows in single]).mean(0).to(single[0].dtype)] if len(shapes) == 1 else []
    widths = {tuple(rows.shape[1:]) for rows in single}
    joined = [torch.cat(single)] if len(widths) == 1 and single[0].ndim > 1 else []
    return [*means, *reversed(single), *joined]


def warn_of_rectifier(path: str) -> None:
    """Warn of what SqueezeNet does: it rectifies its logits, which cuts off what a map moves below zero."""
    warnings.warn(
        f"ReLU follows `{path}` and cuts off the logits below 0, so a map that lowers them loses some.",
        LogNWarning,
        stacklevel=4,
    )


def find_by_output(model: nn.Module, run: Callable[[], Any]) -> dict[str, Verdict]:
    """The layers whose logits `model` returns when `run` runs it: one for each returned tensor that is of one alone.

    The model runs twice: first to see how many columns it returns, then to compare the layers that have as many.
    """
    inner = unwrap(model)
    with as_it_was(inner):
        widths = {size for tensor in returned_tensors(run()) for size in tensor.shape[1:] or tensor.shape}
        layers = {
            path: LogitLayer(path, class_axis=class_axis_of(module))
            for path, module in inner.named_modules()
            if path and output_width(module) in widths and "aux" not in path.lower()
        }
        captured, returned = _captured(inner, layers, run)
    found: dict[str, Verdict] = {}
    for tensor in returned:
        verdicts = ((path, compare(rows, [tensor], may_drop_columns=True)) for path, rows in reversed(captured.items()))
        first = next(((path, verdict) for path, verdict in verdicts if verdict.agrees), None)
        if first is not None:
            found.setdefault(*first)
    return found


def _captured(
    model: nn.Module, layers: dict[str, LogitLayer], run: Callable[[], Any]
) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
    """The logits that each layer gives, in the order in which they are called last, and what the model returns."""
    captured: dict[str, list[Tensor]] = {}

    def capture_of(path: str) -> Callable[..., None]:
        def capture(module: nn.Module, inputs: Any, output: Any) -> None:
            if is_torch_tensor(output):
                earlier = captured.pop(path, [])
                captured[path] = [*earlier, layers[path].rows(output.detach()).clone()]

        return never_compiled(capture)

    with contextlib.ExitStack() as hooks:
        hooks.callback(recompile)
        for path in layers:
            hooks.callback(model.get_submodule(path).register_forward_hook(capture_of(path)).remove)
        recompile()
        returned = returned_tensors(run())
    return {path: together([calls]) for path, calls in captured.items()}, returned


@contextlib.contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients for a while; modes and random numbers are then as if nothing had run."""
    import torch

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


def with_activation(layer: LogitLayer, verdict: Verdict) -> LogitLayer:
    """`layer` with the activation that was seen, where it does not say one."""
    return layer if layer.activation is not None else replace(layer, activation=verdict.activation)


def _not_returned(model: nn.Module, layer: LogitLayer, returned: Sequence[Tensor]) -> str:
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in returned)
    widths = [size for tensor in returned for size in tensor.shape[1:]]
    return (
        f"Expected the model to return the logits of `{layer.name}`, perhaps activated, but what it returns "
        f"({shapes}) is not made of them alone; {WAY_OUT}, or say check_output=False if you know better; its layers "
        f"are: {listed_candidates(model, widths)}."
    )


def _rescaled(layer: LogitLayer, verdict: Verdict) -> InputError:
    done = f"multiplies them by {verdict.scale:.4g}" if abs(verdict.scale - 1) > 1e-3 else "moves them"
    done += f" and adds {verdict.shift:.4g}" if verdict.activation == "sigmoid" else ""
    return InputError(
        f"Expected the model to take the logits of `{layer.name}` as they are, but it {done} first (a temperature?), "
        "so its scores are of others; pass what comes out through a module of its own in forward, such as "
        'self.logits = torch.nn.Identity(), and name that (LogitLayer("logits", num_classes=…), with logn.attach), or '
        "say check_output=False if you know better."
    )
