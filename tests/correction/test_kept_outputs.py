"""A correction changes the class scores of a model, and nothing else that it returns."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from logn.correction.calibrate import calibrate
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.layer import LogitLayer
from logn.models.output_check import Pass
from logn.models.torch.fold import prove

CLASSES = 5
LAYER = LogitLayer("fc", activation="softmax")


class Model(nn.Module):
    """Returns what `ending` makes of the features."""

    def __init__(self, ending):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc, self.box = nn.Linear(6, 8), nn.Linear(8, CLASSES), nn.Linear(8, 4)
        self.box_of_logits, self.back = nn.Linear(CLASSES, 4), nn.Linear(CLASSES, 8)
        self.ending = ending

    def forward(self, images):
        return self.ending(self, self.body(images).relu())


def tied(model, features):
    """The weight of the class layer serves as embeddings too."""
    return {"logits": model.fc(features), "similarity": functional.linear(features, model.fc.weight) / 2}


def boxes_of_logits(model, features):
    logits = model.fc(features)
    return {"logits": logits, "boxes": model.box_of_logits(logits.softmax(dim=1))}


def feeds_back(model, features):
    """The class layer runs twice, and what it says first decides what it is given then."""
    return model.fc(features + model.back(model.fc(features)))


def hidden(model, features):
    """The sum is the answer, and a part of it is returned beside it."""
    return model.fc(features) + model.box(features).sum(dim=1, keepdim=True).sin(), model.fc(features)


def harmless(model, features):
    logits = model.fc(features)
    scores = {"logits": logits, "probabilities": logits.softmax(dim=1), "labels": logits.argmax(dim=1)}
    return {**scores, "boxes": model.box(features), "empty": features[:0], "loss": None}


def normed(model, features):
    """A max-norm constraint, put on the weights in every pass."""
    if not model.fc._forward_pre_hooks:
        model.fc.register_forward_pre_hook(lambda module, _: module.weight.data.copy_(module.weight.renorm(2, 0, 0.5)))
    return model.fc(features)


def images():
    return torch.randn(40, 6, generator=torch.Generator().manual_seed(1)) * 3


def corrected(ending, **options):
    model = Model(ending).eval()
    with torch.inference_mode():
        before = model(images())
    weights = copy.deepcopy(model.state_dict())
    return model, weights, before, lambda: calibrate(model, [images()], layer=LAYER, method="logn", **options)


@pytest.mark.parametrize(
    ("ending", "fold", "named"),
    [
        (tied, True, "`similarity`"),
        (boxes_of_logits, True, "`boxes`"),
        (boxes_of_logits, False, "`boxes`"),
        (feeds_back, True, "`fc`"),
        (feeds_back, False, "`fc`"),
        (hidden, True, "`0`"),
        (normed, True, "`fc`"),
    ],
)
def test_what_else_changes_is_refused_and_undone(ending, fold, named):
    model, weights, before, correct = corrected(ending, fold=fold)
    with pytest.raises(InputError, match=named):
        correct()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    with torch.inference_mode():
        torch.testing.assert_close(model(images()), before)
    assert not any(module._forward_hooks for module in model.modules())
    calibrate(model, [images()], layer=LAYER, method="logn", fold=fold, check_output=False)


@pytest.mark.parametrize(("ending", "fold"), [(tied, False), (normed, False), (harmless, True), (harmless, False)])
def test_what_leaves_all_else_alone_is_taken(ending, fold):
    model, _, before, correct = corrected(ending, fold=fold)
    affine = correct().affine
    with torch.inference_mode():
        after = model(images())
    logits, mapped = (part["logits"] if isinstance(part, dict) else part for part in (before, after))
    torch.testing.assert_close(mapped, affine(logits), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_not_refused(dtype):
    model = Model(harmless).eval().to(dtype)
    calibrate(model, [images().to(dtype)], layer=LAYER, fold=True)


def test_the_model_is_in_the_mode_it_was_in_and_random_numbers_stay():
    model = Model(harmless).train()
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    calibrate(model, iter([images()]), layer=LAYER)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("share", "kept"), [(0.9e-5, True), (1.1e-5, False)])
def test_another_output_may_move_by_rounding_alone(share, kept):
    logits, boxes, affine = torch.rand(4, 3).double(), torch.full((4, 4), 8.0).double(), ClassAffine.identity(3)
    before, after = (
        Pass({"fc": [logits]}, [("logits", logits), ("boxes", boxes * factor)]) for factor in (1.0, 1.0 + share)
    )
    with contextlib.nullcontext() if kept else pytest.raises(InputError, match="`boxes`"):
        assert prove(LAYER, [affine], [before], [after]).holds
