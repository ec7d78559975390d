"""LogitLayer: which modules of a model give the class logits, their layout, and a digest of the model."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import is_torch_tensor
from logn.errors import InputError
from logn.statistics.head import Head

if TYPE_CHECKING:
    from torch import nn

FINAL_PARTS = (None, "call", "slice")
# (images, queries, classes); what has more axes may be a feature map, whose classes are not the last axis.
MOST_AXES_OF_ROWS = 3
# Wrappers that hold the model in an attribute and prefix every path with its name.
WRAPPERS = {
    "DistributedDataParallel": "module",
    "MMDistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}

LISTED = 12
# Words in the names of class layers; those are listed first, since a detector may well end in its backbone.
CLASS_WORDS = ("cls", "class", "score", "logit")


@dataclass(frozen=True)
class LogitLayer:
    """The modules that output the class logits, just before the activation.

    Statistics are recorded, and corrections attached or folded, at the output of these modules.

    Args:
        path: Path of the module as in `model.named_modules()`; several for a detector with one module per level
            (SSD) or per stage (Cascade R-CNN).
        background: Index of the background (or no-object) column: None, 0 or -1.
        activation: What the model applies to the logits: "softmax", "sigmoid", or None if unknown. `logn.record`
            detects it if the model applies it in its forward pass.
        class_axis: Axis of the output that holds the classes; read from the module by default: -1 for a Linear, 1 for
            a convolution.
        anchors: How many anchors share a location. The channels are then `anchor * num_columns + class`. One number,
            or one per path.
        num_columns: How many columns a row of logits has, the background included; read from the module by default.
        population: What a row of logits stands for: "test proposals", "all anchors", "queries", "images".
        stages: Whether every module keeps statistics and a map of its own (the stages of a cascade) instead of
            sharing one (the levels of a pyramid, the two heads of a distilled transformer). Or the number of each
            path's stage, from 0 on, where a stage has several modules (the levels of YOLO's two heads).
        unused: Columns that the model has but never trains, such as column 0 of torchvision's RetinaNet; they must
            not take part in the correction.
        extra_columns: Number of columns at the end that are not classes, such as the objectness pair of the Seesaw
            loss; they are neither recorded nor corrected, and `num_columns` does not count them.
        final_only: Which part of the output the prediction uses, where a decoder predicts after each of its layers:
            None (all of it), "call" (the last call of a forward pass) or "slice" (the last along axis 0). Only that
            part is recorded; the map applies to all of it, which changes no prediction.

    Example:
        >>> layer = LogitLayer("roi_heads.box_predictor.cls_score", background=0, activation="softmax")
        >>> layer.paths
        ('roi_heads.box_predictor.cls_score',)
    """

    path: str | tuple[str, ...]
    background: int | None = None
    activation: str | None = None
    class_axis: int | None = None
    anchors: int | tuple[int, ...] = 1
    num_columns: int | None = None
    population: str | None = None
    stages: bool | tuple[int, ...] = False
    unused: tuple[int, ...] = ()
    extra_columns: int = 0
    final_only: str | None = None

    def __post_init__(self) -> None:
        for name in ("path", "anchors", "stages", "unused"):
            value = getattr(self, name)
            if not isinstance(value, str | int):
                object.__setattr__(self, name, tuple(value))
        paths, anchors = self.paths, (self.anchors,) if isinstance(self.anchors, int) else self.anchors
        # A head refuses what none can have.
        head = Head(background=self.background, unused=self.unused, activation=self.activation)
        object.__setattr__(self, "background", head.background)
        self._expect("path", "to name a module", bool(paths) and all(isinstance(path, str) and path for path in paths))
        self._expect(
            "anchors",
            f"to be at least 1, one number or one per path ({len(paths)})",
            min(anchors) >= 1 and (isinstance(self.anchors, int) or len(anchors) == len(paths)),
        )
        self._expect("extra_columns", "to be at least 0", self.extra_columns >= 0)
        self._expect("final_only", f"to be one of {FINAL_PARTS}", self.final_only in FINAL_PARTS)
        self._expect(
            "stages",
            f"to be True, False or the stage of each of the {len(paths)} paths, numbered from 0",
            len(self.stage_of) == len(paths) and {*self.stage_of} == {*range(self.num_stages)},
        )

    def _expect(self, name: str, what: str, holds: bool) -> None:
        if not holds:
            raise InputError(f"Expected `{name}` {what}, but got {getattr(self, name)!r}.")

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths, also when there is only one."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def name(self) -> str:
        """The paths as one text, for metadata and messages."""
        return ", ".join(self.paths)

    @property
    def stage_of(self) -> tuple[int, ...]:
        """The stage of each path: all 0 where the modules share one map."""
        if isinstance(self.stages, bool):
            return tuple(range(len(self.paths))) if self.stages else (0,) * len(self.paths)
        return self.stages

    @property
    def num_stages(self) -> int:
        """How many sets of statistics, and maps, the layer has."""
        return max(self.stage_of, default=-1) + 1

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The paths of each stage as one text."""
        return tuple(
            ", ".join(path for path, number in zip(self.paths, self.stage_of, strict=True) if number == stage)
            for stage in range(self.num_stages)
        )

    @property
    def rows_by_path(self) -> dict[str, Callable[[Any], Any]]:
        """`rows` for the output of the module at each path."""
        return {path: partial(self.rows, index=index) for index, path in enumerate(self.paths)}

    def head(self, num_columns: int, names: Sequence[str] | None = None, source: str | None = None) -> Head:
        """What the columns of the logits are.

        Args:
            num_columns: How many there are (`count_columns`).
            names: Name of every column.
            source: Digest of the weights (`fingerprint`).
        """
        return Head(
            num_columns,
            None if names is None else tuple(names),
            self.background,
            self.unused,
            self.activation,
            population=self.population,
            layer=self.name,
            source=source,
        )

    def anchors_of(self, index: int) -> int:
        """How many anchors the module at `paths[index]` has per location."""
        return self.anchors if isinstance(self.anchors, int) else self.anchors[index]

    def rows(self, output: Any, index: int = 0) -> Any:
        """View the raw output of the module at `paths[index]` as logits of shape (…, C); nothing is copied or changed.

        Example:
            >>> layer = LogitLayer("head.cls_logits", activation="sigmoid", class_axis=1, anchors=9)
            >>> layer.rows(np.zeros((2, 9 * 91, 5, 4))).shape
            (2, 9, 5, 4, 91)
        """
        axis = self.axis_in(output)
        shape = tuple(output.shape)
        anchors = self.anchors_of(index)
        columns = self.columns_in(shape[axis], index)
        if anchors > 1:
            output = output.reshape((*shape[:axis], anchors, columns + self.extra_columns, *shape[axis + 1 :]))
            axis += 1
        if axis != output.ndim - 1:
            output = np.moveaxis(output, axis, -1) if isinstance(output, np.ndarray) else output.movedim(axis, -1)
        return output[..., :columns] if self.extra_columns else output

    def channels(self, per_class: npt.ArrayLike, index: int = 0, *, elsewhere: float = 0.0) -> npt.NDArray[Any]:
        """One value per output channel of the module: those of the classes for every anchor, `elsewhere` for the rest.

        Example:
            >>> LogitLayer("head", class_axis=1, anchors=2).channels([0.1, 0.2, 0.3]).tolist()
            [0.1, 0.2, 0.3, 0.1, 0.2, 0.3]
            >>> LogitLayer("head", extra_columns=2).channels([0.1, 0.2, 0.3], elsewhere=1.0).tolist()
            [0.1, 0.2, 0.3, 1.0, 1.0]
        """
        row = np.append(np.asarray(per_class), [elsewhere] * self.extra_columns)
        return np.tile(row, self.anchors_of(index))

    def axis_in(self, output: Any) -> int:
        """The class axis of `output`, counted from the front."""
        shape = getattr(output, "shape", None)
        if shape is None:
            raise InputError(f"`{self.name}` gives {type(output).__name__}, not a tensor; name another module.")
        if self.class_axis is None and len(shape) > MOST_AXES_OF_ROWS:
            raise InputError(
                f"`{self.name}` gives {tuple(shape)}, and it is not known which axis holds the classes. Pass "
                "class_axis=1 if they are the channels, -1 if they come last."
            )
        axis = -1 if self.class_axis is None else self.class_axis
        if not -len(shape) <= axis < len(shape):
            raise InputError(
                f"`{self.name}` gives {tuple(shape)}, which has no axis {axis}; correct its path or `class_axis`."
            )
        return axis % len(shape)

    def columns_in(self, width: int, index: int = 0) -> int:
        """How many columns a row of logits has when the module at `paths[index]` has `width` output channels."""
        anchors = self.anchors_of(index)
        extra = self.extra_columns
        columns = width // anchors - extra if self.num_columns is None else self.num_columns
        if columns < 1 or (columns + extra) * anchors != width:
            per_anchor = f"{self.num_columns or 'num_columns'} columns" + (f" and {extra} more" if extra else "")
            raise InputError(
                f"`{self.paths[index]}` has {width} output channels, not {anchors} times {per_anchor}; correct "
                "`anchors`, `num_columns` or `extra_columns` of its LogitLayer."
            )
        return columns


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch (data parallel, compiled), since paths are relative to it."""
    while (attribute := WRAPPERS.get(type(model).__name__)) is not None and hasattr(model, attribute):
        model = getattr(model, attribute)
    return model


def check_model(model: object) -> None:
    """Refuse what is no torch module, or one whose layers cannot be reached any more."""
    if not callable(getattr(model, "named_modules", None)):
        raise InputError(f"Expected `model` to be a torch.nn.Module, but got {type(model).__name__}.")
    if any(kind.__module__.startswith("torch.jit") for kind in type(model).__mro__):
        raise InputError(
            "`model` is TorchScript, whose layers cannot be reached; correct the torch.nn.Module that it was made from."
        )


def find_modules(model: nn.Module, layer: LogitLayer) -> list[nn.Module]:
    """The module at each path of `layer`; a path that does not exist is refused with the closest that do."""
    check_model(model)
    modules = dict(unwrap(model).named_modules(remove_duplicate=False))
    for path in layer.paths:
        if path not in modules:
            closest = difflib.get_close_matches(path, modules, n=3, cutoff=0.4)
            hint = f"; the closest are {', '.join(closest)}" if closest else ""
            raise InputError(f"The model has no module `{path}`{hint}.")
    return [modules[path] for path in layer.paths]


def count_columns(model: nn.Module, layer: LogitLayer) -> int:
    """How many columns the logits of `layer` have, the same for all its modules."""
    counts: dict[str, int] = {}
    for index, (path, module) in enumerate(zip(layer.paths, find_modules(model, layer), strict=True)):
        width = output_width(module)
        columns = layer.num_columns if width is None else layer.columns_in(width, index)
        if columns is None:
            raise InputError(
                f"`{path}` ({type(module).__name__}) does not say how many columns it has; write "
                f'logn.LogitLayer("{path}", num_columns=…).'
            )
        counts[path] = columns
    if len({*counts.values()}) > 1:
        raise InputError(f"The modules of `layer` differ in number of columns, {counts}; write a layer for each.")
    return counts[layer.paths[0]]


def class_axis_of(module: Any) -> int | None:
    """The axis of the classes in the output of a Linear-like or convolution-like module; None for any other."""
    if isinstance(getattr(module, "out_features", None), int):
        return -1
    return 1 if isinstance(getattr(module, "out_channels", None), int) else None


def refuse_single_logit(layer: LogitLayer, columns: int) -> None:
    """Refuse a binary head of one logit: normalising it against itself would do nothing.

    Example:
        >>> refuse_single_logit(LogitLayer("fc"), 1)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `fc` gives a single logit, so there are no classes to balance; choose a score \
