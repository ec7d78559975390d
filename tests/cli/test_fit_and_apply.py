"""`logn fit` and `logn apply`: from statistics to corrected logits."""

import json
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from logn.calibrators.advice import recommended_for
from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.method_spec import fit_method
from logn.calibrators.methods.fracal import fracal
from logn.calibrators.methods.logit_normalization import logit_normalization
from logn.calibrators.methods.norcal import norcal
from logn.calibrators.methods.prior2posterior import prior2posterior
from logn.calibrators.methods.tau_norm import tau_norm
from logn.statistics.metadata import StatisticsMetadata
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


def test_the_balanced_form_and_the_papers_are_one_flag_away(run, stats, tmp_path):
    moments = ClassMoments.load(stats)
    balanced = logit_normalization(moments, margin="balance", relative_std=True)
    assert _fit(run, tmp_path, stats, "--form", "balanced") == balanced
    assert _fit(run, tmp_path, stats, "--method", "logn") == logit_normalization(moments, margin="min")


def test_the_default_is_what_is_recommended_for_such_a_model_and_its_labels(run, refused, tmp_path):
    rows = np.random.default_rng(0).normal([3, 1, -1, -3, 5], [3, 2, 1.5, 1, 1], size=(400, 5))
    moments = ClassMoments(5, sample_rows=400, mean_probability=True, metadata=StatisticsMetadata(background=-1))
    moments.update(rows)
    moments.save(tmp_path / "stats.safetensors")
    for labels in (None, "federated", "exhaustive"):
        said = () if labels is None else ("--labels", labels)
        spec = recommended_for(moments, labels=labels)
        assert spec.startswith("p2p")
        assert _fit(run, tmp_path, tmp_path / "stats.safetensors", *said) == fit_method(spec, moments=moments)
    both = ("--labels", "federated", "--method", "logn", "-o", tmp_path / "no.safetensors")
    assert "Expected `--labels` only without `--method`" in refused("fit", tmp_path / "stats.safetensors", *both)


def test_without_a_row_sample_the_default_says_what_to_do(run, logits, tmp_path):
    path, options = tmp_path / "bare.safetensors", ("--background", "last", "--sample-rows", "0")
    assert run("collect", tmp_path / "shards", "-o", path, *options).code == 0
    result = run("fit", path, "-o", tmp_path / "a.safetensors")
    assert result.code == 2
    assert "row sample" in result.err
    assert "margin" in result.err


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--margin", "0"], {"margin": 0.0}),
        (["--margin", "-2.5", "--no-std"], {"margin": -2.5, "use_std": False}),
        (["--no-mean", "--std-power", "2"], {"use_mean": False, "std_power": 2}),
        (["--method", "logn:margin=mean", "--eps", "0.5"], {"margin": "mean", "eps": 0.5}),
        (["--method", "logn:balanced"], {"margin": "balance", "relative_std": True}),
        (["--margin", "balance", "--relative-std"], {"margin": "balance", "relative_std": True}),
        (["--method", "logn", "--background", "none"], {"form": "paper", "background": None}),
        (["--variance", "within-batch"], {"variance": "within-batch"}),
        (["--form", "paper"], {"margin": "min", "relative_std": False}),
        (["--method", "logn", "--form", "balanced"], {"margin": "balance", "relative_std": True}),
        (["--form", "balanced", "--margin", "0"], {"margin": 0.0, "relative_std": True}),
        (["--no-relative-std"], {"margin": "balance", "relative_std": False}),
        (["--margin", "min"], {"margin": "min", "relative_std": False}),
    ],
)
def test_options_of_logn(run, stats, tmp_path, options, arguments):
    assert _fit(run, tmp_path, stats, *options) == logit_normalization(ClassMoments.load(stats), **arguments)


@pytest.mark.parametrize(
    "options", [["--eps", "1e-4"], ["--no-mean"], ["--no-std"], ["--std-power", "2"], ["--variance", "within-batch"]]
)
def test_single_options_keep_the_default_form(run, stats, tmp_path, options):
    """They once switched to the paper's recipe, and nobody was told."""
    settings = _fit(run, tmp_path, stats, *options).settings
    assert (settings["margin"], settings["relative_std"]) == ("balance", True)


