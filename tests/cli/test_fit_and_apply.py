"""`logn fit` and `logn apply`: from statistics to corrected logits."""

import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from logn.calibrators.affine import ClassAffine
from logn.calibrators.fracal import fracal
from logn.calibrators.normalization import logit_normalization, prior2posterior
from logn.calibrators.recommend import recommend
from logn.calibrators.rivals import norcal, tau_norm
from logn.statistics.moments import ClassMoments


@pytest.fixture
def stats(run, logits, tmp_path):
    """Statistics of the shards, background last."""
    path = tmp_path / "stats.safetensors"
    assert run("collect", tmp_path / "shards", "-o", path, "--background", "last", "--activation", "softmax").code == 0
    return path


@pytest.fixture
def counts(tmp_path):
    """Class counts with a class that was never seen."""
    path = tmp_path / "counts.csv"
    path.write_text("name,image_count,instance_count,fractal_dimension\ncup,60,100,1.8\nspoon,20,10,1\nfork,0,0,1\n")
    return path


def _fit(run, tmp_path, *arguments):
    output = tmp_path / "affine.safetensors"
    result = run("fit", *arguments, "-o", output)
    assert result.code == 0, result.err
    return ClassAffine.load(output)


@pytest.mark.parametrize(
    ("method", "options", "arguments"),
    [
        ("logn", [], {}),
        ("logn:margin=0", [], {"margin": 0.0}),
        ("logn:margin=-2.5,use_std=false", [], {"margin": -2.5, "use_std": False}),
        ("logn", ["--strength", "0.5"], {"strength": 0.5}),
        ("logn", ["--background", "none"], {"background": None}),
    ],
)
def test_options_of_logn(run, stats, tmp_path, method, options, arguments):
    expected = logit_normalization(ClassMoments.load(stats), **arguments)
    assert _fit(run, tmp_path, stats, "--method", method, *options) == expected


def test_the_default_is_what_is_recommended(run, stats, tmp_path):
    moments = ClassMoments.load(stats)
    assert _fit(run, tmp_path, stats) == recommend(moments).fit(moments)
    assert _fit(run, tmp_path, stats, "--strength", "1") == recommend(moments).fit(moments, strength=1.0)


def test_counts_without_statistics(run, counts, tmp_path):
    output = tmp_path / "a.safetensors"
    options = ("--method", "norcal:gamma=1", "--counts", counts, "--background", "first")
    result = run("fit", *options, "-o", output, "--json")
    assert "1 class without a training image" in result.err
    assert result.json["method"] == "norcal"
    assert result.json["settings"]["gamma"] == 1.0
    assert ClassAffine.load(output) == norcal([60, 20, 1], 1.0, background=0)


def test_fracal_with_its_dimensions(run, stats, counts, tmp_path):
    options = ("--method", "fracal:num_images=100", "--counts", counts)
    whole = _fit(run, tmp_path, stats, *options, "--dimensions", counts)
    assert whole == fracal([60, 20, 1], 100, [1.8, 1, 1], background=-1)
    result = run("fit", stats, *options, "-o", tmp_path / "b.safetensors")
    assert "only the frequency part" in result.err


def test_tau_norm_reads_weight_and_bias(run, tmp_path):
    weight, bias = np.array([[3.0, 4.0], [0.6, 0.8], [0.0, 0.5]]), np.array([0.1, 0.2, 0.3])
    save_file({"fc.weight": weight, "fc.bias": bias, "other": bias}, tmp_path / "model.safetensors")
    np.save(tmp_path / "weight.npy", weight)
    method, expected = ("--method", "tau-norm:tau=0.7"), tau_norm(weight, 0.7, bias)
    together = _fit(run, tmp_path, *method, "--weights", tmp_path / "model.safetensors", "--key", "fc.weight")
    assert together == expected
    assert _fit(run, tmp_path, *method, "--weights", tmp_path / "weight.npy") == tau_norm(weight, 0.7)


