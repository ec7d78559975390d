"""OutputCheck: compare the logits of a layer with what the model returns, and find the layer by what it gives."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from logn.errors import InputError, LogNWarning
from logn.logits.arrays import is_torch_tensor
from logn.logits.hooks import never_compiled, recompile
from logn.logits.layer import LogitLayer, class_axis_of, find_modules, listed_candidates, output_width, unwrap

if TYPE_CHECKING:
    from torch import Tensor, nn

PartT = TypeVar("PartT")

# Where a model returns several tensors by name, the logits are those of the first of these kinds that is there.
SCORE_NAMES: tuple[Callable[[str], bool], ...] = (
    lambda name: name in ("logits", "pred_logits"),
    lambda name: name == "out",
    # A class token is a feature of the image.
    lambda name: name.startswith(("cls", "class")) and not any(word in name for word in ("token", "feat", "embed")),
    lambda name: name in ("score", "scores"),
)
DEEPEST = 3
# A factor nearer to 1 than this, or a shift nearer to 0, is none.
LEAST_RESCALING = 1e-3
# How far the values may be off, relative to their range; more where the precision of the tensors is coarser.
TOLERANCE = 1e-4
ROUNDINGS = 4.0
# A scale and a shift fit any two values, so that fewer than this prove nothing.
FEWEST_VALUES = 8
# Scores nearer to 0 or 1 than this lose too much of their logit.
LEAST_SCORE = 1e-3
# Enough to tell, and little enough to compare in float64 what a segmenter gives.
MOST_VALUES = 1 << 21
INTERPOLATIONS = (
    {"mode": "bilinear", "align_corners": False},
    {"mode": "bilinear", "align_corners": True},
    {"mode": "bicubic", "align_corners": False},
    {"mode": "nearest"},
)

# Detectors decode their logits into boxes and scores before they return them.
COMPARABLE_POPULATIONS = (None, "images", "image locations")
WAY_OUT = (
    "name the layer whose output the model returns; where it returns a mix of several, pass that through a module of "
    "its own in forward, such as self.logits = torch.nn.Identity(), and name that "
    '(LogitLayer("logits", num_classes=…), with logn.attach)'
)


@dataclass(frozen=True)
class Verdict:
    """Whether a model returns the logits of a layer.

    Args:
        agrees: True when it returns them, perhaps pooled, resized, scaled or shifted alike for all classes, or
            activated; False when it returns something else; None when that is unknown.
        activation: What the model applies to the logits before it returns them, where it does.
        rectified: Whether a ReLU cuts them off at 0.
        scale: By what the model multiplies them first, alike for all classes.
        shift: What it adds then.
    """

    agrees: bool | None
    activation: str | None = None
    rectified: bool = False
    scale: float = 1.0
    shift: float = 0.0

    @property
    def rescaled(self) -> bool:
        """Whether scores are made of logits on another scale than those of the layer; a softmax hides a shift."""
        shifted = self.activation == "sigmoid" and abs(self.shift) > LEAST_RESCALING
        return bool(self.agrees) and (shifted or abs(self.scale - 1) > LEAST_RESCALING)


UNKNOWN = Verdict(None)


def returned_tensors(returned: Any) -> list[Tensor]:
    """The floating point tensors that a model returned, the logits first where their name shows them.

    A list of mappings is what detectors return, one per image; it holds no logits to compare.

    Example:
        >>> import torch
        >>> logits, features = torch.rand(2, 5), torch.rand(2, 8)
        >>> [tuple(part.shape) for part in returned_tensors({"features": features, "logits": logits})]
        [(2, 5)]
        >>> [tuple(part.shape) for part in returned_tensors((features, logits))], returned_tensors([{"boxes": logits}])
        ([(2, 8), (2, 5)], [])
    """
    return [tensor for _, tensor in named_scores(returned_parts(returned))]


def returned_parts(returned: Any) -> list[tuple[str, Tensor]]:
    """All floating point tensors that a model returned, with their names: of fields and keys, or numbers.

    Example:
        >>> import torch
        >>> [name for name, _ in returned_parts({"boxes": torch.rand(2, 4), "levels": [torch.rand(2)]})]
        ['boxes', 'levels.0']
    """
    parts = named_parts(returned, DEEPEST)
    return [(name, part.detach()) for name, part in parts if is_torch_tensor(part) and part.is_floating_point()]


def named_parts(returned: Any, depth: int = DEEPEST) -> Iterator[tuple[str, Any]]:
    """Everything in the containers that a model returned, with its name."""
    inside = container_items(returned)
    if inside is None or depth == 0:
        yield "", returned
        return
    for key, value in inside:
        for name, part in named_parts(value, depth - 1):
            yield f"{key}.{name}".strip("."), part


def container_items(returned: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, with names or numbers; None for what is none. A detector's list of mappings is empty."""
    if isinstance(returned, Mapping):
        return [(str(key), value) for key, value in returned.items()]
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        return [(item.name, getattr(returned, item.name)) for item in dataclasses.fields(returned)]
    if not isinstance(returned, list | tuple):
        return None
    if any(isinstance(part, Mapping) for part in returned):
        return []
    names = getattr(returned, "_fields", range(len(returned)))
    return [(str(name), value) for name, value in zip(names, returned, strict=True)]