threshold on validation images instead.
    """
    if columns == 1:
        raise InputError(
            f"`{layer.name}` gives a single logit, so there are no classes to balance; choose a score threshold on "
            "validation images instead."
        )


def output_width(module: Any) -> int | None:
    """How many output channels a Linear-like or convolution-like module has; None for any other.

    Example:
        >>> from torch import nn
        >>> output_width(nn.Linear(8, 3)), output_width(nn.Conv2d(8, 5, kernel_size=1)), output_width(nn.ReLU())
        (3, 5, None)
    """
    widths = (getattr(module, name, None) for name in ("out_features", "out_channels"))
    return next((width for width in widths if isinstance(width, int)), None)


def candidates(model: nn.Module, widths: Sequence[int] = ()) -> list[tuple[str, str, int]]:
    """Path, kind and width of each layer: first those of the wanted widths, then those named like a class layer.

    Example:
        >>> from torch import nn
        >>> candidates(nn.ModuleDict({"class_embed": nn.Linear(8, 6), "body": nn.Conv2d(3, 8, 3)}), widths=[8])
        [('body', 'Conv2d', 8), ('class_embed', 'Linear', 6)]
    """
    modules = [(path, type(module).__name__, output_width(module)) for path, module in model.named_modules() if path]
    return sorted(
        ((path, kind, width) for path, kind, width in reversed(modules) if width),
        key=lambda item: (item[2] not in widths, not any(word in item[0].lower() for word in CLASS_WORDS)),
    )


def listed_candidates(model: nn.Module, widths: Sequence[int] = ()) -> str:
    """The first of them as a list in words."""
    layers = candidates(model, widths)
    more = f" and {len(layers) - LISTED} more" if len(layers) > LISTED else ""
    return ", ".join(f"{path} ({kind}, {width})" for path, kind, width in layers[:LISTED]) + more


def fingerprint(model: nn.Module) -> str:
    """The kind "torch:" and the SHA-256 over the names, shapes, types and bytes of all tensors in the model's state.

    Device, wrappers and the order of the names do not count; a cast to another precision does. All weights are read:
    about a second for a gigabyte. That of an ONNX file is of another kind, "onnx:…" (`OnnxFile.digest`).

    Example:
        >>> import torch
        >>> first = torch.nn.Linear(2, 3)
        >>> second = torch.nn.Linear(2, 3)
        >>> fingerprint(first) == fingerprint(second)
        False
        >>> _ = second.load_state_dict(first.state_dict())
        >>> fingerprint(first) == fingerprint(second)
        True
    """
    import torch

    digest, state = hashlib.sha256(), dict[str, Any]()
    for path, module in unwrap(model).named_modules(remove_duplicate=False):
        # As `state_dict` gathers it, but without hooks: those of an attached map warn that it is not saved.
        module._save_to_state_dict(state, f"{path}." if path else "", keep_vars=False)
    for name, tensor in sorted(state.items()):
        if not is_torch_tensor(tensor):
            continue
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.device.type == "meta":
            continue
        # Bytes rather than numbers, since NumPy lacks bfloat16.
        raw_bytes = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        digest.update(memoryview(raw_bytes.numpy()))
    return f"torch:{digest.hexdigest()}"
