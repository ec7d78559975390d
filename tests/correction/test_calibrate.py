"""calibrate: any loader, one call, and the model otherwise as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import logn
from logn.correction.calibrate import calibrate, run_on_batch
from logn.errors import InputError
from logn.models.layer import LogitLayer


def classifier():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 4))
    with torch.no_grad():
        model[4].weight.mul_(torch.tensor([[4.0], [2.0], [1.0], [0.5]]))
        model[4].bias.copy_(torch.tensor([3.0, 1.0, -1.0, -3.0]))
    return model


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(32, 6, generator=generator) for _ in range(4)]


def logits(model):
    with torch.inference_mode():
        return torch.cat([model(batch) for batch in batches()]).double().numpy()


def test_the_paper_for_a_classifier_makes_every_class_standard():
    model = classifier()
    calibrate(model, batches(), method="logn")
    mapped = logits(model.eval())
    np.testing.assert_allclose(mapped.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(mapped.std(axis=0, ddof=1), 1.0, atol=2e-3)


def test_folding_gives_the_same_model():
    attached, folded = classifier().eval(), classifier().eval()
    calibration, same = calibrate(attached, batches()), calibrate(folded, batches(), fold=True)
    assert same.handle is None
    assert same.affine == calibration.affine
    np.testing.assert_allclose(logits(folded), logits(attached), atol=1e-4)
    calibration.handle.remove()
    np.testing.assert_allclose(calibration.affine(logits(attached)), logits(folded), atol=1e-4)


def test_modes_weights_and_buffers_stay():
    model = classifier().train()
    model[1].eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    handle = calibrate(model, batches()).handle
    handle.remove()
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_modes_and_hooks_are_restored_after_an_error():
    model = classifier().train()

    def failing():
        yield torch.rand(2, 6)
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        calibrate(model, failing())
    assert model.training
    assert all(not module._forward_hooks for module in model.modules())


class Seen(nn.Module):
    """Notes what it is called with."""

    def forward(self, *arguments, **named):
        return arguments, named


IMAGES = torch.rand(2, 3, 4, 5)
RAGGED = [torch.rand(3, 4, 5), torch.rand(3, 6, 7)]
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (IMAGES, IMAGES),
        ([IMAGES, LABELS], IMAGES),
        ((IMAGES, LABELS, ["a", "b"]), IMAGES),
        (RAGGED, RAGGED),
        ((tuple(RAGGED), ({"boxes": LABELS}, {"boxes": LABELS})), RAGGED),
        ([RAGGED, [{}, {}]], RAGGED),
        ({"image": IMAGES, "label": LABELS}, IMAGES),
        ({"images": RAGGED, "targets": []}, RAGGED),
    ],
)
def test_batches_are_unpacked(batch, expected):
    (argument,), named = run_on_batch(Seen(), batch)
    assert named == {}
    if isinstance(expected, list):
        assert all(one is other for one, other in zip(argument, expected, strict=True))
    else:
        assert argument is expected


def test_hugging_face_batches_go_by_name_without_their_labels():
    arguments, named = run_on_batch(Seen(), {"pixel_values": IMAGES, "pixel_mask": LABELS, "labels": LABELS})
    assert arguments == ()
    assert set(named) == {"pixel_values", "pixel_mask"}


@pytest.mark.parametrize("batch", ["text", ["text"], [], 3, {"audio": IMAGES}, {}, ({"a": 1}, 2)])
def test_other_batches_are_refused(batch):
    with pytest.raises(InputError, match=r"^`loader` gives "):
        run_on_batch(Seen(), batch)


def test_labels_before_images_are_named():
    with pytest.raises(InputError, match=r"gives labels first .*pass forward=lambda model, batch: model"):
        run_on_batch(Seen(), (LABELS, IMAGES))
    tokens = torch.tensor([[3, 1, 2], [4, 5, 6]])  # what a text model takes
    assert run_on_batch(Seen(), (tokens, IMAGES))[0][0] is tokens


@pytest.mark.filterwarnings("ignore:Softmax or sigmoid")
def test_an_unknown_activation_is_a_softmax_on_every_route():
    """Found by itself, named by its path, by hand, or a convolution whose locations are averaged."""
    torch.manual_seed(0)
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 6))
    pooled = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    routes = [(linear, None), (linear, "1"), (linear, LogitLayer("1", background=None)), (pooled, None), (pooled, "0")]
    for model, layer in routes:
        calibration = calibrate(model, [torch.rand(300, 3, 2, 2)], layer=layer, force=True)
        calibration.handle.remove()
        assert calibration.affine.head.activation == "softmax"


def test_a_forward_function_takes_any_batch():
    loader = [{"a": batch} for batch in batches()]
    result = calibrate(classifier(), loader, forward=lambda model, batch: model(batch["a"]))
    assert result.affine == calibrate(classifier(), batches()).affine


def test_batches_go_to_the_device_with_their_containers():
    seen, loader = [], [(batch, {"more": [LABELS, "text"]}) for batch in batches()]
    calibrate(classifier(), loader, device="cpu", forward=lambda model, batch: (seen.append(batch), model(batch[0])))
    assert isinstance(seen[0], tuple)
    assert seen[0][1]["more"][1] == "text"


def test_not_a_number_is_refused():
    broken = [*batches(), torch.full((1, 6), torch.nan)]
    with pytest.raises(InputError, match=r"to be finite, but got nan for class 0"):
        calibrate(classifier(), broken)


def test_unused_columns_are_left_alone():
    affine = calibrate(
        classifier(), batches(), layer=LogitLayer("4", activation="sigmoid", unused=(1,)), method="logn", margin=0.0
    ).affine
    assert (affine.scale[1], affine.shift[1]) == (1.0, 0.0)
    assert (affine.scale[[0, 2, 3]] != 1.0).all()


def test_a_model_that_has_a_map_is_refused_before_the_pass():
    model = classifier()
    calibrate(model, batches())
    seen = iter(batches())
    with pytest.raises(InputError, match="has a map attached already"):
        calibrate(model, seen)
    assert len(list(seen)) == len(batches()) - 1


class TwoStages(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(6, 4), nn.Linear(6, 4)])

    def forward(self, features):
        return torch.stack([stage(features) for stage in self.stages])


def test_stages_get_a_map_each():
    torch.manual_seed(0)
    model = TwoStages()
    layer = LogitLayer(("stages.0", "stages.1"), activation="softmax", stages=True)
    first, second = calibrate(model, batches(), layer=layer, method="logn").affine
    assert first != second
    with torch.inference_mode():
        mapped = torch.cat([model(batch) for batch in batches()], dim=1)
    np.testing.assert_allclose(mapped.mean(dim=1), 0.0, atol=1e-5)


def test_the_result_has_names_and_one_line():
    result = calibrate(classifier(), batches())
    assert result.layer.path == "4"
    assert result.moments.count.tolist() == [128] * 4
    assert result.affine == logn.recommend(result.moments).fit(result.moments)
    assert repr(result) == f"Calibration({result.affine.method} at `4`: 4 columns, 128 rows, attached)"
    stages = LogitLayer(("stages.0", "stages.1"), activation="softmax", stages=True)
    staged = calibrate(TwoStages(), batches(), layer=stages, fold=True)
    assert staged.handle is None
    assert [logn.recommend(moments).fit(moments) for moments in staged.moments] == list(staged.affine)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, lambda moments: logn.recommend(moments).fit(moments)),
        ({"strength": 1.0}, lambda moments: logn.recommend(moments).fit(moments, strength=1.0)),
        ({"method": "logn"}, logn.logit_normalization),
        ({"method": "logn", "margin": "max"}, lambda moments: logn.logit_normalization(moments, margin="max")),
        ({"method": "logn:use_std=false"}, lambda moments: logn.logit_normalization(moments, use_std=False)),
        ({"method": "p2p"}, logn.prior2posterior),
    ],
)
def test_methods_and_their_options(options, expected):
    model, layer = detector()
    result = calibrate(model, batches(), layer=layer, **options)
    assert result.affine == expected(result.moments)


def test_progress_goes_to_stderr(capsys):
    calibrate(classifier(), batches(), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Recording logits" in captured.err


def detector():
    """A head with a background column first, whose classes start far below it."""
    model = classifier().eval()
    with torch.no_grad():
        model[4].bias.copy_(torch.tensor([4.0, 1.0, -1.0, -3.0]))
    return model, LogitLayer("4", background=0, activation="softmax")


def test_the_default_and_classifiers_never_warn(recwarn):
    model, layer = detector()
    calibrate(model, batches(), layer=layer)
    calibrate(classifier(), batches(), method="logn")
    assert not recwarn.list


# What people pass by mistake, and the path of a layer


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)).eval()


def test_the_path_of_a_layer_is_enough(model):
    affine, images = logn.ClassAffine(np.full(6, 2.0), np.arange(6.0)), torch.rand(8, 4)
    with logn.record(model, "2") as moments, torch.inference_mode():
        plain = model(images)
    assert moments.head.layer == "2"
    with logn.attach(model, "2", affine), torch.inference_mode():
        torch.testing.assert_close(model(images), affine(plain))
    logn.fold(model, "2", affine)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), affine(plain))
    for layer, message in (("3", "no module `3`"), (model[2], r"a logn\.LogitLayer or the path .*, but got Linear")):
        with pytest.raises(InputError, match=message):
            calibrate(model, [images], layer=layer)


def test_the_path_of_a_known_layer_brings_what_its_framework_says(model):
    model.logit_layer = LogitLayer("2", background=0, activation="softmax")
    with logn.record(model, "2") as moments, torch.inference_mode():
        model(torch.rand(8, 4))
    assert (moments.head.background, moments.head.activation) == (0, "softmax")


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_torchscript_is_refused(model):
    scripted = torch.jit.script(model)
    for put in (logn.locate_logits, lambda model: calibrate(model, [torch.rand(8, 4)], layer="2")):
        with pytest.raises(InputError, match="is TorchScript"):
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
    with pytest.raises(InputError, match=message):
        calibrate(model, loader)


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
    with pytest.raises(InputError, match=message):
        calibrate(model, batches, layer=LogitLayer("2"), **wrong)
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
    layer = LogitLayer("2", background=background, activation=activation)
    affine = calibrate(model, [torch.rand(32, 4)] * 2, layer=layer, **options).affine
    assert affine.num_columns == 6


@pytest.mark.parametrize("wrong", [None, "stats.safetensors", np.ones((3, 6))])
def test_only_statistics_are_normalised_by(wrong):
    with pytest.raises(InputError, match=f"to be a logn.ClassMoments, but got {type(wrong).__name__}"):
        logn.logit_normalization(wrong)


@pytest.mark.parametrize("wrong", ["counts.csv", {"cat": 3}, ["many", "few"]])
@pytest.mark.parametrize("method", [logn.methods.norcal, logn.methods.logit_adjustment])
def test_counts_are_numbers(method, wrong):
    with pytest.raises(InputError, match=f"one number per foreground class, but got {type(wrong).__name__}"):
        method(wrong)