def named_scores(parts: Sequence[tuple[str, PartT]]) -> list[tuple[str, PartT]]:
    """The parts whose names say that they are class scores; all of them where none does.

    Example:
        >>> named_scores([("boxes", 1), ("cls_logits", 2)]), named_scores([("0", 1), ("1", 2)])
        ([('cls_logits', 2)], [('0', 1), ('1', 2)])
    """
    for says_so in SCORE_NAMES:
        named = [(name, part) for name, part in parts if any(map(says_so, name.lower().split(".")))]
        if named:
            return named
    return list(parts)


def compare(rows: Sequence[Tensor], returned: Sequence[Tensor], *, may_drop_columns: bool = False) -> Verdict:
    """Whether any returned tensor that could hold the logits is made of any of `rows` alone.

    Args:
        rows: What a layer gave, as logits of shape (…, C); each of its calls, or the mean of several layers.
        returned: The tensors that the model returned (`returned_tensors`).
        may_drop_columns: Whether the model may return fewer columns than it has logits, such as no background.

    Example:
        >>> import torch
        >>> logits, other = torch.randn(4, 5), torch.randn(4, 5)
        >>> compare([logits], [logits]).agrees, compare([logits], [logits.sigmoid()]).activation
        (True, 'sigmoid')
        >>> round(compare([logits], [logits / 2]).scale, 3)
        0.5
        >>> compare([logits], [logits + other]).agrees, compare([logits], [torch.randn(6, 4)]).agrees
        (False, None)
    """
    verdicts = []
    for tensor in returned:
        pairs = [pair for given in rows for pair in _arrangements(given, tensor)]
        if pairs:
            verdicts.append(_best([_verdict(*pair) for pair in pairs]))
    if verdicts:
        # What is found somewhere is returned. Where it is found on two scales, nobody knows which of them counts.
        return max(verdicts, key=lambda verdict: (verdict.agrees or False, verdict.rescaled, verdict.agrees is False))
    other_width = len(returned) == 1 and not may_drop_columns and _is_of_other_width(rows, returned[0])
    return Verdict(False) if other_width else UNKNOWN


def _best(verdicts: Sequence[Verdict]) -> Verdict:
    """The best of the ways in which one tensor may have come to be."""
    return max(verdicts, key=lambda verdict: (verdict.agrees or False, not verdict.rescaled, verdict.agrees is None))


def _is_of_other_width(rows: Sequence[Tensor], returned: Tensor) -> bool:
    """Whether a model that returns one row per row of the layer returns rows of another width."""
    return returned.ndim == 2 and any(
        given.ndim == 2 and 0 < len(given) == len(returned) and given.shape != returned.shape for given in rows
    )


def _arrangements(rows: Tensor, returned: Tensor) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """The ways in which `rows` may have come to be `returned`, as pairs of shape (R, C); whether a ReLU was between."""
    columns = rows.shape[-1]
    for axis in {returned.ndim - 1, min(1, returned.ndim - 1)}:
        if returned.ndim == 0 or returned.shape[axis] != columns or rows.numel() == 0:
            continue
        first, second = _excerpt(rows, returned.movedim(axis, -1))
        target = second.reshape(-1, columns)
        for rectified in (False, True):
            given = first.relu() if rectified else first
            for arranged in _reduced(given, second):
                yield arranged.reshape(-1, columns), target, rectified


