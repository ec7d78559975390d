"""torchvision's detectors: their proposals, decoded, against their own final outputs, to the last detection."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

from torchvision.models import detection  # noqa: E402
from torchvision.models.detection.anchor_utils import AnchorGenerator  # noqa: E402
from torchvision.models.detection.backbone_utils import mobilenet_backbone  # noqa: E402

import logn  # noqa: E402
from logn.errors import InputError  # noqa: E402
from logn.models.frameworks.torchvision import TorchvisionDetector  # noqa: E402
from logn.models.layer import find_modules  # noqa: E402
from logn.models.proposals import Proposals  # noqa: E402
from logn.predictions.decoder import DecodeSettings, decode  # noqa: E402
from logn.predictions.store import Predictions, PredictionWriter, StoreHeader  # noqa: E402
from logn.statistics.head import Head  # noqa: E402

CLASSES = 6
NONE = {"weights": None, "weights_backbone": None, "num_classes": CLASSES + 1}
SMALL = {"min_size": 96, "max_size": 160}


def small_backbone():
    return mobilenet_backbone(backbone_name="mobilenet_v3_large", weights=None, fpn=True)


def anchors(*ratios):
    return AnchorGenerator(((16,), (32,), (64,)), (ratios,) * 3)


def anchored(kind, *ratios):
    options = {"num_classes": CLASSES + 1, "detections_per_img": 50, **SMALL}
    return kind(small_backbone(), anchor_generator=anchors(*ratios), **options)


MODELS = {
    "faster_rcnn": lambda: detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        **NONE, **SMALL, box_score_thresh=0.01, box_detections_per_img=60, rpn_score_thresh=0.0
    ),
    "retinanet": lambda: anchored(detection.RetinaNet, 0.5, 1.0, 2.0),
    "fcos": lambda: anchored(detection.FCOS, 1.0),
    "ssd": lambda: detection.ssd300_vgg16(**NONE, score_thresh=0.3, detections_per_img=50),
    "ssdlite": lambda: detection.ssdlite320_mobilenet_v3_large(**NONE, score_thresh=0.3, detections_per_img=50),
}


def images():
    """Large patches with noise on them, so that there is something to see."""
    rng = np.random.default_rng(5)
    found = []
    for height, width in ((64, 96), (90, 70), (128, 128)):
        patches = np.kron(rng.random((height // 10 + 1, width // 10 + 1, 3)), np.ones((10, 10, 1)))[:height, :width]
        pixels = patches * rng.uniform(0.5, 1, patches.shape)
        found.append(torch.from_numpy(pixels.transpose(2, 0, 1)).float())
    return found


@functools.cache
def made_model(name):
    """A model with random weights that finds something: its class layers tell anchors apart.

    The boxes of a Faster R-CNN must move too: those that are still anchors overlap by exactly a half, where
    torchvision's own two ways of suppressing per class differ by rounding.
    """
    is_faster = name == "faster_rcnn"
    torch.manual_seed(3 if is_faster else 2)
    made = MODELS[name]().eval()
    last = find_modules(made, logn.locate_logits(made))
    if is_faster:
        last = [*last, made.roi_heads.box_predictor.bbox_pred]
    else:
        for layer in made.modules():
            if isinstance(layer, torch.nn.Conv2d):  # their own first weights are so small that nothing differs
                torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    generator = torch.Generator().manual_seed(3)
    seen = {}
    hooks = [
        layer.register_forward_hook(lambda layer, inputs, output: seen.setdefault(layer, []).append(output))
        for layer in last
    ]
    with torch.inference_mode():
        made(images()[: 3 if is_faster else 1])
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for layer in last:
            # Per channel: random features hardly differ between places, and equal scores have no order.
            values = torch.cat([output.transpose(0, 1).flatten(1) for output in seen[layer]], dim=1)
            spread = 2 if is_faster else 1.5
            scale = spread / values.std(dim=1).clamp(min=1e-6) if values.shape[1] > 1 else torch.ones(len(values))
            wanted = 0.0 if is_faster else torch.randn(len(values), generator=generator) - 2
            layer.bias.copy_((layer.bias - values.mean(dim=1)) * scale + wanted)
            layer.weight.mul_(scale.reshape(-1, *[1] * (layer.weight.ndim - 1)))
    return made


def stored(detector, folder, pictures):
    proposals = [detector.propose([picture])[0] for picture in pictures]  # in a batch, images are padded to one size
    header = StoreHeader(
        detector.head_of(proposals[0]),
        dtype="float32",
        class_boxes=proposals[0].boxes.ndim == 3,
        postprocessing=detector.postprocessing,
    )
    with PredictionWriter(folder, header) as writer:
        for number, found in enumerate(proposals):
            writer.append(number, found)
    return Predictions(folder)


@pytest.mark.parametrize("name", [*MODELS, "mapped"])
def test_decode_equals_the_final_output_of_the_model(name, tmp_path):
    """`mapped`: decoding a store with a map equals the model whose class layer gives mapped logits."""
    model = made_model("faster_rcnn" if name == "mapped" else name)
    pictures = images()[: 1 if name == "ssd" else 3]  # VGG takes a while
    # torchvision itself gives detections of the first column too, where random weights make it score.
    detector = logn.detector(model, unused=())
    assert isinstance(detector, TorchvisionDetector)
    store = stored(detector, tmp_path, pictures)
    affine = None
    if name == "mapped":
        rng = np.random.default_rng(0)
        affine = logn.ClassAffine.over_foreground(
            rng.uniform(0.5, 1.5, 6), rng.normal(0, 1, 6), Head(background=0), method="made"
        )
        layer = model.roi_heads.box_predictor.cls_score
        hook = layer.register_forward_hook(lambda module, inputs, output: affine(output))
    with torch.inference_mode():
        outputs = [model([picture])[0] for picture in pictures]
    if name == "mapped":
        hook.remove()
    found = decode(store, affine, DecodeSettings.of_framework(detector.postprocessing))
    for number, expected in enumerate(outputs):
        here = found.take(found.image_index == number)
        np.testing.assert_array_equal(detector.head.foreground[here.labels], expected["labels"])
        np.testing.assert_allclose(here.scores, expected["scores"], atol=1e-5)
        np.testing.assert_allclose(here.boxes, expected["boxes"], atol=1e-4, rtol=1e-5)
    assert len(found) > 30
    assert name == "mapped" or len(set(found.labels.tolist())) > 2
    if name == "faster_rcnn":
        assert max(len(output["scores"]) for output in outputs) == 60  # the limit is met


@pytest.mark.parametrize("background", [0, -1])
def test_mmdetection_order_of_steps(tmp_path, background):
    """Softmax, drop the background, threshold, NMS with one offset per class, best 300: agnostic boxes."""
    rng = np.random.default_rng(1)
    corner = rng.uniform(0, 80, (200, 2))
    boxes = np.hstack([corner, corner + rng.uniform(5, 50, (200, 2))]).astype(np.float32)
    logits = rng.normal(0, 2, (200, 41)).astype(np.float32)
    with PredictionWriter(
        tmp_path, StoreHeader(Head(41, background=background, activation="softmax"), dtype="float32")
    ) as writer:
        writer.append(1, Proposals(boxes, logits, height=130, width=130))
    scores = torch.from_numpy(logits).softmax(-1)
    scores = scores[:, 1:] if background == 0 else scores[:, :-1]
    valid = scores > 1e-3
    rows, labels = valid.nonzero(as_tuple=True)
    candidates, kept_scores = torch.from_numpy(boxes)[rows], scores[valid]
    offset = labels.double()[:, None] * (candidates.max().double() + 1)
    keep = torchvision.ops.nms(candidates.double() + offset, kept_scores.double(), 0.5)[:300]
    settings = DecodeSettings(score_threshold=1e-3, max_detections=300, min_box_size=0)
    found = decode(Predictions(tmp_path), None, settings)
    np.testing.assert_array_equal(found.proposal, rows[keep].numpy())
    np.testing.assert_array_equal(found.labels, labels[keep].numpy())
    np.testing.assert_allclose(found.scores, kept_scores[keep].numpy(), rtol=1e-5)


@pytest.mark.parametrize("name", ["retinanet", "fcos", "ssdlite"])
# Random weights may score the unused column highest.
@pytest.mark.filterwarnings("ignore:Column 0 of .* is left out:logn.LogNWarning")
def test_the_adapter_says_what_the_model_is_and_may_keep_fewer_anchors(name):
    model = made_model(name)
    detector = TorchvisionDetector(model, class_names=["none", *"abcdef"])
    assert (detector.num_classes, detector.class_names) == (CLASSES, tuple("abcdef"))
    assert detector.head.background == (0 if detector.head.activation == "softmax" else None)
    assert detector.head.foreground.tolist() == [*range(1, CLASSES + 1)]
    every = detector.propose(images()[:1])[0]
    assert every.num_columns == CLASSES + 1
    few = TorchvisionDetector(model, anchors_per_level=5)
    assert few.head.population == "kept anchors"
    assert len(few.propose(images()[:1])[0].logits) <= 5 * 6 < len(every.logits)
    with pytest.raises(InputError, match="`class_names`"):
        TorchvisionDetector(model, class_names="abc")


@pytest.mark.parametrize("bias", [9.0, -9.0])
def test_a_column_that_is_left_out_and_scores_highest_is_warned_of(bias):
    model = MODELS["retinanet"]()
    with torch.no_grad():
        model.head.classification_head.cls_logits.bias[:: CLASSES + 1] = bias
    every = TorchvisionDetector(model, unused=())
    assert every.num_classes == CLASSES + 1
    for detector, words in ((TorchvisionDetector(model), "Column 0 of"), (every, None)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            detector.propose([torch.rand(3, 64, 64)] * 2)
        expected = [words] if words and bias > 0 else []
        assert [str(warning.message)[:11] for warning in caught] == expected


def test_what_is_no_detector_is_refused():
    with pytest.raises(InputError, match="`model`"):
        TorchvisionDetector(torch.nn.Linear(2, 3))
    with pytest.raises(InputError, match="`model`"):
        logn.detector(torch.nn.Linear(2, 3))
