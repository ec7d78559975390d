"""Classifiers are built as asked, and the rest of the library works on them."""

import numpy as np
import pytest
import torch
from logn_research.training.classifiers import ClassifierSettings, build_classifier, make_classifier
from torch import nn
from torchvision.models import resnet50

import logn
from logn.errors import InputError
from logn.methods.catalog import fit

PICTURES = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
pytestmark = pytest.mark.usefixtures("one_thread")


def spread(model):
    """Give the class layer weights and a bias as a long tail leaves them."""
    with torch.no_grad():
        scale = torch.linspace(1, 3, model.num_classes)
        model.cls_score.weight.mul_(100 * scale[:, None])
        model.cls_score.bias.copy_(scale)
    return model


@pytest.mark.parametrize(("name", "layers"), [("resnet10", 10), ("resnet50", 50), ("resnext50", 50)])
def test_the_depth_is_that_of_the_name(name, layers):
    model = make_classifier(name, 7)
    # Convolutions of 1x1 in the shortcuts are not counted, by custom.
    paths = [path for path, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    assert sum("downsample" not in path for path in paths) + 1 == layers
    assert model(torch.rand(2, 3, 64, 64)).shape == (2, 7)


def test_resnet_152_has_its_layers():
    with torch.device("meta"):
        from torchvision.models import resnet152

        known = {name: weight.shape for name, weight in resnet152().named_parameters() if not name.startswith("fc.")}
        model = make_classifier("resnet152", 3)
    ours = {name.removeprefix("body."): weight.shape for name, weight in model.named_parameters() if "cls" not in name}
    assert ours == known


@pytest.mark.parametrize("size", [32, 48, 64])
def test_the_small_network_takes_images_of_several_sizes(size):
    assert make_classifier("small", 5, "cosine", image_size=size, resize=size)(PICTURES).shape == (16, 5)


def test_the_seed_gives_the_weights_and_leaves_the_random_state_alone():
    before = torch.random.get_rng_state()
    first, same, other = (make_classifier("small", 4, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first(PICTURES), same(PICTURES))
    assert not torch.equal(first(PICTURES), other(PICTURES))


def test_the_logits_are_located_with_their_activation():
    layer = logn.locate_logits(make_classifier("resnet10", 6))
    assert (layer.path, layer.background, layer.activation) == ("cls_score", None, "softmax")
    assert logn.locate_logits(make_classifier("small", 6, loss="eql")).activation == "sigmoid"
    with pytest.raises(InputError, match="Expected `num_columns` to be 6"):
        logn.locate_logits(make_classifier("small", 6), num_columns=7)


def test_a_correction_folds_exactly():
    model = spread(make_classifier("small", 6))
    affine = logn.ClassAffine(np.linspace(0.5, 2, 6), np.linspace(-1, 1, 6))
    expected = affine(model(PICTURES).detach())
    logn.fold(model, logn.locate_logits(model), affine)
    torch.testing.assert_close(model(PICTURES).detach(), expected, rtol=1e-5, atol=1e-4)


def test_a_cosine_layer_is_refused_by_fold_with_the_reason_and_takes_an_attached_map():
    model = spread(make_classifier("small", 6, "cosine"))
    affine = logn.ClassAffine(np.linspace(0.5, 2, 6), np.linspace(-1, 1, 6))
    plain = model(PICTURES).detach()
    with pytest.raises(InputError, match="a cosine head normalises its weight"):
        logn.fold(model, logn.locate_logits(model), affine)
    torch.testing.assert_close(model(PICTURES).detach(), plain, rtol=0, atol=0)
    with logn.attach(model, logn.locate_logits(model), affine):
        torch.testing.assert_close(model(PICTURES).detach(), affine(plain), rtol=1e-5, atol=1e-4)


def test_a_correction_is_attached_and_taken_off():
    model = make_classifier("small", 6)
    before = model(PICTURES)
    handle = logn.attach(model, logn.locate_logits(model), logn.ClassAffine(np.full(6, 2.0), np.ones(6)))
    torch.testing.assert_close(model(PICTURES), 2 * before + 1)
    handle.remove()
    assert torch.equal(model(PICTURES), before)


def test_calibrate_makes_the_classes_alike():
    model = spread(make_classifier("small", 6))
    logn.calibrate(model, [PICTURES], method="logn")
    after = model(PICTURES).detach()
    torch.testing.assert_close(after.mean(0), torch.zeros(6), atol=1e-2, rtol=0)
    torch.testing.assert_close(after.std(0), torch.ones(6), atol=1e-2, rtol=0)


def test_weight_and_bias_reach_tau_norm():
    model = spread(make_classifier("small", 6))
    layer = model.cls_score
    affine = fit("tau-norm:tau=1", weight=layer.weight, bias=layer.bias)
    features = model.body((PICTURES - model.mean) / model.std)
    expected = features @ (layer.weight / layer.weight.norm(dim=1, keepdim=True)).T
    torch.testing.assert_close(affine(model(PICTURES).detach()), expected.detach(), rtol=1e-4, atol=1e-4)


def test_local_weights_are_taken_and_others_refused():
    source = resnet50(weights=None)
    settings = ClassifierSettings("resnet50", 3, image_size=32, resize=32)
    model = build_classifier(settings, weights=source.state_dict())
    assert torch.equal(model.body.layer4[0].conv1.weight, source.layer4[0].conv1.weight)
    with pytest.raises(InputError, match="do not fit the ResNet: 1 of"):
        build_classifier(settings, weights={k: v for k, v in source.state_dict().items() if k != "conv1.weight"})
    with pytest.raises(InputError, match="The small classifier takes no `weights`"):
        build_classifier(ClassifierSettings("small", 3), weights=source.state_dict())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": "alexnet"}, "Expected `model` to be one of"),
        ({"classifier": "tree"}, "Expected `classifier` to be one of"),
        ({"num_classes": 0}, "Expected `num_classes` to be at least 1"),
        ({"temperature": 0.0}, "Expected `temperature` to be above 0"),
        ({"image_size": 64}, "Expected `image_size` to be from 16 to 32 pixels, but got 64"),
        ({"loss": "bags"}, "Expected `background` to be 0 or -1"),
    ],
)
def test_impossible_settings_get_a_sentence(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        ClassifierSettings(**{"model": "small", "num_classes": 3, **settings})


def test_settings_go_through_a_file():
    settings = ClassifierSettings("resnet10", 3, classifier="cosine", loss="seesaw")
    assert ClassifierSettings.from_dict(settings.as_dict()) == settings
    with pytest.raises(InputError, match=r"does not know its settings \['colour'\]"):
        ClassifierSettings.from_dict({**settings.as_dict(), "colour": 1})
