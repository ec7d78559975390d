"""What a model returns, held against the logits of its layers: once as it runs, and to find the class layer."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from logn.base.arrays import is_torch_tensor
from logn.errors import InputError
from logn.models.hooks import as_it_was, never_compiled, recompile
from logn.models.layer import LogitLayer, class_axis_of, listed_candidates, output_width, unwrap

# How deep returned containers are looked into.
DEEPEST = 3
# How far the values may be off, relative to their range; more where the precision of the tensors is coarser.
TOLERANCE = 1e-4
ROUNDINGS = 4.0
# Detectors decode their logits into boxes and scores before they return them.
COMPARABLE_POPULATIONS = (None, "images", "image locations")
WAY_OUT = (
    "if the model mixes or scales logits (a temperature), pass the result through self.logits = torch.nn.Identity() in "
    'forward, name that as logn.LogitLayer("logits", activation="softmax", num_columns=…), and use logn.attach'
)


@dataclass(frozen=True)
class Agreement:
    """Whether a model returns the logits of a layer.

    Args:
        agrees: True when it returns them, perhaps activated, averaged over locations or resized; False when it returns
            something else; None when that is unknown.
        activation: What the model applies to the logits before it returns them, where it does.
    """

    agrees: bool | None
    activation: str | None = None


UNKNOWN = Agreement(None)


@dataclass
class Pass:
    """One forward pass.

    Attributes:
        rows: The logits that each layer gave, call by call, by its path; the layer that was called last comes last.
        parts: All floating point tensors that the model returned, with their names.
    """

    rows: dict[str, list[Tensor]] = field(default_factory=dict)
    parts: list[tuple[str, Tensor]] = field(default_factory=list)


@contextlib.contextmanager
def watching(
    model: nn.Module,
    layers: Mapping[str, Callable[[Tensor], Tensor]],
    use: Callable[[Pass], None],
    is_wanted: Callable[[nn.Module], bool] = lambda module: True,
) -> Iterator[None]:
    """Call `use` with each forward pass; a layer that runs outside of one makes a pass of its own.

    Args:
        model: A torch module.
        layers: What takes the logits from the output of a module, by its path.
        use: Called with each pass when the model returns.
        is_wanted: Whether the pass that begins is of interest.
    """
    inner, running, own = (
        unwrap(model),
        threading.local(),
        set[int](),
    )  # replicas of a data-parallel model run in threads

    def begin(module: nn.Module, inputs: Any) -> None:
        running.seen = Pass() if is_wanted(module) else None

    def capture(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if next(reversed(module._forward_hooks)) not in own:
            running.seen = None  # a hook that came later, such as an attached map, changes the output
        seen = getattr(running, "seen", Pass())
        if seen is None or not is_torch_tensor(output):
            return
        calls = seen.rows.pop(path, [])
        seen.rows[path] = [*calls, layers[path](output.detach()).clone()]  # what follows may work in place
        if not hasattr(running, "seen"):
            use(seen)

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        seen = vars(running).pop("seen", None)
        if seen is not None:
            seen.parts.extend(returned_parts(output))
            use(seen)

    with contextlib.ExitStack() as hooks:
        hooks.callback(recompile)
        hooks.callback(inner.register_forward_pre_hook(never_compiled(begin)).remove)
        # Each module once, and after its other hooks, so that a map attached to it counts.
        for module, path in {inner.get_submodule(path): path for path in layers}.items():
            handle = module.register_forward_hook(never_compiled(partial(capture, path)))
            own.add(handle.id)
            hooks.callback(handle.remove)
        hooks.callback(inner.register_forward_hook(never_compiled(end)).remove)
        recompile()
        yield


def watch(model: nn.Module, layers: Mapping[str, Callable[[Tensor], Tensor]], run: Callable[[], object]) -> list[Pass]:
    """The passes while `run` runs the model, in evaluation mode; modes and random numbers are afterwards as before."""
    passes: list[Pass] = []

    def keep(seen: Pass) -> None:
        rows = {path: [rows.cpu() for rows in calls] for path, calls in seen.rows.items()}
        passes.append(Pass(rows, [(name, part.cpu().clone()) for name, part in seen.parts]))

    with as_it_was(unwrap(model)), watching(model, layers, keep):
        run()
    return passes


class OutputCheck:
    """Compare the logits of a layer with what the model returns, once, in the first forward pass that can tell.

    Passes in training mode, and those that return nothing like the logits, decide nothing. A pass that shows that the
    model returns something else than these logits (a sum, a temperature), or applies another activation than `layer`
    says, is refused.

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
        self.agreement = UNKNOWN
        self._model, self._layer, self._on_activation = unwrap(model), layer, on_activation
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> OutputCheck:
        if is_comparable(self._layer):
            self._hooks.enter_context(watching(self._model, self._layer.rows_by_path, self._judge, self._is_undecided))
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _is_undecided(self, module: nn.Module) -> bool:
        return self.agreement.agrees is None and not module.training

    def _judge(self, seen: Pass) -> None:
        name, stated = self._layer.name, self._layer.activation
        returned = [tensor for _, tensor in named_scores(seen.parts)]
        rows = together([call for calls in seen.rows.values() for call in calls])
        self.agreement = agreement = compare(rows, returned, may_drop_columns=self._layer.background is not None)
        if agreement.agrees is False:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in returned)
            widths = [size for tensor in returned for size in tensor.shape[1:]]
            raise InputError(
                f"What the model returns ({shapes}) is not the logits of `{name}`, plain or activated; name another "
                f"layer, or, {WAY_OUT} (in Python check_output=False leaves this check out). Its layers: "
                f"{listed_candidates(self._model, widths)}."
            )
        if agreement.activation is None:
            return
        if stated not in (None, agreement.activation):
            raise InputError(
                f"The model applies a {agreement.activation} to `{name}`, but its LogitLayer says {stated}; write "
                f"activation={agreement.activation!r}, or leave it out."
            )
        if self._on_activation is not None:
            self._on_activation(agreement.activation)