def test_a_map_that_moves_the_scores_far_is_written_with_a_warning(run, stats, tmp_path):
    result = run("fit", stats, "--method", "logn", "-o", tmp_path / "a.safetensors", "--json")
    assert result.code == 0
    (warning,) = result.json["warnings"]
    assert result.err == f"Warning: {warning}\n"
    assert "lowers the foreground mass" in warning
    assert (tmp_path / "a.safetensors").exists()
    quiet = run("fit", stats, "--method", "logn:balanced", "-o", tmp_path / "a.safetensors", "--json")
    assert quiet.json["warnings"] == []
    assert quiet.err == ""


def test_without_rows_fit_keeps_silent(run, logits, tmp_path):
    path, options = tmp_path / "bare.safetensors", ("--background", "last", "--sample-rows", "0")
    assert run("collect", tmp_path / "shards", "-o", path, *options).code == 0
    result = run("fit", path, "--method", "logn", "-o", tmp_path / "a.safetensors", "--json")
    assert result.json["warnings"] == []
    assert result.err == ""


def test_the_warning_minds_the_users_threshold(run, stats, tmp_path):
    def told(threshold):
        return run("fit", stats, "--method", "logn", "--threshold", threshold, "-o", tmp_path / "a.safetensors").err

    assert "scores above 0.3" in told("0.3")
    assert "scores above" not in told("0")


def test_an_active_mask(run, stats, tmp_path):
    mask = [True, False, True, True]
    expected = logit_normalization(ClassMoments.load(stats), form="paper", active=mask)
    (tmp_path / "active.json").write_text(json.dumps(mask))
    np.save(tmp_path / "active.npy", mask)
    for name in ("active.json", "active.npy"):
        assert _fit(run, tmp_path, stats, "--method", "logn", "--active", tmp_path / name) == expected


def test_counts_without_statistics(run, counts, tmp_path):
    output = tmp_path / "a.safetensors"
    options = ("--method", "norcal", "--gamma", "1", "--counts", counts, "--background", "first")
    result = run("fit", *options, "-o", output, "--json")
    assert "1 class without a training image" in result.err
    assert result.json["method"] == "norcal"
    assert result.json["settings"]["gamma"] == 1.0
    assert ClassAffine.load(output) == norcal([60, 20, 1], 1.0, background=0)


def test_fracal_with_its_dimensions(run, stats, counts, tmp_path):
    options = ("--method", "fracal", "--counts", counts, "--num-images", "100")
    whole = _fit(run, tmp_path, stats, *options, "--dimensions", counts)
    assert whole == fracal([60, 20, 1], 100, [1.8, 1, 1], background=-1)
    result = run("fit", stats, *options, "-o", tmp_path / "b.safetensors")
    assert "only the frequency part" in result.err


def test_tau_norm_reads_weight_and_bias(run, tmp_path):
    weight, bias = np.array([[3.0, 4.0], [0.6, 0.8], [0.0, 0.5]]), np.array([0.1, 0.2, 0.3])
    save_file({"fc.weight": weight, "fc.bias": bias, "other": bias}, tmp_path / "model.safetensors")
    np.save(tmp_path / "weight.npy", weight)
    np.save(tmp_path / "bias.npy", bias)
    method, expected = ("--method", "tau-norm", "--tau", "0.7"), tau_norm(weight, 0.7, bias)
    together = _fit(run, tmp_path, *method, "--weights", tmp_path / "model.safetensors", "--key", "fc.weight")
    apart = _fit(run, tmp_path, *method, "--weights", tmp_path / "weight.npy", "--bias", tmp_path / "bias.npy")
    assert together == apart == expected
    assert _fit(run, tmp_path, *method, "--weights", tmp_path / "weight.npy") == tau_norm(weight, 0.7)


