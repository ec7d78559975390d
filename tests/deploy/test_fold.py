"""fold: exact where it can be, refused with the reason where it cannot."""

from __future__ import annotations

import copy
import warnings

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

from logn.calibrators.affine import ClassAffine
from logn.calibrators.fracal import FracalSigmoid
from logn.deploy.attach import attach
from logn.deploy.fold import fold
from logn.errors import InputError, LogNWarning
from logn.logits.layer import LogitLayer
from logn.statistics.record import record


def random_map(columns, seed=0, background=None):
    generator = np.random.default_rng(seed)
    return ClassAffine(generator.uniform(0.3, 3.0, columns), generator.normal(size=columns), background)


def named(**modules):
    model = nn.Module()
    for name, module in modules.items():
        setattr(model, name, module)
    return model


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
    fold(named(head=linear), LogitLayer("head"), ClassAffine(scale, shift))
    torch.testing.assert_close(linear.weight, oracle.weight)
    torch.testing.assert_close(linear.bias, oracle.bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_arithmetic_is_float64_rounded_once(dtype):
    torch.manual_seed(0)
    linear = nn.Linear(40, 3).to(dtype)
    weight, bias = linear.weight.detach().double(), linear.bias.detach().double()
    affine = random_map(3)
    fold(named(head=linear), LogitLayer("head"), affine)
    assert linear.weight.dtype == linear.bias.dtype == dtype
    scale, shift = torch.tensor(affine.scale), torch.tensor(affine.shift)
    assert torch.equal(linear.bias.detach(), (bias * scale + shift).to(dtype))
    assert torch.equal(linear.weight.detach(), (weight * scale[:, None]).to(dtype))


def test_a_shift_needs_a_bias_and_scales_alone_do_not():
    model = named(head=nn.Linear(3, 2, bias=False))
    before, inputs = copy.deepcopy(model.state_dict()), torch.rand(4, 3)
    expected = model.head(inputs) * torch.tensor([2.0, 0.5])
    with pytest.raises(InputError, match=r"`head` to have a bias, where the correction goes.*use logn\.attach instead"):
        fold(model, LogitLayer("head"), random_map(2))
    assert torch.equal(model.head.weight, before["head.weight"])
    fold(model, LogitLayer("head"), ClassAffine([2.0, 0.5], [0.0, 0.0]))
    torch.testing.assert_close(model.head(inputs), expected)
    named(head=nn.Linear(3, 2, bias=False)).load_state_dict(model.state_dict(), strict=True)


def test_frozen_parameters_stay_frozen():
    linear = nn.Linear(3, 2).requires_grad_(False)
    fold(named(head=linear), LogitLayer("head"), random_map(2))
    assert not linear.bias.requires_grad
    assert not linear.weight.requires_grad


def test_parameters_stay_the_same_objects_for_optimizers():
    linear = nn.Linear(3, 2)
    weight, bias = linear.weight, linear.bias
    fold(named(head=linear), LogitLayer("head"), random_map(2))
    assert linear.weight is weight
    assert linear.bias is bias


def test_folding_in_inference_mode_leaves_a_trainable_layer():
    linear = nn.Linear(3, 2)
    with torch.inference_mode():
        fold(named(head=linear), LogitLayer("head"), random_map(2))
    linear(torch.rand(4, 3)).sum().backward()
    assert linear.weight.grad is not None
    assert linear.bias.grad is not None


def test_the_layout_in_memory_stays():
    convolution = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    fold(named(head=convolution), LogitLayer("head", class_axis=1), random_map(6))
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)


def test_one_module_under_two_names_is_folded_once():
    torch.manual_seed(0)
    linear = nn.Linear(8, 3)
    model = named(first=linear, second=linear)
    inputs, affine = torch.rand(2, 8), random_map(3)
    expected = affine(linear(inputs))
    fold(model, LogitLayer(("first", "second")), affine)
    torch.testing.assert_close(linear(inputs), expected)


