"""The mark of a fold: it travels with the weights, breaks no loading and goes when the weights change."""

from __future__ import annotations

import copy
import io

import pytest
import safetensors.torch
import torch
from torch import nn

from logn.calibrators.class_affine import ClassAffine
from logn.deploy.attach import attach
from logn.deploy.calibrate import calibrate
from logn.deploy.fold import fold
from logn.deploy.fold_mark import has_mark, is_folded, marked
from logn.errors import InputError
from logn.logits.layer import LogitLayer

LAYER = LogitLayer("0")
AFFINE = ClassAffine([0.5, 2.0, 1.5], [1.0, 0.0, -1.0])


def fresh(features=20):
    return nn.Sequential(nn.Linear(features, 3))


def folded(features=20):
    model = fresh(features)
    fold(model, LAYER, AFFINE)
    return model


def assert_refused(model):
    with pytest.raises(InputError, match="`0` to have no map folded into it"):
        fold(model, LAYER, AFFINE)


def test_folding_twice_is_refused_and_changes_nothing():
    model = folded()
    before = model[0].weight.detach().clone()
    assert_refused(model)
    assert torch.equal(model[0].weight, before)


def test_attaching_and_calibrating_a_folded_model_is_refused():
    with pytest.raises(InputError, match="no map folded"):
        attach(folded(), LAYER, AFFINE)
    with pytest.raises(InputError, match="no map folded"):
        calibrate(folded(), [torch.rand(4, 20)])
    attach(folded(), LAYER, AFFINE, allow_refold=True)
    attach(folded(), LAYER, AFFINE, again=True)


def test_the_state_dict_loads_strictly_into_a_fresh_model_which_then_refuses():
    model, other = folded(), fresh()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    assert_refused(other)


def test_the_mark_survives_safetensors_and_copies():
    model, other = folded(), fresh()
    other.load_state_dict(safetensors.torch.load(safetensors.torch.save(model.state_dict())))
    assert_refused(other)
    assert_refused(copy.deepcopy(model))


def test_the_mark_survives_a_cast_of_the_same_module():
    assert_refused(folded().half())
    assert_refused(folded().double())


def test_loading_other_weights_wipes_the_mark_out():
    model = folded()
    model.load_state_dict(fresh().state_dict())
    fold(model, LAYER, AFFINE)


def test_training_on_wipes_the_mark_out():
    model = folded()
    model(torch.rand(4, 20)).square().sum().backward()
    with torch.no_grad():
        model[0].weight -= 0.1 * model[0].weight.grad
    assert not is_folded(model[0])


def test_small_layers_are_remembered_by_the_module():
    model = folded(features=2)
    assert not has_mark(model[0].weight)
    assert_refused(model)


@pytest.mark.parametrize("name", ["allow_refold", "again"])
def test_the_inverse_on_top_undoes_it_by_either_name_of_the_argument(name):
    model, features = fresh(), torch.rand(4, 20)
    expected = model(features)
    fold(model, LAYER, AFFINE)
    fold(model, LAYER, AFFINE.inverse(), **{name: True})
    torch.testing.assert_close(model(features), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_mark_costs_at_most_one_unit_in_the_last_place_and_keeps_zeros(dtype):
    weight = torch.randn(10, 20).to(dtype)
    weight[0, :5] = 0.0
    weight[1, 0] = torch.finfo(dtype).smallest_normal / 2
    before = weight.clone()
    result = marked(weight)
    assert torch.equal(weight, before)
    assert has_mark(result)
    assert not has_mark(weight)
    assert torch.equal(result == 0, weight == 0)
    torch.testing.assert_close(result, weight, rtol=torch.finfo(dtype).eps, atol=0)


def test_chance_does_not_make_marks():
    generator = torch.Generator().manual_seed(0)
    assert not any(has_mark(torch.randn(6, 4, generator=generator)) for _ in range(2000))
    assert not has_mark(torch.zeros(10, 10))
    assert not has_mark(torch.zeros(10, 10, dtype=torch.int8))
    assert not has_mark(torch.zeros(10, 10, dtype=torch.float8_e4m3fn))
    assert not has_mark(torch.zeros(10, 10, device="meta"))