def test_prior2posterior_by_flags_and_by_options(run, refused, logits, tmp_path):
    statistics = tmp_path / "prior.safetensors"
    assert run("collect", tmp_path / "shards", "-o", statistics).code == 0
    output = ("-o", tmp_path / "affine.safetensors")
    asked = refused("fit", statistics, "--method", "p2p", *output)
    assert "the statistics do not say it" in asked
    assert "--activation" in asked
    moments, softmax = ClassMoments.load(statistics), ("--activation", "softmax")
    expected = prior2posterior(moments, strength=0.5, activation="softmax")
    assert _fit(run, tmp_path, statistics, "--method", "p2p:strength=0.5", *softmax) == expected
    assert _fit(run, tmp_path, statistics, "--method", "p2p", "--strength", "0.5", *softmax) == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--method", "nonsense"], "`--method` to be one of"),
        (["--method", "norcal"], "`--counts` for the method `norcal`"),
        (["--gamma", "1"], "Expected `--gamma` only with the methods norcal, but got `logn`."),
        (["--method", "temperature"], "temperature"),
        (["--method", "logn:balanced", "--form", "paper"], "option `form` of `logn` once, but got it twice"),
        (["--form", "squared"], "`--form` to be one of balanced, paper, but got 'squared'"),
        (["--method", "norcal", "--counts", "x.csv", "--count-kind", "boxes"], "`--count-kind` to be one of images"),
        (
            ["--method", "tau-norm", "--active", "x.npy"],
            "`--active` only with the methods logn, p2p, but got",
        ),
        (["--counts", "x.csv"], "`--counts` only with the methods loga"),
        (["--margin", "huge"], "`--margin` to be a number or one of"),
        (["--method", "norcal", "--counts", "no-such.csv"], "no-such.csv"),
        (["--method", "temperature", "--temperature", "0"], "`--temperature` to be above 0"),
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

    assert "to have 3 classes, the columns of" in sentence(np.zeros((2, 3)))
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
    options = ("--method", "fracal", "--num-images", "nan", "--counts", tmp_path / "counts.json")
    assert "`--num-images`" in refused("fit", *options, "-o", tmp_path / "a.safetensors")
    options = ("--method", "norcal", "--gamma", "1e308", "--counts", tmp_path / "counts.json")
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


@pytest.mark.parametrize("method", [(), ("--method", "logn")])
def test_the_scores_of_a_one_stage_detector_survive_the_commands_of_the_readme(run, one_stage, tmp_path, method):
    affine, corrected = tmp_path / "affine.safetensors", tmp_path / "corrected.npy"
    told = run("fit", one_stage, *method, "-o", affine)
    assert run("apply", affine, tmp_path / "train.npy", "-o", corrected).code == 0
    assert mean_score(corrected) == pytest.approx(mean_score(tmp_path / "train.npy"), rel=1e-6)
    shift = ClassAffine.load(affine).settings["margin_value"]
    (sentence,) = [line for line in told.err.splitlines() if "activation" in line]
    assert sentence.startswith(f"The activation is not recorded, so all classes got a common shift of {shift:.4g} that")
    assert sentence.endswith("say --activation softmax or --activation sigmoid.")
    assert run("fit", one_stage, *method, "-o", affine, "--json").json["notes"] == [sentence]


def test_an_activation_that_is_said_needs_no_assumption(run, one_stage, tmp_path):
    affine, moments = tmp_path / "affine.safetensors", ClassMoments.load(one_stage)
    for activation in ("softmax", "sigmoid"):
        told = run("fit", one_stage, "--method", "logn", "--activation", activation, "-o", affine, "--json").json
        assert told["notes"] == []
        assert told["source"]["activation"] == activation
        assert ClassAffine.load(affine) == logit_normalization(moments, form="paper", activation=activation)
    balanced = logit_normalization(moments, margin="balance", relative_std=True, activation="softmax")
    assert _fit(run, tmp_path, one_stage, "--form", "balanced", "--activation", "softmax") == balanced
    assert run("fit", one_stage, "--margin", "0", "-o", affine, "--json").json["notes"] == []  # nothing was assumed


def test_held_out_images_are_of_a_softmax(run, refused, one_stage, tmp_path):
    affine = tmp_path / "affine.safetensors"
    told = run("fit", one_stage, "--held-out", one_stage, "-o", affine, "--json").json
    assert told["notes"] == []
    assert told["source"]["activation"] == "softmax"
    sentence = refused("fit", one_stage, "--activation", "sigmoid", "--held-out", one_stage, "-o", affine)
    assert "to be of a softmax to keep the mean confidence" in sentence


def test_without_rows_the_shift_is_estimated_and_that_is_said(run, one_stage, tmp_path):
    bare = tmp_path / "bare.safetensors"
    assert run("collect", tmp_path / "train.npy", "--sample-rows", "0", "-o", bare).code == 0
    told = run("fit", bare, "--method", "logn", "-o", tmp_path / "a.safetensors", "--json").json
    assert "estimated from means and variances" in told["notes"][0]
    assert told["settings"]["margin_from"] == "moments"
