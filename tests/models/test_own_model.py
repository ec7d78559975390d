"""Maps are put on the model that they were made for, once: a note on the module and a fingerprint in the map tell."""

import copy
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from tests.made.onnx_graphs import write_graph
from torch import nn

import logn
from logn.errors import InputError, LogNWarning
from logn.models.layer import fingerprint
from logn.models.onnx.file import read_onnx
from logn.statistics.head import Head

LAYER = logn.LogitLayer("head", activation="softmax")
SIGMOID = logn.LogitLayer("head", activation="sigmoid")
FIRST = logn.LogitLayer("head", background=0, activation="softmax")
AFFINE = logn.ClassAffine([0.5, 2.0, 1.5], [1.0, 0.0, -1.0])
SHIFT = logn.ClassAffine([1.0, 1.0, 1.0], [1.0, 0.0, -1.0])
PUT_ON = {"attach": logn.attach, "fold": logn.fold}
put_on = pytest.mark.parametrize("put", PUT_ON.values(), ids=PUT_ON)


def classifier(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(OrderedDict(head=nn.Linear(8, 3))).eval()


def folded(affine=AFFINE):
    model = classifier()
    logn.fold(model, LAYER, affine)
    return model


def recorded_map(model, path="head", **options):
    layer = logn.LogitLayer(path, activation="softmax")
    with logn.record(model, layer, check_output=False, **options) as moments, torch.inference_mode():
        module = model.get_submodule(path)
        module(torch.rand(20, module.in_features))
    return logn.logit_normalization(moments)


# The model that the statistics are of


@put_on
def test_the_model_of_the_statistics_takes_the_map(put, recwarn):
    model = classifier()
    affine = recorded_map(model)
    assert affine.head.source == fingerprint(model)
    expected = affine(model(torch.ones(1, 8)).detach())
    put(model, LAYER, affine)
    assert torch.allclose(model(torch.ones(1, 8)), expected, atol=1e-5)
    assert not recwarn.list


@put_on
def test_another_model_of_the_same_shape_does_not(put):
    affine, other = recorded_map(classifier()), classifier(seed=1)
    before = fingerprint(other)
    with pytest.raises(InputError, match=r"weights.* `head`.*allow_mismatch=True"):
        put(other, LAYER, affine)
    assert fingerprint(other) == before
    with pytest.warns(LogNWarning, match=r"weights.* `head`"):
        put(other, LAYER, affine, allow_mismatch=True)


@put_on
@pytest.mark.parametrize(
    ("change", "layer", "options", "message"),
    [
        (nn.Module.double, LAYER, {}, "weights"),
        (nn.Module.eval, SIGMOID, {}, "activation"),
        (nn.Module.eval, FIRST, {"allow_mismatch": True}, "background"),
    ],
    ids=["cast", "activation", "background"],
)
def test_a_changed_model_does_not_take_it(put, change, layer, options, message):
    model = classifier()
    affine = recorded_map(model)
    with pytest.raises(InputError, match=message):
        put(change(model), layer, affine, **options)


def test_calibrating_in_one_call_fits_its_own_model(recwarn):
    for fold in (False, True):
        affine = logn.calibrate(classifier(), [torch.rand(20, 8)], layer=LAYER, fold=fold).affine
        assert affine.head.source == fingerprint(classifier())
    assert not recwarn.list


# The layer that they are of


def two_heads():
    torch.manual_seed(0)
    return nn.ModuleDict({"a": nn.Linear(8, 3), "b": nn.Linear(8, 3)}).eval()


@put_on
@pytest.mark.parametrize("fingerprinted", [True, False])
def test_a_map_of_another_layer_of_the_same_width_is_refused(put, fingerprinted):
    model = two_heads()
    affine = recorded_map(model, "a", fingerprint=fingerprinted)
    before = fingerprint(model)
    with pytest.raises(InputError, match=r"`affine`.*`a`.*`b`"):
        put(model, logn.LogitLayer("b"), affine)
    assert fingerprint(model) == before
    with pytest.warns(LogNWarning, match=r"`a`.*`b`"):
        put(model, logn.LogitLayer("b"), affine, allow_mismatch=True)


@put_on
def test_maps_of_stages_go_to_their_own_stage(put):
    model, layer = two_heads(), logn.LogitLayer(("a", "b"), stages=True)
    maps = [recorded_map(model, path) for path in ("a", "b")]
    with pytest.raises(InputError, match=r"`b`.*`a`"):
        put(model, layer, maps[::-1])
    put(model, layer, maps)
    put(two_heads(), layer, maps[0])  # one for all may come from any of them


@put_on
@pytest.mark.parametrize("source", [Head(layer="/head/Gemm", source="onnx:0c"), None])
def test_a_map_that_does_not_name_a_layer_of_torch_is_taken(put, source):
    put(classifier(), LAYER, logn.ClassAffine([1.0, 2.0, 0.5], [0.0, 1.0, -1.0], head=source))


# A second fold


@pytest.mark.parametrize("affine", [AFFINE, SHIFT])
@pytest.mark.parametrize(
    "change", [nn.Module.eval, copy.deepcopy, nn.Module.half, nn.Module.bfloat16, nn.Module.double]
)
def test_folding_twice_is_refused_in_one_process_and_changes_nothing(affine, change):
    model = change(folded(affine))
    before = model.head.weight.detach().clone()
    for call in (
        lambda: logn.fold(model, LAYER, AFFINE),
        lambda: logn.calibrate(model, [torch.rand(4, 8)], layer=LAYER),
    ):
        with pytest.raises(InputError, match="`head`"):
            call()
    assert torch.equal(model.head.weight, before)
    logn.attach(model, LAYER, AFFINE, allow_refold=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_loaded_elsewhere_the_fingerprint_of_the_map_tells(dtype):
    model, other = classifier(), classifier().to(dtype)
    affine = recorded_map(model)
    logn.fold(model, LAYER, affine)
    other.load_state_dict(model.to(dtype).state_dict(), strict=True)
    for put in PUT_ON.values():
        with pytest.raises(InputError, match=r"weights.* `head`"):
            put(other, LAYER, affine)
    logn.fold(other, LAYER, AFFINE)  # a map without a fingerprint cannot know


@pytest.mark.parametrize("affine", [AFFINE, SHIFT])
def test_other_weights_take_a_fold_again(affine):
    model = classifier()
    before = copy.deepcopy(model.state_dict())
    logn.fold(model, LAYER, affine)
    model.load_state_dict(before)
    logn.fold(model, LAYER, affine)
    with torch.no_grad():
        model.head.weight.mul_(1.5)  # training went on
    logn.fold(model, LAYER, affine)


def test_the_inverse_on_top_undoes_it_and_does_not_ask_for_the_weights(recwarn):
    model, features = classifier(), torch.rand(4, 8)
    affine, expected = recorded_map(model), model(features)
    logn.fold(model, LAYER, affine)
    logn.fold(model, LAYER, affine.inverse(), allow_refold=True)
    torch.testing.assert_close(model(features), expected)
    assert not recwarn.list


# Files


def write(path, seed, activation="Softmax"):
    return write_graph(path, f"z = Gemm(x, w) y = {activation}(z)", seed=seed, w=(4, 3))


def onnx_map(path, **changes):
    source = Head(activation="softmax", source=read_onnx(path).digest)
    return logn.ClassAffine([1.0, 2.0, 0.5], [0.0, 1.0, -1.0], head=replace(source, **changes))


def test_an_onnx_file_takes_its_own_map_only(tmp_path, refused, recwarn):
    mine, other = write(tmp_path / "mine.onnx", 0), write(tmp_path / "other.onnx", 1)
    affine, output = onnx_map(mine), tmp_path / "out.onnx"
    assert affine.head.source.startswith("onnx:")
    logn.fold_onnx(mine, affine, tmp_path / "own.onnx")
    assert not recwarn.list
    refused(other, r"weights.* `.*other\.onnx`.*allow_mismatch=True", affine)
    with pytest.warns(LogNWarning, match="weights"):
        logn.fold_onnx(other, affine, output, allow_mismatch=True)
    logn.fold_onnx(output, affine, tmp_path / "twice.onnx", allow_refold=True)


def test_an_onnx_file_of_another_activation_does_not_take_it(tmp_path, refused):
    path = write(tmp_path / "model.onnx", 0, "Sigmoid")
    refused(path, "activation", onnx_map(path))


@pytest.mark.parametrize("digest", [fingerprint(classifier()), "torch:" + "0c" * 32])
def test_statistics_from_pytorch_may_be_used_for_a_file(tmp_path, digest, recwarn):
    path = write(tmp_path / "model.onnx", 0)
    logn.fold_onnx(path, onnx_map(path, source=digest), tmp_path / "out.onnx")
    assert not recwarn.list