def test_modules_of_the_layer_that_share_a_weight_are_folded_once_each():
    torch.manual_seed(0)
    model = named(first=nn.Linear(8, 3), second=nn.Linear(8, 3))
    model.second.weight = model.first.weight
    inputs, affine = torch.rand(2, 8), random_map(3)
    expected = [affine(model.first(inputs)), affine(model.second(inputs))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fold(model, LogitLayer(("first", "second")), affine)
    assert model.second.weight is model.first.weight
    torch.testing.assert_close([model.first(inputs), model.second(inputs)], expected)


def test_stages_that_share_a_weight_part_when_their_maps_differ():
    torch.manual_seed(0)
    model = named(first=nn.Linear(8, 3), second=nn.Linear(8, 3))
    model.second.weight = model.first.weight
    inputs, maps = torch.rand(2, 8), (random_map(3), random_map(3, seed=1))
    expected = [maps[0](model.first(inputs)), maps[1](model.second(inputs))]
    fold(model, LogitLayer(("first", "second"), stages=True), maps)
    torch.testing.assert_close([model.first(inputs), model.second(inputs)], expected)


def test_one_module_in_two_stages_cannot_take_two_maps():
    linear = nn.Linear(8, 3)
    model, layer = named(first=linear, second=linear), LogitLayer(("first", "second"), stages=True)
    with pytest.raises(InputError, match="the same module in several stages"):
        fold(model, layer, (random_map(3), random_map(3, seed=1)))
    fold(model, layer, (random_map(3), random_map(3)))


def test_a_weight_tied_to_a_module_outside_gets_a_copy_of_its_own():
    torch.manual_seed(0)
    model = named(embedding=nn.Embedding(3, 8), head=nn.Linear(8, 3))
    model.head.weight = model.embedding.weight
    inputs, affine = torch.rand(2, 8), random_map(3)
    expected, embedding = affine(model.head(inputs)), model.embedding.weight.detach().clone()
    with pytest.warns(LogNWarning, match=r"`head\.weight` was tied to `embedding\.weight`"):
        fold(model, LogitLayer("head"), affine)
    torch.testing.assert_close(model.head(inputs), expected)
    assert torch.equal(model.embedding.weight, embedding)


def test_memory_shared_without_being_tied_is_not_written_to():
    storage = torch.rand(4, 8)
    model = named(head=nn.Linear(8, 3), other=nn.Linear(8, 4))
    model.head.weight.data, model.other.weight.data = storage[:3], storage
    before = storage.clone()
    fold(model, LogitLayer("head"), random_map(3))
    assert torch.equal(model.other.weight, before)


class CosineLinear(nn.Linear):
    """As MMDetection's NormedLinear: both sides are normalised in every pass."""

    tempearture = 20.0

    def forward(self, features):
        return linear_of(normalize(features) * self.tempearture, normalize(self.weight), self.bias)


def test_a_cosine_head_is_refused_with_the_way_out_and_stays_as_it_was():
    model = named(head=CosineLinear(8, 3))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=r"normalises its weight .* use logn\.attach instead\.$"):
        fold(model, LogitLayer("head"), random_map(3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    inputs = torch.rand(2, 8)
    expected = random_map(3)(model.head(inputs))
    with attach(model, LogitLayer("head"), random_map(3)):
        torch.testing.assert_close(model.head(inputs), expected)


def test_a_cosine_head_takes_a_map_that_only_shifts():
    torch.manual_seed(0)
    model, shift = named(head=CosineLinear(8, 3)), ClassAffine([1.0, 1.0, 1.0], [0.5, -1.0, 2.0])
    inputs = torch.rand(2, 8)
    expected = shift(model.head(inputs))
    fold(model, LogitLayer("head"), shift)
    torch.testing.assert_close(model.head(inputs), expected)


class Normed(nn.Conv2d):
    """A convolution that brings its own norm, as Detectron2's can."""

    def __init__(self, *arguments, norm=None):
        super().__init__(*arguments)
        self.norm = norm

    def forward(self, inputs):
        output = super().forward(inputs)
        return output if self.norm is None else self.norm(output)


def test_a_subclass_counts_by_what_it_does():
    layer, affine, inputs = LogitLayer("head", class_axis=1), random_map(4), torch.rand(1, 3, 5, 5)
    plain = named(head=Normed(3, 4, 3))
    expected = affine(plain.head(inputs), axis=1)
    fold(plain, layer, affine)
    torch.testing.assert_close(plain.head(inputs), expected)
    norm = nn.BatchNorm2d(4)
    nn.init.uniform_(norm.running_mean)
    with pytest.raises(InputError, match="weight \\* input \\+ bias, but Normed does not"):
        fold(named(head=Normed(3, 4, 3, norm=norm)), layer, affine)


class NearlyLinear(nn.Linear):
    """Bends its output by a thousandth."""

    def forward(self, features):
        output = super().forward(features)
        return output + 1e-3 * output.square()


def test_a_layer_that_is_nearly_linear_is_refused_too():
    with pytest.raises(InputError, match="weight \\* input \\+ bias, but NearlyLinear does not"):
        fold(named(head=NearlyLinear(8, 3)), LogitLayer("head"), random_map(3))


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


def test_a_refused_fold_gives_shared_slots_back():
    shared = CosineLinear(8, 3)
    model = named(class_embed=nn.ModuleList([shared, shared]))
    with pytest.raises(InputError, match="normalises its weight"):
        fold(model, LogitLayer("class_embed.1"), random_map(3))
    assert model.class_embed[1] is shared


def test_weights_that_are_computed_or_quantised_are_refused():
    with pytest.raises(InputError, match="whose weight is computed or quantised"):
        fold(named(head=weight_norm(nn.Linear(4, 3))), LogitLayer("head"), random_map(3))
    quantised = nn.Linear(4, 3)
    quantised.weight = nn.Parameter(torch.zeros(3, 4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(InputError, match=r"floating point weights, but got torch\.int8"):
        fold(named(head=quantised), LogitLayer("head"), random_map(3))
    with torch.device("meta"):
        unloaded = nn.Linear(4, 3)
    with pytest.raises(InputError, match="not loaded"):
        fold(named(head=unloaded), LogitLayer("head"), random_map(3))


def test_overflow_is_refused():
    model = named(head=nn.Linear(40, 2).half())
    with pytest.raises(InputError, match=r"bias of `head` to fit into torch\.float16"):
        fold(model, LogitLayer("head"), ClassAffine([1.0, 1.0], [1e6, 0.0]))


def test_what_is_not_affine_is_refused():
    fracal = FracalSigmoid.fit([60, 20, 1], 100, None)
    with pytest.raises(InputError, match="to be a ClassAffine, but got FracalSigmoid"):
        fold(named(head=nn.Linear(4, 3)), LogitLayer("head", activation="sigmoid"), fracal)


def test_wrong_widths_backgrounds_and_numbers_of_maps_are_refused():
    model = named(head=nn.Linear(4, 3), other=nn.Linear(4, 3))
    with pytest.raises(InputError, match="columns differs: 4 in `affine`, 3 in `head`"):
        fold(model, LogitLayer("head"), random_map(4))
    with pytest.raises(InputError, match="The background differs: last in `affine`, first in `head`"):
        fold(model, LogitLayer("head", background=0), random_map(3, background=-1))
    with pytest.raises(InputError, match="one map, since `head` has no stages, but got 2"):
        fold(model, LogitLayer("head"), [random_map(3), random_map(3)])
    with pytest.raises(InputError, match="one map per stage \\(2\\), but got 3"):
        fold(model, LogitLayer(("head", "other"), stages=True), [random_map(3)] * 3)


def test_a_layer_with_a_map_attached_is_refused():
    model = named(head=nn.Linear(4, 3))
    handle = attach(model, LogitLayer("head"), random_map(3))
    with pytest.raises(InputError, match="no map attached"):
        fold(model, LogitLayer("head"), random_map(3))
    handle.remove()
    fold(model, LogitLayer("head"), random_map(3))


def test_nothing_is_folded_when_one_module_of_several_is_refused():
    model = named(first=nn.Linear(8, 3), second=CosineLinear(8, 3))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match="`second`"):
        fold(model, LogitLayer(("first", "second")), random_map(3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_trial_is_neither_recorded_nor_random():
    model = named(head=nn.Linear(4, 3)).eval()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with record(model, LogitLayer("head")) as moments:
        model.head(torch.ones(2, 4))
        fold(model, LogitLayer("head"), random_map(3))
    assert moments.count.tolist() == [2.0] * 3
    assert torch.equal(torch.rand(1), expected)
