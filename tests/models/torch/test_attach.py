"""attach: reversible, differentiable, the same as calling the map, and announced as not saved."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import logn
from logn.errors import InputError, LogNWarning
from logn.methods.affine import ClassAffine
from logn.models.layer import LogitLayer, fingerprint
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.models.torch.record import record

LAYER = LogitLayer("0")
AFFINE = ClassAffine([0.5, 2.0, 1.5], [1.0, 0.0, -1.0])


def linear_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3))


def hooks_of(model):
    return [hook for module in model.modules() for hook in module._forward_hooks]


def test_attached_is_the_map_of_the_output_and_removing_restores_it():
    model, features = linear_model(), torch.rand(5, 4)
    plain = model(features)
    handle = attach(model, LAYER, AFFINE)
    torch.testing.assert_close(model(features), AFFINE(plain))
    handle.remove()
    handle.remove()
    assert torch.equal(model(features), plain)
    assert hooks_of(model) == []


def test_the_handle_is_a_context_manager_also_after_an_error():
    model = linear_model()
    with pytest.raises(RuntimeError, match="stop"), attach(model, LAYER, AFFINE):
        raise RuntimeError("stop")
    assert hooks_of(model) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_mapped_in_float32(dtype):
    model, features = linear_model().to(dtype), torch.rand(200, 4).to(dtype)
    plain, affine = model(features), ClassAffine([0.37, 2.13, 1.57], [1.013, 0.21, -0.907])
    with attach(model, LAYER, affine):
        mapped = model(features)
    assert mapped.dtype == dtype
    scale, shift = torch.tensor(affine.scale).float(), torch.tensor(affine.shift).float()
    assert torch.equal(mapped, torch.addcmul(shift, plain.float(), scale).to(dtype))


def test_the_model_may_change_its_precision_while_the_map_is_attached():
    model, features = linear_model(), torch.rand(5, 4).double()
    plain = copy.deepcopy(model).double()(features)
    attach(model, LAYER, AFFINE)
    torch.testing.assert_close(model.double()(features), AFFINE(plain), rtol=1e-12, atol=1e-12)


def test_gradients_pass_also_when_the_first_pass_was_in_inference_mode():
    model, features = linear_model().double(), torch.rand(5, 4, dtype=torch.float64)
    attach(model, LAYER, AFFINE)
    # float64 so far, float32 for the first time in inference mode.
    model, features = model.float(), features.float()
    with torch.inference_mode():
        model(features)
    model(features).sum().backward()
    expected = torch.tensor(AFFINE.scale).float()[:, None] * features.sum(dim=0)
    torch.testing.assert_close(model[0].weight.grad, expected)


def test_attaching_twice_is_refused():
    model = linear_model()
    handle = attach(model, LAYER, AFFINE)
    for attached in (model, copy.deepcopy(model)):
        with pytest.raises(InputError, match="`0`"):
            attach(attached, LAYER, AFFINE)
    handle.remove()
    attach(model, LAYER, AFFINE)


def test_nothing_is_attached_when_one_module_of_several_is_refused():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3))
    attach(model, LogitLayer("1"), AFFINE)
    with pytest.raises(InputError, match="`1`"):
        attach(model, LogitLayer(("0", "1")), AFFINE)
    assert not model[0]._forward_hooks


def test_compiled_models_are_one_graph():
    model, features = linear_model(), torch.rand(5, 4)
    expected = AFFINE(model(features))
    attach(model, LAYER, AFFINE)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(features), expected)


def test_a_model_that_was_compiled_and_run_before_takes_the_map_and_loses_it():
    model, features = linear_model().eval(), torch.rand(5, 4)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        plain = compiled(features)
        handle = attach(compiled, LAYER, AFFINE)
        torch.testing.assert_close(compiled(features), AFFINE(plain))
        with record(compiled, LAYER) as moments:
            compiled(features)
        handle.remove()
        assert torch.equal(compiled(features), plain)
    np.testing.assert_allclose(moments.mean, plain.mean(dim=0), atol=1e-6)


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_traced_models_keep_the_map_for_any_batch_size():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 1)).eval()
    layer, features = LogitLayer("0", class_axis=1, anchors=2), torch.rand(3, 2, 5, 4)
    expected = AFFINE(layer.rows(model(features)))
    attach(model, layer, AFFINE)
    traced = torch.jit.trace(model, torch.rand(1, 2, 3, 3))
    torch.testing.assert_close(layer.rows(traced(features)), expected)


def test_recording_sees_the_logits_before_the_map_in_any_order():
    model, features = linear_model().eval(), torch.rand(50, 4)
    plain = model(features).detach().double().numpy()
    with attach(model, LAYER, AFFINE), record(model, LAYER) as after, torch.inference_mode():
        model(features)
    with record(model, LAYER) as before, attach(model, LAYER, AFFINE), torch.inference_mode():
        model(features)
    for moments in (before, after):
        np.testing.assert_allclose(moments.mean, plain.mean(axis=0), atol=1e-6)


def test_a_module_of_unknown_width_is_checked_when_it_runs():
    model = nn.Sequential(nn.Identity())
    attach(model, LogitLayer("0", num_columns=3), AFFINE)
    torch.testing.assert_close(model(torch.ones(2, 3)), AFFINE(torch.ones(2, 3)))
    for output in (torch.ones(2, 1), [torch.ones(2, 3)]):
        with pytest.raises(InputError, match="`0`"):
            model(output)


# An attached map is in no state dict: every kind of save says so, and nothing else does.


def warned(call):
    """How often LogN warns during a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return sum(issubclass(item.category, LogNWarning) for item in caught)


