"""RetinaNet, FCOS, SSD and SSDlite of torchvision: their proposals, decoded, against their own final outputs."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torchvision.models import detection  # noqa: E402
from torchvision.models.detection.anchor_utils import AnchorGenerator  # noqa: E402
from torchvision.models.detection.backbone_utils import mobilenet_backbone  # noqa: E402

import logn  # noqa: E402
from logn.errors import InputError  # noqa: E402
from logn.evaluate.decode.decoder import DecodeSettings, decode  # noqa: E402
from logn.evaluate.models.torchvision import TorchvisionDetector  # noqa: E402
from logn.evaluate.store.store import PredictionStore, PredictionWriter, StoreHeader  # noqa: E402
from logn.logits.layer import find_modules  # noqa: E402

CLASSES = 6
SETTINGS = {"num_classes": CLASSES + 1, "detections_per_img": 50}
SMALL = {"min_size": 96, "max_size": 160, **SETTINGS}


def small_backbone():
    return mobilenet_backbone(backbone_name="mobilenet_v3_large", weights=None, fpn=True)


MODELS = {
    "retinanet": lambda: detection.RetinaNet(
        small_backbone(), anchor_generator=AnchorGenerator(((16,), (32,), (64,)), ((0.5, 1.0, 2.0),) * 3), **SMALL
    ),
    "fcos": lambda: detection.FCOS(
        small_backbone(), anchor_generator=AnchorGenerator(((16,), (32,), (64,)), ((1.0,),) * 3), **SMALL
    ),
    "ssd": lambda: detection.ssd300_vgg16(weights=None, weights_backbone=None, score_thresh=0.3, **SETTINGS),
    "ssdlite": lambda: detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, score_thresh=0.3, **SETTINGS
    ),
}


def images():
    generator = torch.Generator().manual_seed(5)
    sizes = ((64, 96), (90, 70), (128, 128))
    return [torch.rand(3, *size, generator=generator) for size in sizes]


@functools.cache
def made_model(name):
    """A model with random weights that finds something: its class layers tell anchors apart."""
    torch.manual_seed(2)
    made = MODELS[name]().eval()
    for layer in made.modules():
        if isinstance(layer, torch.nn.Conv2d):  # their own first weights are so small that nothing differs
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    generator = torch.Generator().manual_seed(3)
    seen = {}
    last = find_modules(made, logn.locate_logits(made))
    hooks = [
        layer.register_forward_hook(lambda layer, inputs, output: seen.setdefault(layer, []).append(output))
        for layer in last
    ]
    with torch.inference_mode():
        made(images()[:1])
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for layer in last:
            # Per channel: random features hardly differ between places, and equal scores have no order.
            values = torch.cat([output.transpose(0, 1).flatten(1) for output in seen[layer]], dim=1)
            scale = 1.5 / values.std(dim=1).clamp(min=1e-6) if values.shape[1] > 1 else torch.ones(len(values))
            wanted = torch.randn(len(values), generator=generator) - 2
            layer.bias.copy_((layer.bias - values.mean(dim=1)) * scale + wanted)
            layer.weight.mul_(scale[:, None, None, None])
    return made


@pytest.fixture(params=["retinanet", "fcos", "ssdlite"])
def model(request):
    return made_model(request.param)


def store_of(detector, folder, pictures):
    proposals = [detector.propose([picture])[0] for picture in pictures]
    header = StoreHeader(
        num_columns=proposals[0].num_columns,
        background=detector.background,
        activation=detector.activation,
        dtype="float32",
        class_columns=detector.class_columns,
        objectness=proposals[0].objectness is not None,
        postprocessing=detector.postprocessing,
    )
    with PredictionWriter(folder, header) as writer:
        for number, found in enumerate(proposals):
            writer.append(number, found)
    return PredictionStore(folder)


@pytest.mark.parametrize("name", MODELS)
def test_decode_equals_the_final_output_of_the_model(name, tmp_path):
    model, pictures = made_model(name), images()[: 1 if name == "ssd" else 3]  # VGG takes a while
    # torchvision itself gives detections of the first column too, where random weights make it score.
    detector = logn.detector(model, unused=())
    assert isinstance(detector, TorchvisionDetector)
    store = store_of(detector, tmp_path, pictures)
    found = decode(store, settings=DecodeSettings.of_framework(detector.postprocessing))
    kept = 0
    for number, picture in enumerate(pictures):
        with torch.inference_mode():
            expected = model([picture])[0]
        here = found.of_image(number)
        kept += len(here)
        np.testing.assert_array_equal(np.array(detector.class_columns)[here.labels], expected["labels"])
        np.testing.assert_allclose(here.scores, expected["scores"], atol=1e-5)
        np.testing.assert_allclose(here.boxes, expected["boxes"], atol=1e-4, rtol=1e-5)
    assert kept > 30
    assert len(set(found.labels.tolist())) > 2


# Random weights may score the unused column highest.
UNUSED_COLUMN = pytest.mark.filterwarnings("ignore:Column 0 of .* is left out:logn.LogNWarning")


@UNUSED_COLUMN
def test_the_adapter_says_what_the_model_is(model):
    detector = TorchvisionDetector(model, class_names=["none", *"abcdef"])
    assert detector.num_classes == CLASSES
    assert detector.class_names == tuple("abcdef")
    is_softmax = detector.activation == "softmax"
    assert detector.background == (0 if is_softmax else None)
    assert detector.class_columns == tuple(range(1, CLASSES + 1))
    assert detector.propose(images()[:1])[0].num_columns == CLASSES + 1


@UNUSED_COLUMN
def test_fewer_anchors_can_be_kept(model):
    detector = TorchvisionDetector(model, anchors_per_level=5)
    assert detector.population == "kept anchors"
    some, all_of_them = detector.propose(images()[:1])[0], TorchvisionDetector(model).propose(images()[:1])[0]
    assert len(some.logits) <= 5 * 6 < len(all_of_them.logits)


@pytest.mark.parametrize("bias", [9.0, -9.0])
def test_a_column_that_is_left_out_and_scores_highest_is_warned_of(bias):
    model = MODELS["retinanet"]()
    with torch.no_grad():
        model.head.classification_head.cls_logits.bias[:: CLASSES + 1] = bias
    for detector, words in ((TorchvisionDetector(model), "Column 0 of"), (TorchvisionDetector(model, unused=()), None)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            detector.propose([torch.rand(3, 64, 64)] * 2)
        expected = [words] if words and bias > 0 else []
        assert [str(warning.message)[:11] for warning in caught] == expected


def test_a_retinanet_that_counts_from_zero():
    model = MODELS["retinanet"]()
    assert TorchvisionDetector(model, unused=()).num_classes == CLASSES + 1


def test_names_that_do_not_fit_are_refused(model):
    with pytest.raises(InputError, match="`class_names` to name the 6 classes, or all 7 columns, but got 3"):
        TorchvisionDetector(model, class_names="abc")


def test_what_is_no_detector_is_refused():
    with pytest.raises(InputError, match="to be a detector of torchvision"):
        TorchvisionDetector(torch.nn.Linear(2, 3))
    with pytest.raises(InputError, match="Expected `model` to be a detector of torchvision, Ultralytics"):
        logn.detector(torch.nn.Linear(2, 3))