def test_prior2posterior_by_flags_and_by_options(run, logits, tmp_path):
    statistics = tmp_path / "prior.safetensors"
    assert run("collect", tmp_path / "shards", "-o", statistics).code == 0
    moments, softmax = ClassMoments.load(statistics), ("--activation", "softmax")
    expected = prior2posterior(moments, strength=0.5, activation="softmax")
    assert _fit(run, tmp_path, statistics, "--method", "p2p:strength=0.5", *softmax) == expected
    assert _fit(run, tmp_path, statistics, "--method", "p2p", "--strength", "0.5", *softmax) == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--method", "nonsense"], "`--method` to be one of"),
        (["--method", "norcal"], "`--counts` for the method `norcal`"),
        (["--method", "temperature"], "temperature:value"),
        (["--method", "p2p:strength=0", "--strength", "1"], "option `strength` of `p2p` once, but got it twice"),
        (["--method", "norcal", "--strength", "1"], "options of `norcal` to be among gamma"),
        (["--strength", "2"], "`--strength` to be from 0 to 1"),
        (["--counts", "x.csv"], "`--counts` only with the methods loga"),
        (["--target", "counts"], "`--target` to be uniform, training or a file of shares"),
        (["--method", "norcal", "--counts", "no-such.csv"], "no-such.csv"),
        (["--method", "temperature:value=0"], "`value` to be above 0"),
    ],
)
def test_mistakes_are_named(refused, stats, tmp_path, options, sentence):
    assert sentence in refused("fit", stats, *options, "-o", tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()


def test_files_of_another_kind_are_refused(run, refused, stats, tmp_path):
    output = tmp_path / "b.safetensors"
    affine = tmp_path / "affine.safetensors"
    _fit(run, tmp_path, stats)
    assert "to hold `logn.statistics`, but it says 'logn.affine'" in refused("fit", affine, "-o", output)
    assert "to hold `logn.affine`" in refused("apply", stats, tmp_path / "shards/0.npy", "-o", tmp_path / "b.npy")
    assert "0.npy" in refused("fit", tmp_path / "shards/0.npy", "-o", output)
    assert "no-such" in refused("fit", tmp_path / "no-such.safetensors", "-o", output)


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
    assert result.code == 0
    assert result.json["shape"] == list(shape)
    got = np.load(tmp_path / target) if target == "y.npy" else load_file(tmp_path / target)["logits"]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, affine(logits))


def test_bfloat16_stays_bfloat16(run, affine, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    logits = torch.randn(50, 4).to(torch.bfloat16)
    save_torch({"logits": logits}, tmp_path / "x.safetensors")
    assert (
        run("apply", tmp_path / "affine.safetensors", tmp_path / "x.safetensors", "-o", tmp_path / "y.safetensors").code
        == 0
    )
    got = load_torch(tmp_path / "y.safetensors")["logits"]
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, affine(logits))


def test_a_file_is_not_corrected_in_place(refused, affine, tmp_path):
    logits = np.random.default_rng(0).standard_normal((20, 4))
    np.save(tmp_path / "x.npy", logits)
    told = refused("apply", tmp_path / "affine.safetensors", tmp_path / "x.npy", "-o", tmp_path / "x.npy")
    assert "another file than the inputs" in told
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), logits)


def test_logits_that_cannot_be_corrected_are_refused(refused, affine, tmp_path):
    path, output = tmp_path / "x.npy", tmp_path / "y.npy"

    def sentence(logits, target=output):
        np.save(path, logits)
        return refused("apply", tmp_path / "affine.safetensors", path, "-o", target)

    assert "to have 3 columns, those of" in sentence(np.zeros((2, 3)))
    assert "row 1, class 2 of" in sentence(np.array([[0.0] * 4, [0, 0, np.nan, 0]]))
    assert "to fit float16" in sentence(np.full((1, 4), 60000, np.float16))
    assert "at least one row" in sentence(np.zeros((0, 4)))
    assert "int64" in sentence(np.zeros((2, 4), np.int64))
    assert "to end in .npy or .safetensors" in sentence(np.zeros((2, 4)), tmp_path / "y.txt")
    assert not output.exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["affine.safetensors", "x.npy"]


def test_infinity_may_stay(run, affine, tmp_path):
    np.save(tmp_path / "x.npy", np.array([[0.0, -np.inf, 1.0, 2.0]]))
    assert run("apply", tmp_path / "affine.safetensors", tmp_path / "x.npy", "-o", tmp_path / "y.npy").code == 0
    assert np.load(tmp_path / "y.npy").tolist() == [[1.0, -np.inf, 1.0, 2.25]]


def test_an_error_stands_alone(refused, tmp_path):
    """Remarks on the inputs come when the correction is written, not before an error."""
    (tmp_path / "counts.json").write_text("[5000, 0]")
    options = ("--method", "fracal:num_images=nan", "--counts", tmp_path / "counts.json")
    assert "`num_images`" in refused("fit", *options, "-o", tmp_path / "a.safetensors")
    options = ("--method", "norcal:gamma=1e308", "--counts", tmp_path / "counts.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # those of NumPy would be printed beside the sentence
        assert "`shift` to be finite" in refused("fit", *options, "-o", tmp_path / "a.safetensors")


@pytest.fixture
def one_stage(run, tmp_path):
    """Logits of a one-stage detector, far below 0, in the precision of the sample, and their statistics."""
    mean, std = np.linspace(-5, -9, 30), np.linspace(2.5, 1.0, 30)
    logits = np.random.default_rng(0).standard_normal((2000, 30)) * std + mean
    np.save(tmp_path / "train.npy", logits.astype(np.float16).astype(np.float64))
    path = tmp_path / "one_stage.safetensors"
    assert run("collect", tmp_path / "train.npy", "--background", "none", "-o", path).code == 0
    return path


def mean_score(path):
    return float((1 / (1 + np.exp(-np.load(path)))).mean())
