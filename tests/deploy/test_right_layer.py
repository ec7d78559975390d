"""The class layer is the one whose logits the model returns: found, compared in a forward pass, or refused."""

from __future__ import annotations

import dataclasses
import warnings
from collections import namedtuple

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

from logn.deploy.calibrate import calibrate
from logn.errors import InputError, LogNWarning
from logn.logits.layer import LogitLayer
from logn.logits.locate import locate_logits
from logn.statistics.record import record

CLASSES = 5


class HeadFirst(nn.Module):
    """The head is registered before the body."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(32, CLASSES)
        self.conv = nn.Conv2d(3, 8, 3)
        self.proj = nn.Linear(8, 32)

    def forward(self, images):
        features = functional.relu(self.conv(images)).mean(dim=(2, 3))
        return self.classifier(functional.relu(self.proj(features)))


class AsksForShapes(HeadFirst):
    """The same, whose forward pass cannot be followed without images."""

    def forward(self, images):
        if images.shape[0] == 0:
            return images.new_zeros(0, CLASSES)
        return super().forward(images)


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, images):
        return functional.relu(self.conv(images)).mean(dim=(2, 3))


class Ensemble(nn.Module):
    """The mean of two networks."""

    def __init__(self):
        super().__init__()
        self.first, self.second = HeadFirst(), HeadFirst()

    def forward(self, images):
        return (self.first(images) + self.second(images)) / 2


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc, self.adapter = Body(), nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, images):
        features = self.body(images)
        return self.fc(features) + self.adapter(features)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc, self.gate = Body(), nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, images):
        features = self.body(images)
        return self.fc(features) * torch.sigmoid(self.gate(features))


class SummedOutside(nn.Module):
    """The sum of two layers, through a module that a map can be attached to."""

    def __init__(self):
        super().__init__()
        self.body, self.fc, self.adapter = Body(), nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)
        self.logits = nn.Identity()

    def forward(self, images):
        features = self.body(images)
        return self.logits(self.fc(features) + self.adapter(features))


class Ending(nn.Module):
    """A classifier that does something to its logits before it returns them."""

    def __init__(self, ending):
        super().__init__()
        self.body, self.fc, self.ending = Body(), nn.Linear(8, CLASSES), ending

    def forward(self, images):
        return self.ending(self.fc(self.body(images)))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, logits):
        return self.function(logits)


def make(build, *arguments):
    """A model in evaluation mode with logits that differ clearly between images and classes."""
    torch.manual_seed(0)
    model = build(*arguments).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=2.0 / module.in_features**0.5)
                module.bias.normal_()
    return model


def pictures(count=12, seed=1):
    return torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed)) * 4


# Neither can be followed back to one layer.
MIXES = [Ensemble, Adapter, Gated]


def run_in(model):
    """What `record` says of a layer while the model runs, or its error."""

    def record_layer(layer, **options):
        with record(model, layer, **options) as moments, torch.inference_mode():
            model(pictures())
        return moments

    return record_layer


def scores_above_half(scores):
    return float((scores > 0.5).sum(dim=1).double().mean())


# Which layer


@pytest.mark.parametrize("build", [HeadFirst, AsksForShapes])
def test_a_head_registered_before_the_body_is_corrected(build):
    model = make(build)
    affine = calibrate(model, [pictures(8, seed) for seed in range(6)], method="logn", margin=0.0, fold=True).affine
    assert affine.num_columns == CLASSES
    with torch.inference_mode():
        mapped = torch.cat([model(pictures(8, seed)) for seed in range(6)])
    np.testing.assert_allclose(mapped.mean(dim=0), 0.0, atol=1e-4)


@pytest.mark.parametrize("build", [HeadFirst, AsksForShapes])
def test_a_run_on_random_images_tells_the_layer(build):
    model = make(build).train()
    before = [tensor.clone() for tensor in model.state_dict().values()]
    assert locate_logits(model).path == "classifier"
    assert all(torch.equal(old, new) for old, new in zip(before, model.state_dict().values(), strict=True))
    assert all(module.training and not module._forward_hooks for module in model.modules())


def test_a_model_that_takes_no_random_images_asks_for_some_and_is_found_with_them():
    class TakesPairs(HeadFirst):
        def forward(self, pair):
            return super().forward(pair["left"] - pair["right"])

    model = make(TakesPairs)
    with pytest.raises(InputError, match=r"^Expected `inputs`, a batch .* logn\.locate_logits\(model, inputs=images\)"):
        locate_logits(model)
    pair = {"left": pictures(), "right": pictures(seed=2)}
    assert locate_logits(model, inputs={"images": pair}).path == "classifier"
    assert locate_logits(make(HeadFirst), inputs=(pictures(), torch.zeros(12))).path == "classifier"
    with pytest.raises(InputError, match="with 9 columns"):
        locate_logits(make(HeadFirst), num_columns=9, inputs=pictures())


@pytest.mark.parametrize("build", MIXES)
def test_a_mix_of_layers_is_refused_everywhere(build):
    model = make(build)
    with pytest.raises(InputError, match=r"something else \(a sum of several"):
        locate_logits(model)
    with pytest.raises(InputError, match=r"something else \(a sum of several"):
        locate_logits(model, inputs=pictures())
    with pytest.raises(InputError, match=r"something else \(a sum of several"):
        calibrate(model, [pictures()])
    part = "first.classifier" if build is Ensemble else "fc"
    with pytest.raises(InputError, match=rf"to return the logits of `{part}`.* is not made of them alone; name the"):
        run_in(model)(LogitLayer(part))
    with pytest.raises(InputError, match="is not made of them alone"):
        calibrate(model, [pictures()], layer=LogitLayer(part))
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_lraspp_adds_two_layers_and_is_refused():
    torch.manual_seed(0)
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None, num_classes=4).eval()
    with pytest.raises(InputError, match="something else"):
        calibrate(model, [torch.rand(2, 3, 64, 64)])


def test_two_layers_that_are_averaged_share_a_map_when_both_are_named():
    model = make(Ensemble)
    both = LogitLayer(("first.classifier", "second.classifier"))
    affine = calibrate(model, [pictures(40)], layer=both, method="logn", margin=0.0).affine
    assert affine.num_columns == CLASSES
    with torch.inference_mode():
        np.testing.assert_allclose(model(pictures(40)).mean(dim=0), 0.0, atol=1e-4)


def test_the_way_out_of_a_sum_is_a_module_of_its_own():
    model = make(SummedOutside)
    layer = LogitLayer("logits", num_columns=CLASSES)
    calibrate(model, [pictures(40)], layer=layer, method="logn", margin=0.0)
    with torch.inference_mode():
        np.testing.assert_allclose(model(pictures(40)).mean(dim=0), 0.0, atol=1e-4)


def test_a_named_layer_of_another_width_is_refused_and_can_be_insisted_on():
    model = make(HeadFirst)
    with pytest.raises(
        InputError, match=r"logits of `proj`.*\(12, 5\).*check_output=False.*are: classifier \(Linear, 5\)"
    ):
        run_in(model)(LogitLayer("proj"))
    assert run_in(model)(LogitLayer("proj"), check_output=False).count.tolist() == [12.0] * 32
    affine = calibrate(model, [pictures()], layer=LogitLayer("proj", activation="softmax"), check_output=False).affine
    assert affine.num_columns == 32


@pytest.mark.parametrize(
    "ending",
    [
        lambda logits: logits.float(),
        lambda logits: {"features": torch.zeros(7), "logits": logits},
        lambda logits: (logits, torch.zeros(2, 3)),
        lambda logits: [{"scores": logits[0]}],
        lambda logits: logits.argmax(dim=1),
    ],
    ids=["cast", "by name", "first of two", "list of mappings", "labels"],
)
def test_what_treats_all_classes_alike_or_cannot_be_compared_is_taken(ending):
    moments = run_in(make(Ending, Function(ending)))(LogitLayer("fc"))
    assert moments.count.tolist() == [12.0] * CLASSES
    assert moments.metadata.activation is None


@pytest.mark.parametrize(
    "ending",
    [
        lambda logits: logits + torch.linspace(0.0, 3.0, CLASSES),
        lambda logits: logits * torch.linspace(1.0, 3.0, CLASSES),
        lambda logits: logits / 4.0,
        lambda logits: 2.0 * logits + 1.0,
        lambda logits: (logits / 2).softmax(dim=1),
        lambda logits: torch.sigmoid(logits / 2),
        lambda logits: torch.sigmoid(logits - 1),
        lambda logits: -logits,
        lambda logits: logits.flip(1),
        lambda logits: logits.square(),
        lambda logits: logits.sigmoid() * torch.linspace(0.1, 1.0, 12)[:, None],
    ],
    ids=[
        "a bias per class",
        "a scale per class",
        "divided",
        "scale and shift",
        "softmax of divided",
        "sigmoid of divided",
        "sigmoid with a prior",
        "negated",
        "permuted",
        "squared",
        "objectness",
    ],
)
def test_what_does_not_is_refused_and_can_be_insisted_on(ending):
    model = make(Ending, Function(ending))
    for refused in (
        lambda: run_in(model)(LogitLayer("fc")),
        lambda: calibrate(model, [pictures()], layer=LogitLayer("fc")),
    ):
        with pytest.raises(InputError, match=r"to return the logits of `fc`.* not made of them alone.*a temperature"):
            refused()
    with pytest.raises(InputError, match="something else"):
        locate_logits(model, inputs=pictures())
    assert run_in(model)(LogitLayer("fc"), check_output=False).count.tolist() == [12.0] * CLASSES


def test_the_way_out_of_a_temperature_is_a_module_behind_it():
    model = make(Ending, nn.Sequential(Function(lambda logits: logits / 2), nn.Identity(), nn.Softmax(dim=1)))
    layer = LogitLayer("ending.1", num_columns=CLASSES)
    with torch.inference_mode():
        scores = model(pictures(200)).double()
        affine = calibrate(model, [pictures(200)], layer=layer).affine
        corrected = model(pictures(200)).double()
    expected = (scores.log() * torch.tensor(affine.scale) + torch.tensor(affine.shift)).softmax(dim=1)
    torch.testing.assert_close(corrected, expected, atol=1e-5, rtol=0)
    assert layer.name == "ending.1"


def test_logits_that_are_rectified_afterwards_are_taken_with_a_warning():
    model = make(Ending, nn.ReLU())
    with pytest.warns(LogNWarning, match="ReLU follows `fc`"):
        run_in(model)(LogitLayer("fc"))


# Several tensors are returned


Named = namedtuple("Named", ["embedding", "logits"])


@dataclasses.dataclass
class Record:
    embedding: torch.Tensor
    cls_scores: torch.Tensor


class TwoHeads(nn.Module):
    """Returns two layers of one width, in the way that `pack` says."""

    def __init__(self, pack, width=CLASSES):
        super().__init__()
        self.body, self.other, self.fc = Body(), nn.Linear(8, width), nn.Linear(8, CLASSES)
        self.pack = pack

    def forward(self, images):
        features = self.body(images)
        return self.pack(self.other(features), self.fc(features))


@pytest.mark.parametrize(
    "pack",
    [
        Named,
        Record,
        lambda other, logits: {"boxes": other, "logits": logits},
        lambda other, logits: {"features": other, "pred_logits": logits},
        lambda other, logits: {"offsets": other, "cls_logits": logits},
        lambda other, logits: {"offsets": other, "scores": logits.sigmoid()},
        lambda other, logits: (other[:, :1], {"a": logits})[1],
    ],
    ids=["named tuple", "dataclass", "logits", "pred_logits", "cls", "scores", "alone"],
)
def test_names_tell_the_class_scores_wherever_they_come(pack):
    model = make(TwoHeads, pack)
    assert locate_logits(model).path == "fc"
    assert locate_logits(model, inputs=pictures()).path == "fc"
    assert calibrate(model, [pictures()]).layer.path == "fc"


@pytest.mark.parametrize(
    "pack",
    [
        lambda other, logits: (other, logits),
        lambda other, logits: [logits, other.relu()],
        lambda other, logits: {"fine": other, "coarse": logits},
        lambda other, logits: {"logits": (other, logits)},
    ],
    ids=["two first", "two last", "fine and coarse", "one name"],
)
def test_several_tensors_that_fit_are_refused_with_their_layers(pack):
    model, both = (
        make(TwoHeads, pack),
        r"several tensors that fit, of the layers (other|fc) \(5\), (other|fc) \(",
    )
    for refused in (
        lambda: locate_logits(model),
        lambda: locate_logits(model, inputs=pictures()),
        lambda: calibrate(model, [pictures()]),
    ):
        with pytest.raises(InputError, match=rf"{both}.*name the one of the classes: layer=logn\.LogitLayer\("):
            refused()
    assert calibrate(model, [pictures()], layer=LogitLayer("fc", activation="softmax")).layer.path == "fc"


def test_the_number_of_columns_tells_one_of_several():
    model = make(TwoHeads, lambda other, logits: (other, logits), 7)
    for options in ({}, {"num_columns": 6}):
        with pytest.raises(InputError):
            locate_logits(model, inputs=pictures(), **options)
    assert locate_logits(model, num_columns=CLASSES, inputs=pictures()).path == "fc"
    single = make(TwoHeads, lambda other, logits: (other, logits), 1)
    assert locate_logits(single, inputs=pictures()).path == "fc"


# Hooks behind the layer


HOOKS = {
    "adds": lambda module, inputs, output: output + torch.linspace(0.0, 3.0, CLASSES),
    "in place": lambda module, inputs, output: output.mul_(2.0),
    "narrower": lambda module, inputs, output: output[:, 1:],
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
@pytest.mark.parametrize("options", [{}, {"check_output": False}], ids=["checked", "unchecked"])
def test_a_hook_that_changes_the_logits_is_refused(hook, options):
    model = make(Ending, nn.Softmax(dim=1))
    handle = model.fc.register_forward_hook(hook)
    for refused in (
        lambda: run_in(model)(LogitLayer("fc"), **options),
        lambda: calibrate(model, [pictures()], layer=LogitLayer("fc"), **options),
    ):
        with pytest.raises(InputError, match="A forward hook on `fc` changes its output"):
            refused()
    assert list(model.fc._forward_hooks) == [handle.id]


def test_a_hook_that_only_looks_is_taken():
    model, seen = make(Ending, nn.Softmax(dim=1)), []
    model.fc.register_forward_hook(lambda module, inputs, output: seen.append(output))
    assert run_in(model)(LogitLayer("fc")).count.tolist() == [12.0] * CLASSES
    assert len(seen) == 1


# Which activation


@pytest.mark.parametrize(
    ("ending", "activation"),
    [
        (torch.sigmoid, "sigmoid"),
        (lambda logits: logits.softmax(dim=1), "softmax"),
        (lambda logits: logits.log_softmax(dim=1), "softmax"),
    ],
    ids=["sigmoid", "softmax", "log softmax"],
)
def test_the_forward_pass_shows_the_activation(ending, activation):
    model = make(Ending, Function(ending))
    assert run_in(model)(LogitLayer("fc")).metadata.activation == activation
    assert locate_logits(model, inputs=pictures()).activation == activation
    other = {"sigmoid": "softmax", "softmax": "sigmoid"}[activation]
    with pytest.raises(InputError, match=rf"what the model applies to `fc`, '{activation}', but got '{other}'"):
        run_in(model)(LogitLayer("fc", activation=other))
    assert run_in(model)(LogitLayer("fc", activation=activation)).metadata.activation == activation


def test_what_the_forward_pass_does_not_show_is_not_known_or_as_stated():
    model = make(Ending, nn.Identity())
    assert locate_logits(model, inputs=pictures()).activation is None
    assert run_in(model)(LogitLayer("fc")).metadata.activation is None
    assert run_in(model)(LogitLayer("fc", activation="sigmoid")).metadata.activation == "sigmoid"


def test_a_multi_label_model_whose_forward_ends_in_a_sigmoid_keeps_its_number_of_labels():
    model = make(Ending, nn.Sigmoid())
    with torch.no_grad():
        model.fc.bias.sub_(4.0)
    images = [pictures(40, seed) for seed in range(3)]
    with torch.inference_mode():
        before = torch.cat([model(batch) for batch in images])
        calibrate(model, images)
        after = torch.cat([model(batch) for batch in images])
    kept = before.flatten().sort(descending=True).values[20]  # as few exceed 0.25, the 20 highest keep their number
    assert abs(int((after > kept).sum()) - 20) <= 2
    assert abs(scores_above_half(after) - scores_above_half(before)) < 1.0


# What is compared, and when


def test_training_mode_is_not_compared():
    model = make(Adapter).train()
    with pytest.warns(LogNWarning, match="in training mode"):
        moments = run_in(model)(LogitLayer("fc"))
    assert moments.count.tolist() == [12.0] * CLASSES


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("ending", [nn.Identity(), nn.Softmax(dim=1), nn.Sigmoid()], ids=lambda ending: str(ending))
def test_half_precision_and_autocast_are_not_refused(dtype, ending):
    model = make(Ending, ending)
    with torch.autocast("cpu", dtype=dtype):
        moments = run_in(model)(LogitLayer("fc"))
    model.to(dtype)
    with record(model, LogitLayer("fc")) as half, torch.inference_mode():
        model(pictures().to(dtype))
    expected = {"Identity": None, "Softmax": "softmax", "Sigmoid": "sigmoid"}[type(ending).__name__]
    assert (moments.metadata.activation, half.metadata.activation) == (expected, expected)


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")], ids=["data parallel", "compiled"]
)
def test_wrapped_models_are_compared_too(wrap):
    good, bad = wrap(make(Ending, nn.Sigmoid())), wrap(make(Adapter))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LogNWarning)  # the wrapper is in training mode, the model is not
        assert run_in(good)(LogitLayer("fc")).metadata.activation == "sigmoid"
    with pytest.raises(InputError, match="is not made of them alone"):
        run_in(bad)(LogitLayer("fc"))


def test_the_first_batch_counts_once_and_random_numbers_stay():
    model, drawn = make(AsksForShapes), []

    def loader():
        for seed in range(3):
            drawn.append(seed)
            yield pictures(8, seed)

    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    calibration = calibrate(model, loader(), method="logn")
    affine, handle = calibration.affine, calibration.handle
    assert torch.equal(torch.random.get_rng_state(), state)
    handle.remove()
    assert drawn == [0, 1, 2]
    expected = calibrate(
        model, [pictures(8, seed) for seed in range(3)], layer=LogitLayer("classifier"), method="logn"
    ).affine
    np.testing.assert_array_equal(affine.scale, expected.scale)
    with pytest.raises(InputError, match="`loader` to give at least one batch"):
        calibrate(model, [])


def test_a_pass_that_cannot_tell_leaves_it_to_the_next():
    model = make(Ending, nn.Sigmoid())
    with record(model, LogitLayer("fc")) as moments, torch.inference_mode():
        model(pictures(0))
        assert moments.metadata.activation is None
        model(pictures(3))
    assert moments.metadata.activation == "sigmoid"


# The axis of the classes, and a single logit


def test_the_axis_of_a_convolution_is_read_from_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 1))
    images = torch.rand(4, 3, 5, 6)  # as many columns of pixels as classes
    with torch.inference_mode():
        rows = model(images).permute(0, 2, 3, 1).reshape(-1, 6).double()
    moments = []
    for layer in (LogitLayer("0"), LogitLayer("0", class_axis=1)):
        with record(model.eval(), layer) as recorded, torch.inference_mode():
            model(images)
        moments.append(recorded.mean)
    np.testing.assert_allclose(moments, [rows.mean(dim=0)] * 2, atol=1e-6)
    calibrate(model, [images], layer=LogitLayer("0"), method="logn", margin=0.0)
    with torch.inference_mode():
        np.testing.assert_allclose(model(images).mean(dim=(0, 2, 3)), 0.0, atol=1e-5)


def test_an_axis_that_nothing_tells_is_asked_for():
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Identity()).eval()
    with (
        pytest.raises(InputError, match=r"`class_axis` to be given, since `1` is no Linear.*\(4, 6, 5, 6\)"),
        record(model, LogitLayer("1", num_columns=6)),
        torch.inference_mode(),
    ):
        model(torch.rand(4, 3, 5, 6))
    mixed = nn.ModuleList([nn.Linear(4, 6), nn.Conv2d(4, 6, 1)])
    with pytest.raises(InputError, match="differ in it"), record(mixed, LogitLayer(("0", "1"))):
        pass


def test_a_single_logit_is_refused():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    message = "`2` to give a logit for each of at least 2 classes, but got a single logit"
    for refused in (
        lambda: locate_logits(model),
        lambda: locate_logits(model, inputs=torch.rand(5, 4)),
        lambda: calibrate(model, [torch.rand(5, 4)]),
        lambda: calibrate(model, [torch.rand(5, 4)], layer=LogitLayer("2")),
        lambda: run_in(model)(LogitLayer("2")),
    ):
        with pytest.raises(InputError, match=message):
            refused()