def is_comparable(layer: LogitLayer) -> bool:
    """Whether the logits of `layer` are expected in what the model returns: a classifier's, one row per image."""
    whole = layer.final_only is None and not layer.stages and not layer.extra_columns and layer.anchors == 1
    return whole and layer.population in COMPARABLE_POPULATIONS


def image_logits(
    model: nn.Module, layer: LogitLayer, run: Callable[[], object], num_images: int, name: str
) -> npt.NDArray[np.float32]:
    """The logits of a classifier, one row for each of so many images, as the mean of what its class layers give.

    Several layers are averaged (a distilled transformer), and so are locations; what the model returns shows whether
    that is what it does. Models that return no row per image, or other scores than these, are refused.

    Args:
        model: A torch module.
        layer: Where its logits are, with its class axis.
        run: Runs it on the images, in one pass or several.
        num_images: How many there are.
        name: What the user calls it.
    """
    parts = []
    for seen in watch(model, layer.rows_by_path, run):
        calls = [rows for rows_of_layer in seen.rows.values() for rows in rows_of_layer]
        rows = together(calls)[0] if calls else torch.empty(0, 1)
        rows = rows.reshape(len(rows), -1, rows.shape[-1]).double().mean(1).float()
        scores = [tensor for _, tensor in named_scores(seen.parts)]
        fitting = [tensor for tensor in scores if len(tensor) == len(rows) and tensor.numel() == rows.numel()]
        if not fitting or compare([rows], fitting).agrees is False:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in scores) or "no tensor"
            raise InputError(
                f"`{name}` returns {shapes}, which is not the logits of `{layer.name}`, one row per image: it is no "
                "image classifier that can be measured."
            )
        parts.append(np.asarray(rows.numpy(), np.float32))
    logits = np.concatenate(parts)
    if len(logits) != num_images:
        raise InputError(
            f"`{name}` gives {len(logits)} rows of logits for {num_images} images: it is no image classifier."
        )
    return logits


def find_by_output(model: nn.Module, run: Callable[[], Any]) -> dict[str, Agreement]:
    """The layers whose logits `model` returns when `run` runs it: one for each returned tensor that is of one alone.

    The model runs twice: first to see how many columns it returns, then to compare the layers that have as many.
    """
    inner = unwrap(model)
    tensors = [tensor for seen in watch(inner, {}, run) for _, tensor in named_scores(seen.parts)]
    widths = {size for tensor in tensors for size in tensor.shape[1:] or tensor.shape}
    layers = {
        path: LogitLayer(path, class_axis=class_axis_of(module)).rows
        for path, module in inner.named_modules()
        if path and output_width(module) in widths and "aux" not in path.lower()
    }
    agreements: dict[str, Agreement] = {}
    for seen in watch(inner, layers, run):
        for _, tensor in named_scores(seen.parts):
            for path, calls in reversed(seen.rows.items()):
                agreement = compare(together(calls), [tensor])
                if agreement.agrees:
                    agreements.setdefault(path, agreement)
                    break
    return agreements


def returned_parts(returned: Any, depth: int = DEEPEST) -> list[tuple[str, Tensor]]:
    """All floating point tensors that a model returned, with their names: of fields and keys, or numbers.

    A list of mappings is what detectors return, one per image; it holds no logits to compare.

    Example:
        >>> import torch
        >>> [name for name, _ in returned_parts({"boxes": torch.rand(2, 4), "levels": [torch.rand(2)]})]
        ['boxes', 'levels.0']
        >>> returned_parts([{"boxes": torch.rand(2, 4)}])
        []
    """
    if is_torch_tensor(returned):
        return [("", returned.detach())] if returned.is_floating_point() else []
    items: Any = ()
    if depth == 0:
        return []
    if isinstance(returned, Mapping):
        items = returned.items()
    elif dataclasses.is_dataclass(returned):
        items = [(entry.name, getattr(returned, entry.name)) for entry in dataclasses.fields(returned)]
    elif isinstance(returned, list | tuple) and not any(isinstance(part, Mapping) for part in returned):
        items = zip(getattr(returned, "_fields", range(len(returned))), returned, strict=True)
    return [
        (f"{key}.{name}".strip("."), part) for key, value in items for name, part in returned_parts(value, depth - 1)
    ]


