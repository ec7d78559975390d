"""Maps are put on the model that they were made for, and on no other one."""

import pytest
import torch
from tests.deploy.conftest import write_graph
from torch import nn

import logn
from logn.errors import InputError, LogNWarning
from logn.logits.layer import fingerprint
from logn.logits.onnx.file import onnx_digest, read_onnx
from logn.statistics.moments import StatisticsMetadata

LAYER = logn.LogitLayer("head", activation="softmax")
PUT_ON = {"attach": logn.attach, "fold": logn.fold}
put_on = pytest.mark.parametrize("put", PUT_ON.values(), ids=PUT_ON)


def classifier(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential()
    model.add_module("head", nn.Linear(8, 3))
    return model.eval()


def recorded_map(model, layer=LAYER):
    with logn.record(model, layer) as moments, torch.inference_mode():
        model(torch.rand(20, 8))
    return logn.logit_normalization(moments)


@put_on
def test_the_model_of_the_statistics_takes_the_map(put, recwarn):
    model = classifier()
    affine = recorded_map(model)
    assert affine.source.fingerprint == fingerprint(model)
    expected = affine(model(torch.ones(1, 8)).detach())
    put(model, LAYER, affine)
    assert torch.allclose(model(torch.ones(1, 8)), expected, atol=1e-5)
    assert not recwarn.list


@put_on
def test_another_model_of_the_same_shape_does_not(put):
    affine, other = recorded_map(classifier()), classifier(seed=1)
    before = fingerprint(other)
    with pytest.raises(
        InputError, match=r"The weights differ .* in `head`.*cast to another precision.*allow_mismatch=True"
    ):
        put(other, LAYER, affine)
    assert fingerprint(other) == before
    with pytest.warns(LogNWarning, match=r"The weights differ .* in `head`"):
        put(other, LAYER, affine, allow_mismatch=True)


@put_on
def test_a_model_with_a_fold_is_told_of_the_fold_and_not_of_other_weights(put):
    model = classifier()
    affine = recorded_map(model)
    logn.fold(model, LAYER, affine)
    with pytest.raises(InputError, match="has a map folded into it"):
        put(model, LAYER, affine)


@put_on
def test_a_cast_model_is_another_one(put):
    model = classifier()
    affine = recorded_map(model)
    with pytest.raises(InputError, match="cast to another precision"):
        put(model.double(), LAYER, affine)


@put_on
def test_another_activation_or_background_does_not_take_it(put):
    model = classifier()
    affine = recorded_map(model)
    with pytest.raises(InputError, match="The activation differs: softmax in `affine`, sigmoid in `head`"):
        put(model, logn.LogitLayer("head", activation="sigmoid"), affine)
    with pytest.raises(InputError, match="The background differs: none in `affine`, first in `head`"):
        put(model, logn.LogitLayer("head", background=0, activation="softmax"), affine, allow_mismatch=True)


def test_a_fold_on_top_does_not_ask_for_the_weights(recwarn):
    model = classifier()
    affine, before = recorded_map(model), model.head.weight.detach().clone()
    logn.fold(model, LAYER, affine)
    logn.fold(model, LAYER, affine.inverse(), allow_refold=True)
    assert torch.allclose(model.head.weight, before, atol=1e-5)
    assert not recwarn.list


def test_calibrating_in_one_call_fits_its_own_model(recwarn):
    for fold in (False, True):
        affine = logn.calibrate(classifier(), [torch.rand(20, 8)], layer=LAYER, fold=fold).affine
        assert affine.source.fingerprint == fingerprint(classifier())
    assert not recwarn.list


def two_heads():
    torch.manual_seed(0)
    return nn.ModuleDict({"a": nn.Linear(8, 3), "b": nn.Linear(8, 3)}).eval()


def map_of_layer(model, path, **options):
    with logn.record(model, logn.LogitLayer(path), check_output=False, **options) as moments, torch.inference_mode():
        model[path](torch.rand(20, 8))
    return logn.logit_normalization(moments)


@put_on
@pytest.mark.parametrize("fingerprinted", [True, False])
def test_a_map_of_another_layer_of_the_same_width_is_refused(put, fingerprinted):
    model = two_heads()
    affine = map_of_layer(model, "a", fingerprint=fingerprinted)
    before = fingerprint(model)
    with pytest.raises(InputError, match=r"^`affine` was recorded at `a`, not at `b`; pass"):
        put(model, logn.LogitLayer("b"), affine)
    assert fingerprint(model) == before
    with pytest.warns(LogNWarning, match="recorded at `a`, not at `b`"):
        put(model, logn.LogitLayer("b"), affine, allow_mismatch=True)


@put_on
def test_maps_of_stages_go_to_their_own_stage(put):
    model, layer = two_heads(), logn.LogitLayer(("a", "b"), stages=True)
    maps = [map_of_layer(model, path) for path in ("a", "b")]
    with pytest.raises(InputError, match="recorded at `b`, not at `a`"):
        put(model, layer, maps[::-1])
    put(model, layer, maps)
    put(two_heads(), layer, maps[0])  # one for all may come from any of them


@put_on
@pytest.mark.parametrize("source", [StatisticsMetadata(layer="/head/Gemm", fingerprint="onnx:0c"), None])
def test_a_map_that_does_not_name_a_layer_of_torch_is_taken(put, source):
    put(classifier(), LAYER, logn.ClassAffine([1.0, 2.0, 0.5], [0.0, 1.0, -1.0], source=source))


def write(path, seed, activation="Softmax"):
    return write_graph(path, f"z = Gemm(x, w) y = {activation}(z)", seed=seed, w=(4, 3))


def onnx_map(path, **changes):
    source = StatisticsMetadata(activation="softmax", fingerprint=onnx_digest(read_onnx(path)))
    return logn.ClassAffine([1.0, 2.0, 0.5], [0.0, 1.0, -1.0], source=source.with_changes(**changes))


def test_an_onnx_file_takes_its_own_map_only(tmp_path, recwarn):
    mine, other = write(tmp_path / "mine.onnx", 0), write(tmp_path / "other.onnx", 1)
    affine, output = onnx_map(mine), tmp_path / "out.onnx"
    assert affine.source.fingerprint.startswith("onnx:")
    logn.fold_onnx(mine, affine, output)
    assert not recwarn.list
    output.unlink()
    with pytest.raises(
        InputError, match=r"weights differ .* in `.*other\.onnx`\): .*exported anew.*allow_mismatch=True"
    ):
        logn.fold_onnx(other, affine, output)
    assert not output.exists()
    with pytest.warns(LogNWarning, match="The weights differ"):
        logn.fold_onnx(other, affine, output, allow_mismatch=True)
    logn.fold_onnx(output, affine, tmp_path / "twice.onnx", allow_refold=True)


def test_an_onnx_file_of_another_activation_does_not_take_it(tmp_path):
    path = write(tmp_path / "model.onnx", 0, "Sigmoid")
    with pytest.raises(InputError, match=r"The activation differs: softmax in `affine`, sigmoid in"):
        logn.fold_onnx(path, onnx_map(path), tmp_path / "out.onnx")


@pytest.mark.parametrize("digest", [fingerprint(classifier()), "0c" * 32])
def test_statistics_from_pytorch_may_be_used_for_a_file(tmp_path, digest, recwarn):
    path = write(tmp_path / "model.onnx", 0)
    logn.fold_onnx(path, onnx_map(path, fingerprint=digest), tmp_path / "out.onnx")
    assert not recwarn.list
