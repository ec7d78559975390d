"""An attached map is in no state dict: every kind of save says so, and nothing else does."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import logn
from logn.errors import LogNWarning
from logn.methods.affine import ClassAffine
from logn.models.layer import LogitLayer, fingerprint
from logn.models.torch.attach import NOT_SAVED, attach
from logn.models.torch.fold import fold

LAYER = LogitLayer("0")
AFFINE = ClassAffine([0.5, 2.0, 1.5], [1.0, 0.0, -1.0])


def attached_model():
    model = nn.Sequential(nn.Linear(4, 3)).eval()
    return model, attach(model, LAYER, AFFINE)


def told(call):
    """What LogN warns of during a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(item.message) for item in caught if issubclass(item.category, LogNWarning)]


def test_a_state_dict_of_the_layer_or_of_anything_above_it_says_that_the_map_is_not_in_it():
    model, handle = attached_model()
    keys = []
    for module in (model, model[0], nn.ModuleDict({"model": model}), nn.DataParallel(model)):
        assert told(lambda module=module: keys.extend(module.state_dict())) == [NOT_SAVED]
    assert {key.rpartition(".")[2] for key in keys} == {"weight", "bias"}
    handle.remove()
    assert told(model.state_dict) == []
    assert not model[0]._state_dict_hooks


def test_what_the_sentence_proposes_keeps_the_map(tmp_path):
    model, handle = attached_model()
    features, fresh, folded = torch.rand(5, 4), nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 3))
    expected = model(features)
    assert told(lambda: fresh.load_state_dict(model.state_dict())) == [NOT_SAVED]
    assert not torch.allclose(fresh(features), expected)  # the map is lost, as the sentence says
    AFFINE.save(tmp_path / "affine.safetensors")
    attach(fresh, LAYER, ClassAffine.load(tmp_path / "affine.safetensors"))
    torch.testing.assert_close(fresh(features), expected)
    handle.remove()
    fold(model, LAYER, AFFINE)
    assert told(lambda: folded.load_state_dict(model.state_dict())) == []
    torch.testing.assert_close(folded(features), expected)


def test_one_sentence_for_a_call_however_many_modules_the_layer_has():
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    attach(model, LogitLayer(("0", "1"), stages=True), [AFFINE, AFFINE])
    assert told(lambda: model.state_dict(destination={})) == [NOT_SAVED]


def test_copies_carry_the_map_and_the_warning():
    model, handle = attached_model()
    other, features = copy.deepcopy(model), torch.rand(5, 4)
    assert torch.equal(other(features), model(features))
    handle.remove()
    assert told(other.state_dict) == [NOT_SAVED]


def test_a_shared_module_in_another_slot_does_not_warn():
    shared = nn.Linear(4, 3)
    model = nn.ModuleDict({"class_embed": nn.ModuleList([shared, shared])})
    attach(model, LogitLayer("class_embed.1"), AFFINE)
    assert told(model["class_embed"][0].state_dict) == []
    assert told(model.state_dict) == [NOT_SAVED]


def test_who_only_looks_at_the_state_is_not_warned():
    model, _ = attached_model()

    def look():
        fingerprint(model)
        with logn.record(model, LAYER):
            model(torch.rand(5, 4))
        torch.compile(model, backend="eager")(torch.rand(5, 4))

    assert told(look) == []


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
    assert told(lambda: model.save_pretrained(tmp_path / "attached")) == [NOT_SAVED]
    assert not torch.allclose(loaded("attached"), expected)
    handle.remove()
    fold(model, layer, AFFINE)
    assert told(lambda: model.save_pretrained(tmp_path / "folded")) == []
    torch.testing.assert_close(loaded("folded"), expected)
