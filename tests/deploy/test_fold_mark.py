"""A second fold is refused where it can be known: by a note on the module, and by the fingerprint that a map holds."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from logn.calibrators.affine import ClassAffine
from logn.calibrators.normalization import logit_normalization
from logn.deploy.attach import attach, is_folded
from logn.deploy.calibrate import calibrate
from logn.deploy.fold import fold
from logn.errors import InputError
from logn.logits.layer import LogitLayer
from logn.statistics.record import record

LAYER = LogitLayer("0")
AFFINE = ClassAffine([0.5, 2.0, 1.5], [1.0, 0.0, -1.0])
SHIFT = ClassAffine([1.0, 1.0, 1.0], [1.0, 0.0, -1.0])


def fresh(features=20):
    return nn.Sequential(nn.Linear(features, 3)).eval()


def folded(features=20, affine=AFFINE):
    model = fresh(features)
    fold(model, LAYER, affine)
    return model


def recorded_map(model):
    with record(model, LAYER) as moments, torch.inference_mode():
        model(torch.rand(40, model[0].in_features))
    return logit_normalization(moments)


@pytest.mark.parametrize("features", [20, 2])
@pytest.mark.parametrize("affine", [AFFINE, SHIFT])
@pytest.mark.parametrize(
    "change",
    [lambda model: model, copy.deepcopy, lambda model: model.half(), lambda model: model.bfloat16(), nn.Module.double],
    ids=["as it is", "a copy", "half", "bfloat16", "double"],
)
def test_folding_twice_is_refused_in_one_process_and_changes_nothing(features, affine, change):
    model = change(folded(features, affine))
    before = model[0].weight.detach().clone()
    with pytest.raises(InputError, match="`0` has a map folded into it"):
        fold(model, LAYER, AFFINE)
    assert torch.equal(model[0].weight, before)


def test_attaching_and_calibrating_a_folded_model_is_refused():
    for put in (lambda: attach(folded(), LAYER, AFFINE), lambda: calibrate(folded(), [torch.rand(4, 20)])):
        with pytest.raises(InputError, match="has a map folded into it"):
            put()
    attach(folded(), LAYER, AFFINE, allow_refold=True)


@pytest.mark.parametrize("features", [20, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_loaded_elsewhere_the_fingerprint_of_the_map_tells(features, dtype):
    model, other = fresh(features), fresh(features).to(dtype)
    affine = recorded_map(model)
    fold(model, LAYER, affine)
    buffer = io.BytesIO()
    torch.save(model.to(dtype).state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    assert not is_folded(other[0])
    for put in (fold, attach):
        with pytest.raises(InputError, match=r"the weights of `0`.*cast to another precision or changed by a fold"):
            put(other, LAYER, affine)


def test_loaded_elsewhere_a_map_without_a_fingerprint_cannot_know():
    other = fresh()
    other.load_state_dict(folded().state_dict())
    fold(other, LAYER, AFFINE)


@pytest.mark.parametrize("affine", [AFFINE, SHIFT])
def test_loading_other_weights_wipes_the_note_out(affine):
    model = fresh()
    before = copy.deepcopy(model.state_dict())
    fold(model, LAYER, affine)
    model.load_state_dict(before)
    fold(model, LAYER, affine)


def test_training_on_wipes_the_note_out():
    model = folded()
    model(torch.rand(4, 20)).square().sum().backward()
    with torch.no_grad():
        model[0].weight -= 0.1 * model[0].weight.grad
    assert not is_folded(model[0])


def test_the_inverse_on_top_undoes_it():
    model, features = fresh(), torch.rand(4, 20)
    expected = model(features)
    fold(model, LAYER, AFFINE)
    fold(model, LAYER, AFFINE.inverse(), allow_refold=True)
    torch.testing.assert_close(model(features), expected)


def test_a_fold_adds_nothing_to_the_state_dict():
    assert folded().state_dict().keys() == {"0.weight", "0.bias"}
