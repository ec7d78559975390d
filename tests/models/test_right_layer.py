"""The class layer is the one whose logits the model returns: found, compared in a forward pass, or refused."""

from __future__ import annotations

import dataclasses
import operator
import warnings
from collections import namedtuple

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

from logn.correction.calibrate import calibrate
from logn.errors import InputError, LogNWarning
from logn.models.layer import LogitLayer
from logn.models.locate import locate_logits
from logn.models.torch.record import record

CLASSES = 5
FC = LogitLayer("fc")


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


class Heads(nn.Module):
    """Returns what `ending` makes of the logits of `other`, if it has a width, and of `fc`."""

    def __init__(self, ending, width=None):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, CLASSES)
        self.other = None if width is None else nn.Linear(8, width)
        self.ending = ending

    def forward(self, images):
        features = functional.relu(self.conv(images)).mean(dim=(2, 3))
        return self.ending(*(layer(features) for layer in (self.other, self.fc) if layer is not None))


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


def recorded(model, layer=FC, **options):
    with record(model, layer, **options) as moments, torch.inference_mode():
        model(pictures())
    return moments


def assert_refused(message, *calls):
    for call in calls:
        with pytest.raises(InputError, match=message):
            call()


def assert_centred(model, images):
    with torch.inference_mode():
        mapped = torch.cat([model(batch) for batch in images])
    np.testing.assert_allclose(mapped.mean(dim=0), 0.0, atol=1e-4)


# Which layer


def test_a_head_registered_before_the_body_is_corrected():
    model, images = make(HeadFirst), [pictures(8, seed) for seed in range(6)]
    affine = calibrate(model, images, method="logn", margin=0.0, fold=True).affine
    assert affine.num_columns == CLASSES
    assert_centred(model, images)


def test_a_run_on_random_images_tells_the_layer():
    model = make(HeadFirst).train()
    before = [tensor.clone() for tensor in model.state_dict().values()]
    assert locate_logits(model).path == "classifier"
    assert all(torch.equal(old, new) for old, new in zip(before, model.state_dict().values(), strict=True))
    assert all(module.training and not module._forward_hooks for module in model.modules())


def test_a_model_that_takes_no_random_images_asks_for_some_and_is_found_with_them():
    class TakesPairs(HeadFirst):
        def forward(self, pair):
            return super().forward(pair["left"] - pair["right"])

    model, pair = make(TakesPairs), {"left": pictures(), "right": pictures(seed=2)}
    assert_refused("inputs=images", lambda: locate_logits(model))
    assert locate_logits(model, inputs={"images": pair}).path == "classifier"
    assert locate_logits(make(HeadFirst), inputs=(pictures(), torch.zeros(12))).path == "classifier"
    assert_refused("`HeadFirst`", lambda: locate_logits(make(HeadFirst), num_columns=9, inputs=pictures()))


@pytest.mark.parametrize("mix", [operator.add, lambda gate, logits: logits * torch.sigmoid(gate)], ids=["sum", "gated"])
def test_a_mix_of_layers_is_refused_everywhere(mix):
    model = make(Heads, mix, CLASSES)
    assert_refused(
        "`Heads`",
        lambda: locate_logits(model),
        lambda: locate_logits(model, inputs=pictures()),
        lambda: calibrate(model, [pictures()]),
    )
    assert_refused(
        "`fc`",
        lambda: recorded(model),
        lambda: calibrate(model, [pictures()], layer=FC),
    )
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_lraspp_adds_two_layers_and_is_refused():
    torch.manual_seed(0)
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None, num_classes=4).eval()
    assert_refused("`LRASPP`", lambda: calibrate(model, [torch.rand(2, 3, 64, 64)]))


def test_two_layers_that_are_averaged_share_a_map_when_both_are_named():
    model, both = make(Heads, lambda other, logits: (other + logits) / 2, CLASSES), LogitLayer(("other", "fc"))
    affine = calibrate(model, [pictures(40)], layer=both, method="logn", margin=0.0).affine
    assert affine.num_columns == CLASSES
    assert_centred(model, [pictures(40)])


def test_a_named_layer_of_another_width_is_refused_and_can_be_insisted_on():
    model, layer = make(HeadFirst), LogitLayer("proj", activation="softmax")
    assert_refused(r"`proj`.*check_output=False.*: classifier \(Linear, 5\)", lambda: recorded(model, layer))
    assert recorded(model, layer, check_output=False).count.tolist() == [12.0] * 32
    assert calibrate(model, [pictures()], layer=layer, check_output=False).affine.num_columns == 32


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
    moments = recorded(make(Heads, ending))
    assert (moments.count.tolist(), moments.head.activation) == ([12.0] * CLASSES, None)


