"""fold: exact where it can be, refused with the reason where it cannot."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import linear as linear_of
from torch.nn.functional import normalize
from torch.nn.utils.fusion import fuse_linear_bn_eval
from torch.nn.utils.parametrizations import weight_norm

from logn.errors import InputError, LogNWarning
from logn.methods.affine import ClassAffine
from logn.models.layer import LogitLayer
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.models.torch.record import record
from logn.statistics.head import Head


def random_map(columns, seed=0, background=None):
    generator = np.random.default_rng(seed)
    return ClassAffine(
        generator.uniform(0.3, 3.0, columns), generator.normal(size=columns), head=Head(background=background)
    )


def named(**modules):
    model = nn.Module()
    for name, module in modules.items():
        setattr(model, name, module)
    return model


HEAD, PAIR = LogitLayer("head"), ("first", "second")


@settings(max_examples=15, deadline=None)
@given(
    columns=st.integers(1, 6),
    anchors=st.integers(1, 3),
    kernel=st.sampled_from([1, 3]),
    groups=st.sampled_from([1, 2]),
    bias=st.booleans(),
    dilation=st.sampled_from([1, 6]),
    seed=st.integers(0, 99),
)
def test_convolutions_with_anchors(columns, anchors, kernel, groups, bias, dilation, seed):
    torch.manual_seed(seed)
    width = columns * anchors * groups
    convolution = nn.Conv2d(4, width, kernel, groups=groups, bias=bias, padding=dilation, dilation=dilation)
    model, affine = named(head=convolution), random_map(columns, seed)
    affine = affine if bias else ClassAffine(affine.scale, np.zeros(columns))
    layer = LogitLayer("head", class_axis=1, anchors=anchors * groups)
    inputs = torch.rand(2, 4, 7, 5)
    expected = affine(layer.rows(convolution(inputs)))
    fold(model, layer, affine)
    torch.testing.assert_close(layer.rows(convolution(inputs)), expected, atol=1e-4, rtol=0)


def test_linear_agrees_with_torch_fusing_a_batch_norm():
    torch.manual_seed(0)
    linear, norm = nn.Linear(5, 4), nn.BatchNorm1d(4).eval()
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    deviation = (norm.running_var.double() + norm.eps).sqrt()
    scale = (norm.weight.double() / deviation).detach().numpy()
    shift = norm.bias.detach().double().numpy() - norm.running_mean.double().numpy() * scale
    oracle = fuse_linear_bn_eval(copy.deepcopy(linear).eval(), norm)
    fold(named(head=linear), HEAD, ClassAffine(scale, shift))
    torch.testing.assert_close(linear.weight, oracle.weight)
    torch.testing.assert_close(linear.bias, oracle.bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_arithmetic_is_float64_rounded_once(dtype):
    torch.manual_seed(0)
    linear = nn.Linear(40, 3).to(dtype)
    weight, bias = linear.weight.detach().double(), linear.bias.detach().double()
    affine = random_map(3)
    fold(named(head=linear), HEAD, affine)
    assert linear.weight.dtype == linear.bias.dtype == dtype
    scale, shift = torch.tensor(affine.scale), torch.tensor(affine.shift)
    assert torch.equal(linear.bias.detach(), (bias * scale + shift).to(dtype))
    assert torch.equal(linear.weight.detach(), (weight * scale[:, None]).to(dtype))


def test_a_shift_needs_a_bias_and_scales_alone_do_not():
    model = named(head=nn.Linear(3, 2, bias=False))
    before, inputs = copy.deepcopy(model.state_dict()), torch.rand(4, 3)
    expected = model.head(inputs) * torch.tensor([2.0, 0.5])
    with pytest.raises(InputError, match=r"`head` .*logn\.attach"):
        fold(model, HEAD, random_map(2))
    assert torch.equal(model.head.weight, before["head.weight"])
    fold(model, HEAD, ClassAffine([2.0, 0.5], [0.0, 0.0]))
    torch.testing.assert_close(model.head(inputs), expected)
    named(head=nn.Linear(3, 2, bias=False)).load_state_dict(model.state_dict(), strict=True)


@pytest.mark.parametrize("trained", [True, False])
def test_parameters_stay_the_same_objects_frozen_or_trainable(trained):
    linear = nn.Linear(3, 2).requires_grad_(trained)
    parameters = (linear.weight, linear.bias)
    with torch.inference_mode():
        fold(named(head=linear), HEAD, random_map(2))
    assert (linear.weight is parameters[0], linear.bias is parameters[1]) == (True, True)
    assert [parameter.requires_grad for parameter in parameters] == [trained, trained]
    if trained:
        linear(torch.rand(4, 3)).sum().backward()
        assert all(parameter.grad is not None for parameter in parameters)


def test_the_layout_in_memory_stays():
    convolution = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    fold(named(head=convolution), LogitLayer("head", class_axis=1), random_map(6))
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("put", [attach, fold])
@pytest.mark.parametrize("stages", [False, True])
def test_stages_take_a_map_each_and_one_module_under_two_names_takes_it_once(put, stages):
    linear, inputs = nn.Linear(8, 3), torch.rand(2, 8)
    model = named(first=linear, second=nn.Linear(8, 3) if stages else linear)
    maps = [random_map(3), random_map(3, seed=int(stages))]
    expected = [affine(module(inputs)) for affine, module in zip(maps, model.children(), strict=False)]
    put(model, LogitLayer(PAIR, stages=stages), maps if stages else maps[0])
    torch.testing.assert_close([module(inputs) for module in model.children()], expected)


@pytest.mark.parametrize("stages", [False, True])
def test_modules_that_share_a_weight_are_folded_once_each_and_part_when_their_maps_differ(stages):
    torch.manual_seed(0)
    model = named(first=nn.Linear(8, 3), second=nn.Linear(8, 3))
    model.second.weight = model.first.weight
    inputs, maps = torch.rand(2, 8), (random_map(3), random_map(3, seed=int(stages)))
    expected = [maps[0](model.first(inputs)), maps[1](model.second(inputs))]
    fold(model, LogitLayer(PAIR, stages=stages), maps if stages else maps[0])  # a warning would be an error here
    assert (model.second.weight is model.first.weight) == (not stages)
    torch.testing.assert_close([model.first(inputs), model.second(inputs)], expected)


def test_one_module_in_two_stages_cannot_take_two_maps():
    linear = nn.Linear(8, 3)
    model, layer = named(first=linear, second=linear), LogitLayer(PAIR, stages=True)
    with pytest.raises(InputError, match="`second`"):
        fold(model, layer, (random_map(3), random_map(3, seed=1)))
    fold(model, layer, (random_map(3), random_map(3)))


def test_a_weight_tied_to_a_module_outside_gets_a_copy_of_its_own():
    torch.manual_seed(0)
    model = named(embedding=nn.Embedding(3, 8), head=nn.Linear(8, 3))
    model.head.weight = model.embedding.weight
    inputs, affine = torch.rand(2, 8), random_map(3)
    expected, embedding = affine(model.head(inputs)), model.embedding.weight.detach().clone()
    with pytest.warns(LogNWarning, match=r"`head\.weight` was tied to `embedding\.weight`"):
        fold(model, HEAD, affine)
    torch.testing.assert_close(model.head(inputs), expected)
    assert torch.equal(model.embedding.weight, embedding)


def test_memory_shared_without_being_tied_is_not_written_to():
    storage = torch.rand(4, 8)
    model = named(head=nn.Linear(8, 3), other=nn.Linear(8, 4))
    model.head.weight.data, model.other.weight.data = storage[:3], storage
    before = storage.clone()
    fold(model, HEAD, random_map(3))
    assert torch.equal(model.other.weight, before)


class CosineLinear(nn.Linear):
    """As MMDetection's NormedLinear: both sides are normalised in every pass."""

    tempearture = 20.0

    def forward(self, features):
        return linear_of(normalize(features) * self.tempearture, normalize(self.weight), self.bias)


