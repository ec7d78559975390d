"""locate_logits on torchvision's models, timm's way, plain classifiers and what it must not guess."""

from __future__ import annotations

import warnings

import pytest
import torch
import torchvision
from torch import nn

from logn.errors import InputError
from logn.models.layer import LogitLayer, count_columns, find_modules
from logn.models.locate import locate_logits

REGIONS = ("roi_heads.box_predictor.cls_score", 0, "softmax", (), 1)
DENSE = ("head.classification_head.cls_logits", None, "sigmoid", (0,))
DETECTORS = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": REGIONS,
    "fasterrcnn_resnet50_fpn_v2": REGIONS,
    "maskrcnn_resnet50_fpn": REGIONS,
    "maskrcnn_resnet50_fpn_v2": REGIONS,
    "keypointrcnn_resnet50_fpn": REGIONS,
    "retinanet_resnet50_fpn": (*DENSE, 9),
    "retinanet_resnet50_fpn_v2": (*DENSE, 9),
    "fcos_resnet50_fpn": (*DENSE, 1),
    "ssd300_vgg16": ("head.classification_head.module_list.0", 0, "softmax", (), (4, 6, 6, 6, 4, 4)),
    "ssdlite320_mobilenet_v3_large": ("head.classification_head.module_list.0.1", 0, "softmax", (), (6,) * 6),
}


def detector(name, **options):
    return getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None, num_classes=7, **options)


@pytest.mark.parametrize("name", DETECTORS)
def test_torchvision_detectors(name):
    with torch.device("meta"):
        model = detector(name)
    layer = locate_logits(model)
    facts = (layer.paths[0], layer.background, layer.activation, layer.unused, layer.anchors)
    assert facts == DETECTORS[name]
    assert count_columns(model, layer) == 7
    assert all(isinstance(module, nn.Linear | nn.Conv2d) for module in find_modules(model, layer))


def test_a_detector_inside_another_module_and_a_subclass_of_one():
    class Mine(torchvision.models.detection.ssd.SSD):
        pass

    with torch.device("meta"):
        inner = detector("ssdlite320_mobilenet_v3_large")
    inner.__class__ = Mine
    outer = nn.Module()
    outer.detector = inner
    assert locate_logits(outer).paths[0] == "detector.head.classification_head.module_list.0.1"


# tests/models/frameworks/test_classifiers.py has the other families.
@pytest.mark.parametrize("name", ["alexnet", "googlenet", "mnasnet0_5", "resnet18"])
def test_torchvision_classifiers(name):
    torch.manual_seed(0)
    options = {"init_weights": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, num_classes=7, **options)
    layer = locate_logits(model)
    (module,) = find_modules(model, layer)
    assert module.weight.shape[0] == 7
    assert layer.background is None
    assert layer.class_axis == (1 if isinstance(module, nn.Conv2d) else -1)
    assert "aux" not in layer.name.lower()
    assert model.training


def test_squeezenet_which_rectifies_its_logits_is_refused():
    torch.manual_seed(0)
    with pytest.raises(InputError, match=r"classifier\.1 \(Conv2d, 7\)"):
        locate_logits(torchvision.models.squeezenet1_1(num_classes=7))


def test_segmentation_skips_the_auxiliary_classifier():
    torch.manual_seed(0)
    model = torchvision.models.segmentation.fcn_resnet50(weights_backbone=None, num_classes=5, aux_loss=True)
    layer = locate_logits(model, inputs=torch.rand(2, 3, 64, 64))
    assert layer == LogitLayer("classifier.4", class_axis=1, population="image locations")


class TimmLike(nn.Module):
    """What of timm's interface counts here: a classifier that is not the last module, told by `get_classifier`."""

    def __init__(self, heads=1, head=None):
        super().__init__()
        self.head = head or nn.Linear(4, 5)
        if heads == 2:
            self.head_dist = nn.Linear(4, 5)
        self.patch_embed = nn.Conv2d(3, 4, 2)

    def get_classifier(self):
        return (self.head, self.head_dist) if hasattr(self, "head_dist") else self.head


def test_timm_models_name_their_classifier():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert locate_logits(TimmLike()) == LogitLayer("head", class_axis=-1, population="images")
        distilled = locate_logits(TimmLike(heads=2))
        convolution = locate_logits(TimmLike(head=nn.Conv2d(4, 5, 1)))
        nested = locate_logits(TimmLike(head=nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 5))))
    assert distilled.paths == ("head", "head_dist")
    assert not distilled.stages
    assert convolution.class_axis == 1
    assert nested.path == "head.2"


def headless():
    with torch.device("meta"):
        model = torchvision.models.resnet50()
    model.fc = nn.Identity()
    return model


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, 8, 3)
        self.class_embed = nn.Linear(8, 6)
        self.bbox_embed = nn.Linear(8, 4)


CANDIDATES = r"the layers are class_embed \(Linear, 6\), bbox_embed \(Linear, 4\), backbone \(Conv2d, 8\)"


@pytest.mark.parametrize(
    ("make", "columns", "message"),
    [
        (lambda: TimmLike(head=nn.Identity()), None, r"patch_embed \(Conv2d, 4\)"),
        (headless, None, r"logn\.LogitLayer\("),
        (Unknown, 6, rf'logn\.LogitLayer\("class_embed", background=None, activation="softmax"\); {CANDIDATES}\.$'),
        (lambda: nn.Sequential(nn.Linear(2, 8)), 9, "`Sequential`"),
        (lambda: nn.ReLU(), None, "`ReLU`"),
        (lambda: "resnet50", None, "`model`"),
    ],
)
def test_what_is_not_known_is_not_guessed(make, columns, message):
    with pytest.raises(InputError, match=message):
        locate_logits(make(), columns)


def test_a_model_that_says_it_itself():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    model.logit_layer = LogitLayer("0", activation="sigmoid", class_axis=-1)
    assert locate_logits(model) is model.logit_layer


def test_a_wrong_number_of_columns_is_refused():
    with torch.device("meta"):
        model = detector("ssdlite320_mobilenet_v3_large")
    with pytest.raises(InputError, match="`num_columns`"):
        locate_logits(model, num_columns=6)
    assert locate_logits(model, num_columns=7).background == 0


class TextClassifier(nn.Module):
    """Tokens and their mask in, the logits of a text out."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.out = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, tokens, mask):
        return self.out(self.hidden((self.embed(tokens) * mask[..., None]).mean(dim=1)).relu())


def test_forward_runs_a_model_that_takes_no_images():
    batch = {"tokens": torch.arange(40).reshape(8, 5), "mask": torch.ones(8, 5)}
    layer = locate_logits(TextClassifier(), inputs=batch, forward=lambda model, batch: model(**batch))
    assert (layer.path, layer.population) == ("out", "images")
    with pytest.raises(InputError, match="inputs=images"):
        locate_logits(TextClassifier())
    with pytest.raises(InputError, match="`forward`"):
        locate_logits(TextClassifier(), forward=lambda model, batch: model(**batch))