CHANGES = {
    "a bias per class": lambda logits: logits + torch.linspace(0.0, 3.0, CLASSES),
    "a scale per class": lambda logits: logits * torch.linspace(1.0, 3.0, CLASSES),
    "divided": lambda logits: logits / 4.0,
    "scale and shift": lambda logits: 2.0 * logits + 1.0,
    "softmax of divided": lambda logits: (logits / 2).softmax(dim=1),
    "sigmoid of divided": lambda logits: torch.sigmoid(logits / 2),
    "sigmoid with a prior": lambda logits: torch.sigmoid(logits - 1),
    "negated": lambda logits: -logits,
    "permuted": lambda logits: logits.flip(1),
    "squared": lambda logits: logits.square(),
    "rectified": lambda logits: logits.relu(),
    "objectness": lambda logits: logits.sigmoid() * torch.linspace(0.1, 1.0, 12)[:, None],
}


@pytest.mark.parametrize("ending", CHANGES.values(), ids=CHANGES)
def test_what_does_not_is_refused_and_can_be_insisted_on(ending):
    model = make(Heads, ending)
    assert_refused("`fc`", lambda: recorded(model), lambda: calibrate(model, [pictures()], layer=FC))
    assert_refused("`Heads`", lambda: locate_logits(model, inputs=pictures()))
    assert recorded(model, check_output=False).count.tolist() == [12.0] * CLASSES


def test_the_way_out_of_a_temperature_is_a_module_behind_it():
    model = make(Heads, nn.Sequential(Function(lambda logits: logits / 2), nn.Identity(), nn.Softmax(dim=1)))
    layer = LogitLayer("ending.1", num_columns=CLASSES)
    with torch.inference_mode():
        scores = model(pictures(200)).double()
        affine = calibrate(model, [pictures(200)], layer=layer).affine
        corrected = model(pictures(200)).double()
    expected = (scores.log() * torch.tensor(affine.scale) + torch.tensor(affine.shift)).softmax(dim=1)
    torch.testing.assert_close(corrected, expected, atol=1e-5, rtol=0)


# Several tensors are returned


Named = namedtuple("Named", ["embedding", "logits"])


@dataclasses.dataclass
class Record:
    embedding: torch.Tensor
    cls_scores: torch.Tensor


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
    model = make(Heads, pack, CLASSES)
    assert locate_logits(model).path == "fc"
    assert locate_logits(model, inputs=pictures()).path == "fc"
    assert calibrate(model, [pictures()]).layer.path == "fc"


@pytest.mark.parametrize(
    "pack",
    [
        lambda other, logits: (other, logits),
        lambda other, logits: [logits, other.sigmoid()],
        lambda other, logits: {"fine": other, "coarse": logits},
        lambda other, logits: {"logits": (other, logits)},
    ],
    ids=["two first", "two last", "fine and coarse", "one name"],
)
def test_several_tensors_that_fit_are_refused_with_their_layers(pack):
    model = make(Heads, pack, CLASSES)
    assert_refused(
        r"(other|fc) \(5\), (other|fc) \(5\).*logn\.LogitLayer\(",
        lambda: locate_logits(model),
        lambda: locate_logits(model, inputs=pictures()),
        lambda: calibrate(model, [pictures()]),
    )
    assert calibrate(model, [pictures()], layer=LogitLayer("fc", activation="softmax")).layer.path == "fc"


def test_the_number_of_columns_tells_one_of_several():
    model, single = (make(Heads, lambda other, logits: (other, logits), width) for width in (7, 1))
    assert_refused(
        "`Heads`",
        lambda: locate_logits(model, inputs=pictures()),
        lambda: locate_logits(model, inputs=pictures(), num_columns=6),
    )
    assert locate_logits(model, num_columns=CLASSES, inputs=pictures()).path == "fc"
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
    model = make(Heads, nn.Softmax(dim=1))
    handle = model.fc.register_forward_hook(hook)
    assert_refused(
        "`fc`",
        lambda: recorded(model, **options),
        lambda: calibrate(model, [pictures()], layer=FC, **options),
    )
    assert list(model.fc._forward_hooks) == [handle.id]


def test_a_hook_that_only_looks_is_taken():
    model, seen = make(Heads, nn.Softmax(dim=1)), []
    model.fc.register_forward_hook(lambda module, inputs, output: seen.append(output))
    assert recorded(model).count.tolist() == [12.0] * CLASSES
    assert len(seen) == 1


# Which activation


@pytest.mark.parametrize(
    ("ending", "activation", "other"),
    [
        (torch.sigmoid, "sigmoid", "softmax"),
        (lambda logits: logits.softmax(dim=1), "softmax", "sigmoid"),
        (lambda logits: logits.log_softmax(dim=1), "softmax", "sigmoid"),
    ],
    ids=["sigmoid", "softmax", "log softmax"],
)
def test_the_forward_pass_shows_the_activation(ending, activation, other):
    model = make(Heads, ending)
    assert recorded(model).head.activation == activation
    assert locate_logits(model, inputs=pictures()).activation == activation
    assert_refused("`fc`.*activation", lambda: recorded(model, LogitLayer("fc", activation=other)))
    assert recorded(model, LogitLayer("fc", activation=activation)).head.activation == activation


