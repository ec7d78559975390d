"""`logn fit` and `logn apply`: from statistics to corrected logits."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from logn.methods import logit_normalization, norcal, prior2posterior, tau_norm
from logn.methods.affine import ClassAffine
from logn.methods.fracal import fracal
from logn.methods.recommend import recommend
from logn.statistics.moments import ClassMoments


@pytest.fixture
def counts(tmp_path):
    """Class counts with a class that was never seen."""
    path = tmp_path / "counts.csv"
    path.write_text("name,image_count,instance_count,fractal_dimension\ncup,60,100,1.8\nspoon,20,10,1\nfork,0,0,1\n")
    return path


def _fit(run, tmp_path, *arguments):
    output = tmp_path / "affine.safetensors"
    result = run("fit", *arguments, "-o", output, "--overwrite")
    assert result.code == 0, result.err
    return ClassAffine.load(output)


def without_background(moments):
    moments.head = replace(moments.head, background=None)
    return moments


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", lambda moments: recommend(moments).fit(moments)),
        ("--strength 1", lambda moments: recommend(moments).fit(moments, strength=1.0)),
        ("--method logn", logit_normalization),
        (
            "--method logn:margin=-2.5,use_std=false",
            lambda moments: logit_normalization(moments, margin=-2.5, use_std=False),
        ),
        ("--method logn --strength 0.5", lambda moments: logit_normalization(moments, strength=0.5)),
        ("--method logn --background none", lambda moments: logit_normalization(without_background(moments))),
        ("--method p2p:strength=0.5", lambda moments: prior2posterior(moments, strength=0.5)),
    ],
)
def test_methods_from_statistics(run, stats, tmp_path, words, expected):
    assert _fit(run, tmp_path, stats, *words.split()) == expected(ClassMoments.load(stats))


def test_counts_without_statistics(run, counts, tmp_path):
    output = tmp_path / "a.safetensors"
    options = ("--method", "norcal:gamma=1", "--counts", counts, "--background", "first")
    result = run("fit", *options, "-o", output, "--json")
    assert result.json["notes"] == ["1 class without a training image: counted as 1 image."]
    assert (result.json["method"], result.json["settings"]["gamma"]) == ("norcal", 1.0)
    assert ClassAffine.load(output) == norcal([60, 20, 1], 1.0, background=0)


def test_fracal_with_its_dimensions(run, stats, counts, tmp_path):
    options = ("--method", "fracal:num_images=100", "--counts", counts)
    assert _fit(run, tmp_path, stats, *options, "--dimensions", counts) == fracal(
        [60, 20, 1], 100, [1.8, 1, 1], background=-1
    )


def test_tau_norm_reads_weight_and_bias(run, tmp_path):
    weight, bias = np.array([[3.0, 4.0], [0.6, 0.8], [0.0, 0.5]]), np.array([0.1, 0.2, 0.3])
    save_file({"fc.weight": weight, "fc.bias": bias, "other": bias}, tmp_path / "model.safetensors")
    np.save(tmp_path / "weight.npy", weight)
    method = ("--method", "tau-norm:tau=0.7", "--weights")
    together = _fit(run, tmp_path, *method, tmp_path / "model.safetensors", "--key", "fc.weight")
    assert together == tau_norm(weight, 0.7, bias)
    assert _fit(run, tmp_path, *method, tmp_path / "weight.npy") == tau_norm(weight, 0.7)


@pytest.fixture
def affine(tmp_path):
    """A correction of four classes."""
    correction = ClassAffine([2.0, 0.5, 1.0, 1.0], [1.0, -1.0, 0.0, 0.25], method="example")
    correction.save(tmp_path / "affine.safetensors")
    return correction


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(7, 4), (3, 5, 4)])
@pytest.mark.parametrize("source", ["x.npy", "x.npz", "x.safetensors"])
@pytest.mark.parametrize("target", ["y.npy", "y.safetensors"])
def test_applying_keeps_shape_and_precision(run, affine, tmp_path, dtype, shape, source, target):
    logits = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    if source == "x.npy":
        np.save(tmp_path / source, logits)
    elif source == "x.npz":
        np.savez_compressed(tmp_path / source, logits)
    else:
        save_file({"logits": logits}, tmp_path / source)
    result = run("apply", tmp_path / "affine.safetensors", tmp_path / source, "-o", tmp_path / target, "--json")
    assert (result.code, result.json["shape"]) == (0, list(shape))
    got = np.load(tmp_path / target) if target == "y.npy" else load_file(tmp_path / target)["logits"]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, affine(logits))


def test_bfloat16_stays_bfloat16(run, affine, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    logits = torch.randn(50, 4).to(torch.bfloat16)
    save_torch({"logits": logits}, tmp_path / "x.safetensors")
    files = (tmp_path / "affine.safetensors", tmp_path / "x.safetensors", "-o", tmp_path / "y.safetensors")
    assert run("apply", *files).code == 0
    got = load_torch(tmp_path / "y.safetensors")["logits"]
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, affine(logits))


def test_infinity_may_stay(run, affine, tmp_path):
    np.save(tmp_path / "x.npy", np.array([[0.0, -np.inf, 1.0, 2.0]]))
    assert run("apply", tmp_path / "affine.safetensors", tmp_path / "x.npy", "-o", tmp_path / "y.npy").code == 0
    assert np.load(tmp_path / "y.npy").tolist() == [[1.0, -np.inf, 1.0, 2.25]]


def test_an_error_stands_alone(refused, tmp_path):
    """Remarks on the inputs come when the correction is written, not before an error."""
    (tmp_path / "counts.json").write_text("[5000, 0]")
    options = ("--method", "norcal:gamma=1e308", "--counts", tmp_path / "counts.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # those of NumPy would be printed beside the sentence
        assert "`shift` to be finite" in refused("fit", *options, "-o", tmp_path / "a.safetensors")