@pytest.mark.parametrize(
    ("modules", "paths"),
    [
        (lambda cosine: {"head": cosine}, "head"),
        (lambda cosine: {"first": nn.Linear(8, 3), "second": cosine}, PAIR),
        (lambda cosine: {"class_embed": nn.ModuleList([cosine, cosine])}, "class_embed.1"),
    ],
    ids=["alone", "one of several", "a shared slot"],
)
def test_a_cosine_head_is_refused_with_the_way_out_and_all_stays_as_it_was(modules, paths):
    cosine, layer = CosineLinear(8, 3), LogitLayer(paths)
    model = named(**modules(cosine))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=r"`(head|second|class_embed\.1)` .*logn\.attach"):
        fold(model, layer, random_map(3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.get_submodule(layer.paths[-1]) is cosine
    inputs = torch.rand(2, 8)
    expected = random_map(3)(cosine(inputs))
    with attach(model, layer, random_map(3)):
        torch.testing.assert_close(model.get_submodule(layer.paths[-1])(inputs), expected)
    assert model.get_submodule(layer.paths[-1]) is cosine


def test_a_cosine_head_takes_a_map_that_only_shifts():
    torch.manual_seed(0)
    model, shift = named(head=CosineLinear(8, 3)), ClassAffine([1.0, 1.0, 1.0], [0.5, -1.0, 2.0])
    inputs = torch.rand(2, 8)
    expected = shift(model.head(inputs))
    fold(model, HEAD, shift)
    torch.testing.assert_close(model.head(inputs), expected)


class Finished(nn.Conv2d):
    """A convolution that ends in a module of its own, as Detectron2's can in a norm."""

    def __init__(self, *arguments, ending):
        super().__init__(*arguments)
        self.ending = ending

    def forward(self, inputs):
        return self.ending(super().forward(inputs))


class Bend(nn.Module):
    """Bends its input by a thousandth."""

    def forward(self, output):
        return output + 1e-3 * output.square()


@pytest.mark.parametrize("ending", [nn.Identity(), nn.BatchNorm2d(4), Bend()], ids=["nothing", "norm", "bend"])
def test_a_subclass_counts_by_what_it_does(ending):
    layer, affine, inputs = LogitLayer("head", class_axis=1), random_map(4), torch.rand(1, 3, 5, 5)
    if isinstance(ending, nn.BatchNorm2d):
        nn.init.uniform_(ending.running_mean)
    model = named(head=Finished(3, 4, 3, ending=ending)).eval()
    expected = affine(model.head(inputs), axis=1)
    if not isinstance(ending, nn.Identity):
        with pytest.raises(InputError, match=r"`head` \(Finished\)"):
            fold(model, layer, affine)
        return
    fold(model, layer, affine)
    torch.testing.assert_close(model.head(inputs), expected)


def test_channels_that_are_no_logits_stay_as_they_are():
    layer, affine = LogitLayer("head", class_axis=1, anchors=2, extra_columns=1), random_map(3)
    model, inputs = named(head=nn.Conv2d(4, 8, 1)), torch.rand(1, 4, 5, 5)
    before = model.head(inputs)
    fold(model, layer, affine)
    after = model.head(inputs)
    for first in (0, 4):
        logits = slice(first, first + 3)
        torch.testing.assert_close(after[:, logits], affine(before[:, logits], axis=1))
        torch.testing.assert_close(after[:, first + 3], before[:, first + 3])


STAGED = LogitLayer(("head", "other"), stages=True)


def quantised():
    layer = nn.Linear(4, 3)
    layer.weight = nn.Parameter(torch.zeros(3, 4, dtype=torch.int8), requires_grad=False)
    return layer


@pytest.mark.parametrize(
    ("head", "affine"),
    [
        (weight_norm(nn.Linear(4, 3)), random_map(3)),
        (quantised(), random_map(3)),
        (nn.Linear(4, 3, device="meta"), random_map(3)),
        (nn.Linear(4, 2).half(), ClassAffine([1.0, 1.0], [1e6, 0.0])),
    ],
    ids=["computed", "quantised", "not loaded", "overflows"],
)
def test_what_cannot_take_a_fold_is_refused(head, affine):
    with pytest.raises(InputError, match="`head`"):
        fold(named(head=head), HEAD, affine)


@pytest.mark.parametrize("put", [attach, fold])
@pytest.mark.parametrize(
    ("layer", "affine", "name"),
    [
        (LogitLayer("tail"), random_map(3), "`tail`"),
        (HEAD, np.tanh, "`affine`"),
        (HEAD, random_map(4), "`head`"),
        (LogitLayer("head", background=0), random_map(3, background=-1), "background"),
        (HEAD, [random_map(3)] * 2, "`affine`"),
        (STAGED, [random_map(3)] * 3, "`affine`"),
    ],
)
def test_maps_that_do_not_fit_are_refused(put, layer, affine, name):
    with pytest.raises(InputError, match=name):
        put(named(head=nn.Linear(4, 3), other=nn.Linear(4, 3)), layer, affine)


def test_a_layer_with_a_map_attached_is_refused():
    model = named(head=nn.Linear(4, 3))
    handle = attach(model, HEAD, random_map(3))
    with pytest.raises(InputError, match="`head`"):
        fold(model, HEAD, random_map(3))
    handle.remove()
    fold(model, HEAD, random_map(3))


def test_the_trial_is_neither_recorded_nor_random():
    model = named(head=nn.Linear(4, 3)).eval()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with record(model, LogitLayer("head")) as moments:
        model.head(torch.ones(2, 4))
        fold(model, HEAD, random_map(3))
    assert moments.count.tolist() == [2.0] * 3
    assert torch.equal(torch.rand(1), expected)


def test_weights_that_were_made_in_inference_mode():
    """Their data cannot be replaced: the fold failed, or left a layer that could not run."""
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 3))
    inputs, affine = torch.randn(5, 4), ClassAffine([2.0, 1.0, 0.5], [0.0, 1.0, 2.0])
    with torch.inference_mode():
        expected = affine(model(inputs))
    fold(model, LogitLayer("0"), affine)
    torch.testing.assert_close(model(inputs), expected)
    with torch.inference_mode():
        torch.testing.assert_close(model(inputs), expected)