def test_a_state_dict_of_the_layer_or_of_anything_above_it_says_that_the_map_is_not_in_it():
    model = linear_model()
    handle = attach(model, LAYER, AFFINE)
    keys = []
    for module in (model, model[0], nn.ModuleDict({"model": model}), nn.DataParallel(model)):
        assert warned(lambda module=module: keys.extend(module.state_dict())) == 1
    assert {key.rpartition(".")[2] for key in keys} == {"weight", "bias"}
    handle.remove()
    assert warned(model.state_dict) == 0
    assert not model[0]._state_dict_hooks


def test_what_the_sentence_proposes_keeps_the_map(tmp_path):
    model = linear_model()
    handle = attach(model, LAYER, AFFINE)
    features, fresh, folded = torch.rand(5, 4), nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 3))
    expected = model(features)
    assert warned(lambda: fresh.load_state_dict(model.state_dict())) == 1
    assert not torch.allclose(fresh(features), expected)  # the map is lost, as the sentence says
    AFFINE.save(tmp_path / "affine.safetensors")
    attach(fresh, LAYER, ClassAffine.load(tmp_path / "affine.safetensors"))
    torch.testing.assert_close(fresh(features), expected)
    handle.remove()
    fold(model, LAYER, AFFINE)
    assert warned(lambda: folded.load_state_dict(model.state_dict())) == 0
    torch.testing.assert_close(folded(features), expected)


def test_one_sentence_for_a_call_however_many_modules_the_layer_has():
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    attach(model, LogitLayer(("0", "1"), stages=True), [AFFINE, AFFINE])
    assert warned(lambda: model.state_dict(destination={})) == 1


def test_copies_carry_the_map_and_the_warning():
    model = linear_model()
    handle = attach(model, LAYER, AFFINE)
    other, features = copy.deepcopy(model), torch.rand(5, 4)
    assert torch.equal(other(features), model(features))
    handle.remove()
    assert warned(other.state_dict) == 1


def test_a_shared_module_in_another_slot_does_not_warn():
    shared = nn.Linear(4, 3)
    model = nn.ModuleDict({"class_embed": nn.ModuleList([shared, shared])})
    attach(model, LogitLayer("class_embed.1"), AFFINE)
    assert warned(model["class_embed"][0].state_dict) == 0
    assert warned(model.state_dict) == 1


def test_who_only_looks_at_the_state_is_not_warned():
    model = linear_model().eval()
    attach(model, LAYER, AFFINE)

    def look():
        fingerprint(model)
        with logn.record(model, LAYER):
            model(torch.rand(5, 4))
        torch.compile(model, backend="eager")(torch.rand(5, 4))

    assert warned(look) == 0


def test_save_pretrained_warns_and_a_fold_is_kept(tmp_path):
    hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", num_labels=3)
    model = hf.ResNetForImageClassification(config).eval()
    layer, images = logn.locate_logits(model), torch.rand(2, 3, 32, 32)

    def loaded(name):
        saved = hf.ResNetForImageClassification.from_pretrained(tmp_path / name).eval()
        return saved(pixel_values=images).logits

    handle = attach(model, layer, AFFINE)
    expected = model(pixel_values=images).logits
    assert warned(lambda: model.save_pretrained(tmp_path / "attached")) == 1
    assert not torch.allclose(loaded("attached"), expected)
    handle.remove()
    fold(model, layer, AFFINE)
    assert warned(lambda: model.save_pretrained(tmp_path / "folded")) == 0
    torch.testing.assert_close(loaded("folded"), expected)
