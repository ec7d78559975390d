"""Training a part of a model on another run: the second stage of BAGS, cRT, LWS and LOCE."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from logn.errors import InputError
from logn_research.losses.loss_factory import layout_of
from logn_research.training.engine.checkpoint import read_checkpoint, settings_of

CLASSIFIER = "cls_score."
#: What each name trains, as parts of the names of weights; all else is frozen.
PARTS = {
    "classifier": (CLASSIFIER,),
    "new-classifier": (CLASSIFIER,),
    "scales": (f"{CLASSIFIER}scale",),
    "heads": (CLASSIFIER, "bbox_pred.", "rpn.", "mask_head.", "mask_predictor."),
}


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
        raise InputError(f"Expected `start` to name a trained run where only the {only} is trained, but got none.")


def start_from(model: nn.Module, path: str | Path, *, only: str | None = None, background: int | None = 0) -> None:
    """Begin with the weights of another run, and freeze all but the part that is to be trained.

    The classifier starts from random weights where it is asked for, and where the loss of that run wants other logits.

    Args:
        model: The detector or image classifier, in training mode.
        path: Folder of the other run, or its checkpoint file.
        only: One of `PARTS`; None trains everything.
        background: Where the background is among the labels: None for image classifiers.
    """
    wanted = settings_of(model)
    checkpoint = read_checkpoint(path, type(wanted))
    found = checkpoint.settings
    # Where there is a choice of backbones, other ones have other weights, and so has a trained normalisation.
    choice: tuple[str, ...] = ("backbone", "pretrained") if getattr(wanted, "backbone", None) is not None else ()
    if hasattr(wanted, "mask_classifier"):
        choice += ("mask_classifier",)
    for name in ("model", "num_classes", "classifier", *choice):
        ours, theirs = getattr(wanted, name), getattr(found, name)
        if ours == "scaled":
            ours = "linear"  # the weights that the scales are for
        if ours != theirs:
            raise InputError(f"Expected `start` to be a run with `{name}` {ours!r}, but got {theirs!r} in `{path}`.")
    ours, theirs = (layout_of(name, wanted.num_classes, background=background) for name in (wanted.loss, found.loss))
    renew = only == "new-classifier" or ours.layout != theirs.layout
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