def _excerpt(rows: Tensor, returned: Tensor) -> tuple[Tensor, Tensor]:
    """As many images of both as are enough to tell."""
    images = len(rows) if rows.ndim > 1 else 1
    if returned.ndim > 1 and rows.ndim > 1 and len(returned) == images:
        kept = max(1, min(images, MOST_VALUES // max(rows[0].numel(), returned[0].numel())))
        rows, returned = rows[:kept], returned[:kept]
    return rows, returned


def _reduced(rows: Tensor, returned: Tensor) -> Iterator[Tensor]:
    """`rows` in the shape of `returned`: as they are, or their mean or maximum over locations, crops or tokens."""
    from torch.nn import functional

    columns = rows.shape[-1]
    count, wanted = rows.numel() // columns, returned.numel() // columns
    if count == wanted:
        yield rows
        if rows.ndim == returned.ndim == 3 and rows.shape != returned.shape:
            yield rows.transpose(0, 1)  # a decoder that has its queries first
    elif wanted and count % wanted == 0:
        for grouped, axis in ((rows.reshape(wanted, -1, columns), 1), (rows.reshape(-1, wanted, columns), 0)):
            yield grouped.double().mean(axis).to(rows.dtype)
            yield grouped.amax(axis)
    if rows.ndim == returned.ndim == 4 and rows.shape != returned.shape and len(rows) == len(returned):
        image = rows.double().movedim(-1, 1)
        for options in INTERPOLATIONS:
            resized = functional.interpolate(image, size=tuple(returned.shape[1:3]), **options)
            yield resized.movedim(1, -1).to(rows.dtype)


def _verdict(rows: Tensor, returned: Tensor, rectified: bool) -> Verdict:
    """Whether `returned` is an activation, or a scale and a shift for all classes, of `rows`, all of shape (R, C)."""
    import torch

    rounding = ROUNDINGS * max(torch.finfo(rows.dtype).eps, torch.finfo(returned.dtype).eps)
    given, got = rows.double().cpu(), returned.double().cpu()
    finite = (given.isfinite() & got.isfinite()).all(dim=1)
    given, got = given[finite], got[finite]
    if got.numel() == 0 or float(got.max() - got.min()) <= rounding * float(got.abs().max()):
        return UNKNOWN  # nothing to compare, or one value everywhere, as before the training
    allowed = max(TOLERANCE, rounding) * float(got.max() - got.min()) + rounding * float(got.abs().max())

    def off(expected: Tensor) -> float:
        return float((expected - got).abs().max())

    exact = {None: given, "sigmoid": given.sigmoid(), "softmax": given.softmax(1)}
    if min(off(given.log_softmax(1)), off(exact["softmax"])) <= allowed < off(given):
        return Verdict(True, "softmax", rectified)
    for activation in (None, "sigmoid"):
        if off(exact[activation]) <= allowed:
            return Verdict(True, activation, rectified)
    if got.numel() < FEWEST_VALUES:
        return UNKNOWN
    tried = list(_fitted(given, got))
    fitted = [(off(expected), verdict) for verdict, expected in tried if expected is not None]
    error, best = min(fitted, key=lambda item: item[0])
    if error <= allowed:
        return replace(best, rectified=rectified)
    return Verdict(False) if len(fitted) == len(tried) else UNKNOWN


def _fitted(given: Tensor, got: Tensor) -> Iterator[tuple[Verdict, Tensor | None]]:
    """`given` with the scale and shift that bring it closest to `got`, before each activation that it may have.

    The scale is one for all classes, and positive: a class that stands out stays the one that does. None where too few
    values tell: a saturated score does not show its logit.
    """
    scale, shift = _line(given, got)
    yield Verdict(True, None, scale=scale, shift=shift), scale * given + shift
    if float(got.min()) < 0 or float(got.max()) > 1:
        return
    inside = (got > LEAST_SCORE) & (got < 1 - LEAST_SCORE)
    enough = int(inside.sum()) >= FEWEST_VALUES
    scale, shift = _line(given[inside], got[inside].logit()) if enough else (1.0, 0.0)
    sigmoid = Verdict(True, "sigmoid", scale=scale, shift=shift)
    yield sigmoid, (scale * given + shift).sigmoid() if enough else None
    # Differences to the highest of the row, since a softmax does not show the sum of its logits.
    top = got.argmax(dim=1, keepdim=True)
    lower = (got > LEAST_SCORE**2) & (got < got.gather(1, top))
    distances = (given - given.gather(1, top))[lower]
    enough = len(distances) >= FEWEST_VALUES // 2
    scale = float(
        (distances * (got / got.gather(1, top))[lower].log()).sum() / distances.square().sum().clamp_min(1e-300)
    )
    scale = max(scale, 0.0)
    yield Verdict(True, "softmax", scale=scale), (scale * given).softmax(1) if enough else None


def _line(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Scale and shift of the least squares from `x` to `y`."""
    centred = x - x.mean()
    scale = float((centred * (y - y.mean())).sum() / centred.square().sum().clamp_min(1e-300))
    scale = max(scale, 0.0)
    return scale, float(y.mean() - scale * x.mean())


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