def named_scores(parts: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The parts whose names say that they are class scores; all of them where none does.

    Example:
        >>> named_scores([("boxes", 1), ("cls_logits", 2)]), named_scores([("0", 1), ("1", 2)])
        ([('cls_logits', 2)], [('0', 1), ('1', 2)])
    """
    named = [(name, part) for name, part in parts if {"out", "logits", "scores"} & {*name.lower().split(".")}]
    named = named or [(name, part) for name, part in parts if "logit" in name.lower() or "score" in name.lower()]
    return named or list(parts)


def together(calls: Sequence[Tensor]) -> list[Tensor]:
    """What several calls of a class layer may have become: their mean, or one of them, the last one first."""
    if len({tuple(rows.shape) for rows in calls}) == 1 < len(calls):
        return [torch.stack([rows.float() for rows in calls]).mean(0).to(calls[0].dtype), *reversed(calls)]
    return [*reversed(calls)]


def compare(rows: Sequence[Tensor], returned: Sequence[Tensor], *, may_drop_columns: bool = False) -> Agreement:
    """Whether any returned tensor that could hold the logits is made of any of `rows` alone.

    Args:
        rows: What a layer gave, as logits of shape (…, C); each of its calls, or the mean of several layers.
        returned: What the model returned.
        may_drop_columns: Whether rows of another width may still be made of the logits, without a background.

    Example:
        >>> import torch
        >>> logits, other = torch.randn(4, 5), torch.randn(4, 5)
        >>> compare([logits], [logits]).agrees, compare([logits], [logits.sigmoid()]).activation
        (True, 'sigmoid')
        >>> compare([logits], [logits + other]).agrees, compare([logits], [torch.randn(6, 4)]).agrees
        (False, None)
    """
    agreements = [
        _agreement(*pair) for tensor in returned for call in rows for pair in _pairs(call.cpu(), tensor.cpu())
    ]
    if agreements:
        return max(agreements, key=lambda agreement: (agreement.agrees or False, agreement.agrees is False))
    # A row for each row of the layer, but of another width.
    is_of_other_width = (
        len(returned) == 1
        and returned[0].ndim == 2
        and any(call.ndim == 2 and 0 < len(call) == len(returned[0]) for call in rows)
    )
    return Agreement(False) if is_of_other_width and not may_drop_columns else UNKNOWN


def _pairs(rows: Tensor, returned: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and what was returned, both of shape (R, C): as they are, averaged over locations, or resized."""
    columns = rows.shape[-1]
    for axis in {returned.ndim - 1, min(1, returned.ndim - 1)}:
        if returned.ndim == 0 or returned.shape[axis] != columns or rows.numel() == 0:
            continue
        target = returned.movedim(axis, -1)
        if rows.numel() == target.numel():
            arranged = rows
        elif target.ndim == 2 and target.numel() and rows.numel() % target.numel() == 0:
            arranged = rows.reshape(len(target), -1, columns).double().mean(1).to(rows.dtype)
        elif rows.ndim == target.ndim == 4 and len(rows) == len(target):
            # A segmenter; one image tells.
            maps, target = rows[:1].double().movedim(-1, 1), target[:1]
            resized = functional.interpolate(maps, tuple(target.shape[1:3]), mode="bilinear")
            arranged = resized.movedim(1, -1).to(rows.dtype)
        else:
            continue
        yield arranged.reshape(-1, columns), target.reshape(-1, columns)


def _agreement(rows: Tensor, returned: Tensor) -> Agreement:
    """Whether `returned` is `rows`, or an activation of it, all of shape (R, C)."""
    rounding = ROUNDINGS * max(torch.finfo(rows.dtype).eps, torch.finfo(returned.dtype).eps)
    logits, scores = rows.double(), returned.double()
    finite = (logits.isfinite() & scores.isfinite()).all(dim=1)
    logits, scores = logits[finite], scores[finite]
    if scores.numel() == 0 or float(scores.max() - scores.min()) <= rounding * float(scores.abs().max()):
        return UNKNOWN  # nothing to compare, or one value everywhere, as before the training
    allowed = max(TOLERANCE, rounding) * float(scores.max() - scores.min()) + rounding * float(scores.abs().max())

    def fits(expected: Tensor) -> bool:
        return float((expected - scores).abs().max()) <= allowed

    if fits(logits):
        return Agreement(True)
    if fits(logits.log_softmax(1)) or fits(logits.softmax(1)):
        return Agreement(True, "softmax")
    return Agreement(True, "sigmoid") if fits(logits.sigmoid()) else Agreement(False)
