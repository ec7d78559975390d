"""Checkpoints: everything that a run needs to resume as if nothing had happened, in one safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from logn.errors import InputError
from logn.files import read_metadata, read_safetensors, write_safetensors
from logn.strict_json import parse_json
from logn_research.training.detectors.models import Detector, build_detector
from logn_research.training.detectors.settings import DetectorSettings
from logn_research.training.engine.model_settings import ModelSettings

FORMAT, SCHEMA = "logn-checkpoint", 1
FILE_NAME = "checkpoint.safetensors"
MODEL, MOMENTUM = "model.", "momentum."
KINDS = ("detector", "classifier")


Settings = TypeVar("Settings", bound=ModelSettings)


def settings_of(model: nn.Module) -> ModelSettings:
    """What a detector or image classifier was built from."""
    settings: Any = model.settings
    return settings  # type: ignore[no-any-return]


def kind_of(settings: type[ModelSettings]) -> str:
    """What such settings are settings of, as a word.

    Example:
        >>> kind_of(DetectorSettings)
        'detector'
    """
    return settings.__name__.removesuffix("Settings").lower()


@dataclass(frozen=True)
class Checkpoint(Generic[Settings]):
    """The content of a checkpoint file.

    The random state needs no place in it: every iteration draws from a generator that is seeded by the run's seed
    and the iteration's number.

    Args:
        settings: Of the detector or classifier.
        iteration: How many iterations were done.
        model: Weights and running statistics.
        momentum: State of the optimizer, per weight.
        run: Settings that a resumed run must share.
        class_names: Names of the foreground classes.
        extra: What else there is to know, such as the state of the gradient scaler.
    """

    settings: Settings
    iteration: int
    model: Mapping[str, Tensor]
    momentum: Mapping[str, Tensor] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; a kill half-way leaves the one before."""
        arrays = {MODEL + name: _array(tensor) for name, tensor in self.model.items()}
        arrays |= {MOMENTUM + name: _array(tensor) for name, tensor in self.momentum.items()}
        metadata = {
            "format": FORMAT,
            "schema": str(SCHEMA),
            "iteration": str(self.iteration),
            kind_of(type(self.settings)): json.dumps(self.settings.as_dict()),
            "run": json.dumps(dict(self.run)),
            "class_names": json.dumps(self.class_names),
            "extra": json.dumps(dict(self.extra)),
        }
        write_safetensors(path, arrays, metadata)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Checkpoint[DetectorSettings]:
        """Read the file of a detector, or the file `checkpoint.safetensors` of a folder."""
        return read_checkpoint(path, DetectorSettings)


def read_checkpoint(
    path: str | os.PathLike[str], settings: type[Settings], *, num_classes: int | None = None
) -> Checkpoint[Settings]:
    """Read a checkpoint file, or the file `checkpoint.safetensors` of a folder.

    Args:
        path: The file or the folder.
        settings: What kind of model it must hold; a file of another kind is refused.
        num_classes: How many classes the data has that the model is for; another number is refused.
    """
    file = _file_of(path)
    arrays, metadata = read_safetensors(file, expected_format=FORMAT, schema=SCHEMA)
    kind = kind_of(settings)
    if kind not in metadata:
        raise InputError(f"Expected `{path}` to hold a {kind}, but it holds a {_kind_in(metadata)}.")
    try:
        stored = settings.from_dict(parse_json(metadata[kind]))
        names, iteration = parse_json(metadata["class_names"]), int(metadata["iteration"])
        run, extra = (dict(parse_json(metadata[name])) for name in ("run", "extra"))
        class_names = None if names is None else tuple(names)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"Expected `{file}` to hold a whole {kind}, but it does not: {error}.") from error
    if num_classes is not None and num_classes != stored.num_classes:
        raise InputError(
            f"Expected `{path}` to hold a {kind} for {num_classes} classes, but it holds one for {stored.num_classes}"
            " classes."
        )
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Checkpoint(
        settings=stored,
        iteration=iteration,
        model=_part(tensors, MODEL),
        momentum=_part(tensors, MOMENTUM),
        run=run,
        class_names=class_names,
        extra=extra,
    )


def stored_kind(path: str | os.PathLike[str]) -> str:
    """What a run holds, "detector" or "classifier"; its weights are not read."""
    return _kind_in(read_metadata(_file_of(path), expected_format=FORMAT, schema=SCHEMA))


def _file_of(path: str | os.PathLike[str]) -> Path:
    """The checkpoint of a run; anything else is refused, with a hint on what to do with another kind of model."""
    file = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise InputError(
            f"Expected `{path}` to be a run, a folder with `{FILE_NAME}` that `logn train` writes, but there is none."
        )
    if file.suffix != ".safetensors":
        raise InputError(
            f"Expected `{path}` to be a run of `logn train`, but it ends in {file.suffix or 'nothing'}; "
            "docs/predictions-store.md shows how to bring any other model."
        )
    return file


def _kind_in(metadata: Mapping[str, str]) -> str:
    return next((kind for kind in KINDS if kind in metadata), "model of another kind")


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().numpy()


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def optimizer_momentum(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The momentum of each weight that has one, by name."""
    buffers = {name: optimizer.state[weight].get("momentum_buffer") for name, weight in model.named_parameters()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}


def restore_momentum(model: nn.Module, optimizer: torch.optim.Optimizer, momentum: Mapping[str, Tensor]) -> None:
    """Put the momentum back where it was."""
    for name, weight in model.named_parameters():
        if name in momentum:
            # The layout of the weight, so that sums run in the same order as before.
            optimizer.state[weight]["momentum_buffer"] = torch.empty_like(weight.data).copy_(momentum[name])


def restore_weights(model: nn.Module, checkpoint: Checkpoint[Any]) -> None:
    """Put the weights of a checkpoint into a model that was built from the same settings."""
    wanted, found = settings_of(model), checkpoint.settings
    kind = kind_of(type(wanted))
    if found.num_classes != wanted.num_classes:
        raise InputError(
            f"Expected a checkpoint for {wanted.num_classes} classes, but it holds {found.num_classes} classes."
        )
    for name, value in wanted.as_dict().items():
        if getattr(found, name) != value:
            raise InputError(
                f"Expected a checkpoint of a {kind} with `{name}` {value!r}, but it has {getattr(found, name)!r}."
            )
    own = model.state_dict()
    # State of a training loss may lie in the file; it has no place in a model that is only used.
    # A number without axes comes back from the file as an array of one.
    weights = {name: tensor.reshape(own[name].shape) for name, tensor in checkpoint.model.items() if name in own}
    missing = sorted(set(own) - set(weights))
    if missing:
        raise InputError(f"Expected the checkpoint to hold every weight of the {kind}, but {missing[0]} is missing.")
    model.load_state_dict(weights)


def load_detector(path: str | os.PathLike[str], *, num_classes: int | None = None) -> Detector:
    """Build the detector that a run trained, in evaluation mode.

    Args:
        path: Folder of the run, or its checkpoint file.
        num_classes: How many foreground classes the data has that the detector is for; another number is refused.
    """
    checkpoint = read_checkpoint(path, DetectorSettings, num_classes=num_classes)
    model = build_detector(checkpoint.settings)
    restore_weights(model, checkpoint)
    model.class_names = checkpoint.class_names
    model.eval()
    return model