def test_what_the_forward_pass_does_not_show_is_not_known_or_as_stated():
    model = make(Heads, nn.Identity())
    assert locate_logits(model, inputs=pictures()).activation is None
    assert recorded(model).head.activation is None
    assert recorded(model, LogitLayer("fc", activation="sigmoid")).head.activation == "sigmoid"


def test_a_multi_label_model_whose_forward_ends_in_a_sigmoid_keeps_its_number_of_labels():
    model = make(Heads, nn.Sigmoid())
    with torch.no_grad():
        model.fc.bias.sub_(4.0)
    images = [pictures(40, seed) for seed in range(3)]
    with torch.inference_mode():
        before = torch.cat([model(batch) for batch in images])
        calibrate(model, images)
        after = torch.cat([model(batch) for batch in images])
    kept = before.flatten().sort(descending=True).values[20]  # as few exceed 0.25, the 20 highest keep their number
    assert abs(int((after > kept).sum()) - 20) <= 2
    labels = [float((scores > 0.5).sum(dim=1).double().mean()) for scores in (before, after)]
    assert abs(labels[1] - labels[0]) < 1.0


# What is compared, and when


def test_training_mode_is_not_compared():
    with pytest.warns(LogNWarning, match="in training mode"):
        moments = recorded(make(Heads, operator.add, CLASSES).train())
    assert moments.count.tolist() == [12.0] * CLASSES


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("ending", "activation"), [(nn.Identity(), None), (nn.Softmax(dim=1), "softmax"), (nn.Sigmoid(), "sigmoid")]
)
def test_half_precision_and_autocast_are_not_refused(dtype, ending, activation):
    model = make(Heads, ending)
    with torch.autocast("cpu", dtype=dtype):
        moments = recorded(model)
    model.to(dtype)
    with record(model, FC) as half, torch.inference_mode():
        model(pictures().to(dtype))
    assert (moments.head.activation, half.head.activation) == (activation, activation)


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")], ids=["data parallel", "compiled"]
)
def test_wrapped_models_are_compared_too(wrap):
    good, bad = wrap(make(Heads, nn.Sigmoid())), wrap(make(Heads, operator.add, CLASSES))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LogNWarning)  # the wrapper is in training mode, the model is not
        assert recorded(good).head.activation == "sigmoid"
    assert_refused("`fc`", lambda: recorded(bad))


def test_the_first_batch_counts_once_and_random_numbers_stay():
    model, images = make(HeadFirst), [pictures(8, seed) for seed in range(3)]
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    calibration = calibrate(model, iter(images), method="logn")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert calibration.moments.count.tolist() == [24.0] * CLASSES
    calibration.handle.remove()
    expected = calibrate(model, images, layer=LogitLayer("classifier"), method="logn").affine
    np.testing.assert_array_equal(calibration.affine.scale, expected.scale)


def test_a_pass_that_cannot_tell_leaves_it_to_the_next():
    model = make(Heads, nn.Sigmoid())
    with record(model, FC) as moments, torch.inference_mode():
        model(pictures(0))
        assert moments.head.activation is None
        model(pictures(3))
    assert moments.head.activation == "sigmoid"


# The axis of the classes, and a single logit


def test_the_axis_of_a_convolution_is_read_from_it():
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Conv2d(3, 6, 1)), torch.rand(4, 3, 5, 6)  # as many columns of pixels as classes
    with torch.inference_mode():
        rows = model(images).permute(0, 2, 3, 1).reshape(-1, 6).double()
    for layer in (LogitLayer("0"), LogitLayer("0", class_axis=1)):
        with record(model.eval(), layer) as moments, torch.inference_mode():
            model(images)
        np.testing.assert_allclose(moments.mean, rows.mean(dim=0), atol=1e-6)
    calibrate(model, [images], layer=LogitLayer("0"), method="logn", margin=0.0)
    with torch.inference_mode():
        np.testing.assert_allclose(model(images).mean(dim=(0, 2, 3)), 0.0, atol=1e-5)


def test_an_axis_that_nothing_tells_is_asked_for():
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Identity()).eval()
    with pytest.raises(InputError, match=r"`1`.*class_axis=1"), record(model, LogitLayer("1", num_columns=6)):
        model(torch.rand(4, 3, 5, 6))
    mixed = nn.ModuleList([nn.Linear(4, 6), nn.Conv2d(4, 6, 1)])
    assert_refused("`class_axis`", lambda: record(mixed, LogitLayer(("0", "1"))).__enter__())


def test_a_single_logit_is_refused():
    model, layer = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).eval(), LogitLayer("2")
    assert_refused(
        "`2`",
        lambda: locate_logits(model),
        lambda: locate_logits(model, inputs=torch.rand(5, 4)),
        lambda: calibrate(model, [torch.rand(5, 4)]),
        lambda: calibrate(model, [torch.rand(5, 4)], layer=layer),
        lambda: recorded(model, layer),
    )
