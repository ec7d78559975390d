"""What the user says about a model: one object, from Python and from the command line alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from logn.data.class_tables import read_class_names
from logn.errors import InputError
from logn.models.layer import LogitLayer
from logn.models.preprocessing import Preprocessing

if TYPE_CHECKING:
    import torch

Like = str | os.PathLike[str] | Preprocessing | Callable[[Any], Any]


@dataclass(frozen=True)
class Hints:
    """What the user says about a model; whatever the model says itself is left out.

    Args:
        like: How images are prepared, for ONNX files and functions: a preset such as "yolox", a JSON file with fields
            of `Preprocessing`, a `Preprocessing`; for functions also a function that turns an RGB image into the tensor
            that the model takes.
        size: Height and width of the images that the model gets; None for its own.
        activation: "softmax" or "sigmoid", if the model does not say what follows its logits.
        background: ONNX, and torch models with a `layer` that is named: background column, 0 or -1.
        tensor: ONNX: name of the tensor that holds the logits, or several, if the search finds several.
        class_names: Name of each class, or a file of them, if the model has none.
        layer: Torch models: where the logits are, a `logn.LogitLayer` or the path of a module; found by
            `logn.locate_logits` by default.
        device: "auto", "cpu" or "cuda", for torch models.
        trust: Open a `.pt` file, which is a pickle and runs its author's code.
        detector_options: Further arguments of the framework's detector, such as `end2end` for Ultralytics.

    Example:
        >>> Hints.of({"like": "yolox", "size": (416, 416), "end2end": False}).detector_options
        {'end2end': False}
    """

    like: Like | None = None
    size: tuple[int, int] | None = None
    activation: str | None = None
    background: int | None = None
    tensor: str | Sequence[str] | None = None
    class_names: Sequence[str] | str | os.PathLike[str] | None = None
    layer: LogitLayer | str | None = None
    device: str = "auto"
    trust: bool = False
    detector_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Hints:
        """The hints among the options of a call; the others are options of the framework's detector."""
        own = {entry.name for entry in fields(cls)}
        others = {name: value for name, value in options.items() if name not in own}
        return cls(**{name: value for name, value in options.items() if name in own}, detector_options=others)

    def refuse(self, what: str, *names: str) -> None:
        """Refuse hints that such a model has no use for."""
        for name in names:
            if getattr(self, name) is not None:
                raise InputError(f"`{name}` does not apply to {what}; leave it out.")

    def on_layer(self, layer: LogitLayer) -> LogitLayer:
        """The layer with the user's activation, if the model does not state one; a contradiction is refused."""
        if self.activation is None or layer.activation == self.activation:
            return layer
        if layer.activation is not None:
            raise InputError(
                f"`activation` is {self.activation}, but the model applies {layer.activation} to `{layer.name}`; leave "
                "`activation` out."
            )
        return replace(layer, activation=self.activation)

    @property
    def preset(self) -> str | None:
        """The preset or JSON file that `like` names."""
        return os.fspath(self.like) if isinstance(self.like, str | os.PathLike) else None

    @property
    def preparation(self) -> dict[str, Any]:
        """Fields of `Preprocessing` that differ from the preset.

        Example:
            >>> Hints(like="yolox", size=(416, 416)).preparation
            {'size': (416, 416)}
        """
        own: dict[str, Any] = {} if self.size is None else {"size": self.size}
        return {**asdict(self.like), **own} if isinstance(self.like, Preprocessing) else own

    @property
    def files(self) -> tuple[str | os.PathLike[str], ...]:
        """The files that they name, which no output may replace."""
        return tuple(value for value in (self.like, self.class_names) if isinstance(value, str | os.PathLike))

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of `tensor`, one or several."""
        return (self.tensor,) if isinstance(self.tensor, str) else tuple(self.tensor or ())

    def names(self, num_columns: int, background: int | None = None) -> tuple[str, ...] | None:
        """The user's class names, read if they are a file of so many columns; None if there are none."""
        if isinstance(self.class_names, str | os.PathLike):
            return read_class_names(self.class_names, num_columns, background)
        return None if self.class_names is None else tuple(self.class_names)


def choose_device(name: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `cuda:1` into an available device; under torchrun the process's own GPU.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"Expected `device` to be auto, cpu or cuda, but got {name!r}.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"`device` is {name!r}, but torch finds no CUDA device; use cpu.")
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device
