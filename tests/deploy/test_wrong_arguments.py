"""What people pass by mistake is told in one sentence, before anything runs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import logn


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)).eval()


def test_the_path_of_a_layer_is_enough(model):
    affine, images = logn.ClassAffine(np.full(6, 2.0), np.arange(6.0)), torch.rand(8, 4)
    with logn.record(model, "2") as moments, torch.inference_mode():
        plain = model(images)
    assert moments.metadata.layer == "2"
    with logn.attach(model, "2", affine), torch.inference_mode():
        torch.testing.assert_close(model(images), affine(plain))
    logn.fold(model, "2", affine)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), affine(plain))
    for layer, message in (("3", "no module `3`"), (model[2], r"a logn\.LogitLayer or the path .*, but got Linear")):
        with pytest.raises(logn.InputError, match=message):
            logn.calibrate(model, [images], layer=layer)


def test_the_path_of_a_known_layer_brings_what_its_framework_says(model):
    model.logit_layer = logn.LogitLayer("2", background=0, activation="softmax")
    with logn.record(model, "2") as moments, torch.inference_mode():
        model(torch.rand(8, 4))
    assert (moments.metadata.background, moments.metadata.activation) == (0, "softmax")


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_torchscript_is_refused(model):
    scripted = torch.jit.script(model)
    for put in (logn.locate_logits, lambda model: logn.calibrate(model, [torch.rand(8, 4)], layer="2")):
        with pytest.raises(logn.InputError, match="is TorchScript"):
            put(scripted)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (torch.rand(8, 4), r"is one tensor, .*; put it in a list: \[images\]"),
        ("train/", r"is the path `train/`, .*; for a folder of images use logn.correct, or pass a torch DataLoader\."),
        (Path("train"), "is the path `train`"),
        (TensorDataset(torch.rand(8, 4)), r"is a dataset \(TensorDataset\), not batches of images; put it in"),
        (None, "but got NoneType"),
        ([], "gave no batch"),
        ([torch.rand(1, 4)], "at least two rows of logits, but got 1"),
    ],
)
def test_what_gives_no_batches_is_no_loader(model, loader, message):
    with pytest.raises(logn.InputError, match=message):
        logn.calibrate(model, loader)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methd": "logn"}, "options of `recommended` to be among .*, but got `methd`"),
        ({"method": "lgn"}, "`method` to be one of none, recommended, logn"),
        ({"method": "logn", "margin": "mni"}, r"Expected `margin` to be a number or one of .*, but got 'mni'"),
        ({"method": "logn", "margin": "background"}, "this head has none"),
        ({"strength": "half"}, "Expected `strength` to be a finite number, but got 'half'"),
        ({"strength": 2.0}, "Expected `strength` to be from 0 to 1, but got 2.0"),
        ({"strength": float("nan")}, "Expected `strength` to be a finite number, but got nan"),
        ({"method": "logn", "std_power": None}, "Expected `std_power` to be a finite number"),
        ({"activation": "softmx"}, "Expected `activation` to be"),
        ({"target": [0.5, 0.5]}, r"Expected `target` to be one share per foreground class \(6\)"),
    ],
)
def test_a_mistyped_option_is_refused_before_the_pass(model, wrong, message):
    batches = iter([torch.rand(8, 4)] * 2)
    with pytest.raises(logn.InputError, match=message):
        logn.calibrate(model, batches, layer=logn.LogitLayer("2"), **wrong)
    assert len(list(batches)) == 2


@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")
@pytest.mark.parametrize(
    ("background", "activation"), [(None, None), (None, "softmax"), (None, "sigmoid"), (0, "softmax"), (-1, None)]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strength": 0.0},
        {"threshold": 0.4},
        {"method": "logn"},
        {"method": "logn", "margin": -3.0, "use_std": False},
        {"method": "logn", "std_power": 2.0, "eps": 1e-3},
        {"method": "p2p:strength=0.5"},
    ],
)
def test_what_can_be_fitted_is_not_refused_before(model, background, activation, options):
    layer = logn.LogitLayer("2", background=background, activation=activation)
    affine = logn.calibrate(model, [torch.rand(32, 4)] * 2, layer=layer, **options).affine
    assert affine.num_columns == 6


@pytest.mark.parametrize("wrong", [None, "stats.safetensors", np.ones((3, 6))])
def test_only_statistics_are_normalised_by(wrong):
    with pytest.raises(logn.InputError, match=f"to be a logn.ClassMoments, but got {type(wrong).__name__}"):
        logn.logit_normalization(wrong)


@pytest.mark.parametrize("wrong", ["counts.csv", {"cat": 3}, ["many", "few"]])
def test_counts_are_numbers(wrong):
    for method in (logn.methods.norcal, logn.methods.logit_adjustment):
        with pytest.raises(logn.InputError, match=f"one number per foreground class, but got {type(wrong).__name__}"):
            method(wrong)
