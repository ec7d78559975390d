"""Checkpoints of a run in one safetensors file, and how another run starts from one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from logn.base.files import read_safetensors, write_safetensors
from logn.base.strict_json import parse_json
from logn.errors import InputError
from logn_research.losses.loss_factory import layout_of
from logn_research.training.settings import DetectorSettings

FORMAT, SCHEMA = "logn-checkpoint", 2
FILE_NAME = "checkpoint.safetensors"
MODEL, MOMENTUM = "model.", "momentum."
CLASSIFIER = "cls_score."
#: What each name trains, as parts of the names of weights; all else is frozen.
PARTS = {
    "classifier": (CLASSIFIER,),
    "new-classifier": (CLASSIFIER,),
    "scales": (f"{CLASSIFIER}scale",),
    "heads": (CLASSIFIER, "bbox_pred.", "rpn.", "mask_head.", "mask_predictor."),
}


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file.

    The random state needs no place in it: every iteration draws from a generator that is seeded by the run's seed
    and the iteration's number.

    Args:
        settings: Of the detector.
        iteration: How many iterations were done.
        model: Weights and running statistics.
        momentum: State of the optimizer, per weight.
        run: Settings that a resumed run must share.
        class_names: Names of the foreground classes.
        extra: What else there is to know, such as the state of the gradient scaler.
    """

    settings: DetectorSettings
    iteration: int
    model: Mapping[str, Tensor]
    momentum: Mapping[str, Tensor] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; a kill half-way leaves the one before."""
        tensors = {MODEL + name: tensor for name, tensor in self.model.items()}
        tensors |= {MOMENTUM + name: tensor for name, tensor in self.momentum.items()}
        values = {
            "iteration": self.iteration,
            "detector": self.settings.as_dict(),
            "run": dict(self.run),
            "class_names": self.class_names,
            "extra": dict(self.extra),
        }
        metadata = {name: json.dumps(value) for name, value in values.items()}
        arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
        write_safetensors(path, arrays, {"format": FORMAT, "schema": str(SCHEMA), **metadata})

    def restore_weights(self, model: nn.Module) -> None:
        """Put the weights into a model that was built from the same settings."""
        own = model.state_dict()
        # State of a training loss may lie in the file; it has no place in a model that is only used.
        # A number without axes comes back from the file as an array of one.
        weights = {name: tensor.reshape(own[name].shape) for name, tensor in self.model.items() if name in own}
        missing = sorted(set(own) - set(weights))
        if missing:
            raise InputError(f"The checkpoint lacks {missing[0]}, a weight of the detector.")
        model.load_state_dict(weights)

    def restore_momentum(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Put the momentum back where it was."""
        for name, weight in model.named_parameters():
            if name in self.momentum:
                # The layout of the weight, so that sums run in the same order as before.
                buffer = torch.empty_like(weight.data).copy_(self.momentum[name])
                optimizer.state[weight]["momentum_buffer"] = buffer


def read_checkpoint(path: str | os.PathLike[str], *, num_classes: int | None = None) -> Checkpoint:
    """Read a checkpoint file, or the file `checkpoint.safetensors` of a folder.

    Args:
        path: The file or the folder.
        num_classes: How many classes the data has that the detector is for; another number is refused.
    """
    file = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(f"`{path}` is not a run: it has no `{FILE_NAME}`, which `logn train` writes.")
    arrays, metadata = read_safetensors(file, expected_format=FORMAT, schema=SCHEMA)
    if "detector" not in metadata:
        raise InputError(f"`{path}` does not hold a detector.")
    names = ("detector", "iteration", "run", "class_names", "extra")
    try:
        values = {name: parse_json(metadata[name]) for name in names}
        stored = DetectorSettings.from_dict(values["detector"])
        class_names = None if values["class_names"] is None else tuple(values["class_names"])
        run, extra, iteration = dict(values["run"]), dict(values["extra"]), values["iteration"]
        if not isinstance(iteration, int):
            raise TypeError(f"`iteration` is {iteration!r}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"`{file}` does not hold a whole detector: {error}.") from error
    if num_classes is not None and num_classes != stored.num_classes:
        raise InputError(f"`{path}` holds a detector for {stored.num_classes} classes, but the data has {num_classes}.")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    model, momentum = (
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        for prefix in (MODEL, MOMENTUM)
    )
    return Checkpoint(stored, iteration, model, momentum, run, class_names, extra)


def check_part(only: str | None, *, started: bool) -> None:
    """Refuse unknown parts, and frozen weights that were never trained.

    Example:
        >>> check_part("backbone", started=True)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `only` to be one of classifier, ..., heads, but got 'backbone'.
    """
    if only is not None and only not in PARTS:
        raise InputError(f"Expected `only` to be one of {', '.join(PARTS)}, but got {only!r}.")
    if only is not None and not started:
        raise InputError(f"To train only the {only}, pass the trained run to begin with: `start`.")


def start_from(model: nn.Module, path: str | Path, *, only: str | None = None) -> None:
    """Begin with the weights of another run, and freeze all but the part that is to be trained.

    The classifier starts from random weights where it is asked for, and where the loss of that run wants other logits.

    Args:
        model: The detector, in training mode.
        path: Folder of the other run, or its checkpoint file.
        only: One of `PARTS`; None trains everything.
    """
    wanted: Any = model.settings
    checkpoint = read_checkpoint(path)
    before = checkpoint.settings
    for name in ("model", "num_classes", "classifier", "mask_classifier", "pretrained"):
        ours, theirs = getattr(wanted, name), getattr(before, name)
        if ours == "scaled":
            ours = "linear"  # the weights that the scales are for
        if ours != theirs:
            raise InputError(
                f"`{path}` has the `{name}` {theirs!r}, but this run has {ours!r}: start from one of the same kind."
            )
    layouts = [layout_of(settings.loss, wanted.num_classes, background=0).layout for settings in (wanted, before)]
    renew = only == "new-classifier" or layouts[0] != layouts[1]
    own = model.state_dict()
    weights = {
        name: checkpoint.model[name].reshape(value.shape)
        for name, value in own.items()
        if name in checkpoint.model and ".test_logits." not in name and "_loss" not in name
        if not (renew and CLASSIFIER in name)
    }
    model.load_state_dict(own | weights)
    if only is not None:
        freeze_all_but(model, PARTS[only])


def freeze_all_but(model: nn.Module, parts: tuple[str, ...]) -> None:
    """Train only weights whose names hold one of `parts`; frozen batch normalisation keeps its statistics.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        >>> freeze_all_but(model, ("2.",))
        >>> [name for name, weight in model.named_parameters() if weight.requires_grad], model[1].training
        (['2.weight', '2.bias'], False)
    """
    for name, weight in model.named_parameters():
        weight.requires_grad_(weight.requires_grad and any(part in name for part in parts))
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            trained = module.weight is not None and module.weight.requires_grad
            module.train(module.training and trained)
