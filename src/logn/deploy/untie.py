"""keep_untied: a model whose class layer got weights of its own must not tie them again when it is saved and loaded."""

from __future__ import annotations

from typing import Any

from torch import nn

from logn.logits.layer import unwrap


def keep_untied(model: nn.Module) -> None:
    """Undo the weight tying that Hugging Face's models declare, for good; other models are left alone.

    Their class and box layers are tied by a switch of the configuration, `tie_word_embeddings`. Saving leaves tied
    tensors out and loading ties them again, so after a fold into one of them each gets a copy of its own.

    Example:
        >>> from types import SimpleNamespace
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> model[1].weight = model[0].weight
        >>> model.config = SimpleNamespace(tie_word_embeddings=True)
        >>> model.all_tied_weights_keys = {"1.weight": "0.weight"}
        >>> keep_untied(model)
        >>> model[1].weight is model[0].weight, model.config.tie_word_embeddings
        (False, False)
    """
    for module in unwrap(model).modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "tie_word_embeddings", False) is not True:
            continue
        config.tie_word_embeddings = False
        for name in getattr(module, "all_tied_weights_keys", None) or {}:
            _give_own_parameter(module, name)
    # Of outer and inner models alike; they share one configuration.
    tying: Any
    for tying in unwrap(model).modules():
        if getattr(tying, "all_tied_weights_keys", None):
            tying.all_tied_weights_keys = {}


def _give_own_parameter(model: nn.Module, path: str) -> None:
    owner_path, _, name = path.rpartition(".")
    owner: Any = model.get_submodule(owner_path)
    parameter = owner._parameters.get(name)
    if parameter is not None:
        setattr(owner, name, nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad))
