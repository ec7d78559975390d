"""Our proposals, decoded, against the final outputs of real torchvision models, to the last detection."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

from logn_research.experiments.mask_maker import mask_maker, paste_mask  # noqa: E402
from torchvision.models.detection import (  # noqa: E402
    fasterrcnn_mobilenet_v3_large_320_fpn,
    maskrcnn_resnet50_fpn,
)
from torchvision.models.detection.roi_heads import paste_masks_in_image  # noqa: E402

from logn.calibrators.affine import ClassAffine  # noqa: E402
from logn.errors import InputError  # noqa: E402
from logn.evaluate.decode.decoder import DecodeSettings, decode  # noqa: E402
from logn.evaluate.decode.detections import Detections  # noqa: E402
from logn.evaluate.models.collect import as_tensor  # noqa: E402
from logn.evaluate.models.torchvision import TorchvisionDetector  # noqa: E402
from logn.evaluate.store.predict import predict  # noqa: E402
from logn.evaluate.store.store import PredictionStore, PredictionWriter, StoreHeader  # noqa: E402
from logn.labels.masks import decode_segmentation  # noqa: E402


class MadeImages:
    """Four images of different sizes, with something to see on them."""

    image_ids = np.array([4, 9, 2, 30])
    category_ids = np.array([1, 2, 5, 7, 8, 9])
    class_names = ("ant", "bee", "cow", "doe", "elk", "fox")
    sizes = ((64, 96), (90, 70), (128, 128), (50, 120))

    def read_image(self, index: int) -> np.ndarray:
        rng = np.random.default_rng(index)
        small = rng.integers(0, 255, (self.sizes[index][0] // 10 + 1, self.sizes[index][1] // 10 + 1, 3))
        whole = np.kron(small, np.ones((10, 10, 1)))[: self.sizes[index][0], : self.sizes[index][1]]
        return (whole * rng.uniform(0.5, 1, whole.shape)).astype(np.uint8)


def spread_outputs(model):
    """Random weights say nearly the same of all proposals; standardising what they say gives a real ranking.

    The boxes must move too: those that are still anchors overlap by exactly a half, where torchvision's own two ways
    of suppressing per class differ by rounding.
    """
    data = MadeImages()
    predictor = model.roi_heads.box_predictor
    seen: dict[str, torch.Tensor] = {}
    hook = predictor.register_forward_hook(
        lambda module, inputs, output: seen.update(cls_score=output[0], bbox_pred=output[1])
    )
    TorchvisionDetector(model).propose([as_tensor(data.read_image(index)) for index in range(4)])
    hook.remove()
    with torch.no_grad():
        for name, output in seen.items():
            layer, scale = getattr(predictor, name), 2 / output.std(dim=0)
            layer.bias.sub_(output.mean(dim=0)).mul_(scale)
            layer.weight.mul_(scale[:, None])
    return model.eval()


@pytest.fixture(scope="module")
def faster_rcnn():
    torch.manual_seed(3)
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=7,
        box_score_thresh=0.01,
        box_detections_per_img=60,
        min_size=96,
        max_size=160,
        rpn_score_thresh=0.0,
    )
    return spread_outputs(model)


@pytest.fixture(scope="module")
def mask_rcnn():
    torch.manual_seed(4)
    model = maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=7,
        box_score_thresh=0.01,
        box_detections_per_img=8,
        min_size=64,
        max_size=128,
        rpn_post_nms_top_n_test=60,
    )
    return spread_outputs(model)


SETTINGS = DecodeSettings(score_threshold=0.01, nms_iou=0.5, max_detections=60)


def assert_as_torchvision(found, outputs):
    for index, output in enumerate(outputs):
        here = found.of_image(index)
        assert len(here) == len(output["scores"]) > 0
        np.testing.assert_array_equal(here.labels + 1, output["labels"].numpy())
        np.testing.assert_allclose(here.scores, output["scores"].numpy(), rtol=1e-5)
        np.testing.assert_allclose(here.boxes, output["boxes"].numpy(), rtol=1e-5, atol=1e-4)


def outputs_of(model, store):
    """What the model itself detects, one image at a time: in a batch, images are padded to one size."""
    data = MadeImages()
    order = [data.image_ids.tolist().index(number) for number in store.image_ids.tolist()]
    with torch.inference_mode():
        return [model([as_tensor(data.read_image(index))])[0] for index in order]


def test_decode_equals_the_final_output_of_the_model(tmp_path, faster_rcnn):
    assert (
        predict(
            TorchvisionDetector(faster_rcnn, class_names=MadeImages.class_names),
            MadeImages(),
            tmp_path,
            dtype="float32",
            batch=1,
        )
        == 4
    )
    store = PredictionStore(tmp_path)
    assert store.header.class_boxes
    assert store.header.category_ids == (1, 2, 5, 7, 8, 9)
    outputs = outputs_of(faster_rcnn, store)
    assert max(len(output["scores"]) for output in outputs) == 60  # the limit is met
    assert_as_torchvision(decode(store, None, SETTINGS), outputs)


def test_decode_of_a_mapped_store_equals_the_mapped_model(tmp_path, faster_rcnn):
    predict(
        TorchvisionDetector(faster_rcnn, class_names=MadeImages.class_names),
        MadeImages(),
        tmp_path,
        dtype="float32",
        batch=1,
    )
    store = PredictionStore(tmp_path)
    rng = np.random.default_rng(0)
    affine = ClassAffine.over_foreground(rng.uniform(0.5, 1.5, 6), rng.normal(0, 1, 6), 0, method="made")
    hook = faster_rcnn.roi_heads.box_predictor.cls_score.register_forward_hook(
        lambda module, inputs, output: affine(output)
    )
    outputs = outputs_of(faster_rcnn, store)
    hook.remove()
    assert_as_torchvision(decode(store, affine, SETTINGS), outputs)


@pytest.mark.parametrize("background", [0, -1])
def test_mmdetection_order_of_steps(tmp_path, background):
    """Softmax, drop the background, threshold, NMS with one offset per class, best 300: agnostic boxes."""
    rng = np.random.default_rng(1)
    corner = rng.uniform(0, 80, (200, 2))
    boxes = np.hstack([corner, corner + rng.uniform(5, 50, (200, 2))]).astype(np.float32)
    logits = rng.normal(0, 2, (200, 41)).astype(np.float32)
    header = StoreHeader(num_columns=41, background=background, dtype="float32")
    with PredictionWriter(tmp_path, header) as writer:
        from logn.logits.proposals import Proposals

        writer.append(1, Proposals(boxes, logits, height=130, width=130))
    scores = torch.from_numpy(logits).softmax(-1)
    scores = scores[:, 1:] if background == 0 else scores[:, :-1]
    valid = scores > 1e-3
    rows, labels = valid.nonzero(as_tuple=True)
    candidates, kept_scores = torch.from_numpy(boxes)[rows], scores[valid]
    offset = labels.double()[:, None] * (candidates.max().double() + 1)
    keep = torchvision.ops.nms(candidates.double() + offset, kept_scores.double(), 0.5)[:300]
    found = decode(
        PredictionStore(tmp_path), None, DecodeSettings(score_threshold=1e-3, max_detections=300, min_box_size=0)
    )
    np.testing.assert_array_equal(found.proposal, rows[keep].numpy())
    np.testing.assert_array_equal(found.labels, labels[keep].numpy())
    np.testing.assert_allclose(found.scores, kept_scores[keep].numpy(), rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_pasted_masks_equal_torchvision(seed):
    rng = np.random.default_rng(seed)
    masks = rng.random((20, 28, 28)).astype(np.float32)
    corner = rng.uniform(-10, 45, (20, 2))
    boxes = np.hstack([corner, corner + rng.uniform(15, 50, (20, 2))]).astype(np.float32)
    expected = paste_masks_in_image(torch.from_numpy(masks)[:, None], torch.from_numpy(boxes), (55, 66))[:, 0] > 0.5
    found = np.stack([paste_mask(mask, box, 55, 66) for mask, box in zip(masks, boxes, strict=True)])
    # Different roundings of numbers next to the threshold may move a pixel.
    assert (found != expected.numpy()).mean() < 1e-5
    beyond = np.array([70.3, 20.2, 90.5, 40.1], np.float32)  # where torchvision fails
    assert not paste_mask(masks[0], beyond, 55, 66).any()


class Counting(TorchvisionDetector):
    """Counts the masks that it is asked for; they fill their boxes."""

    asked = 0

    def predict_masks(self, images, boxes, labels):
        self.asked += sum(len(rows) for rows in boxes)
        return [np.ones((len(rows), 28, 28), np.float32) for rows in boxes]


def test_masks_are_made_once_for_all_methods(tmp_path, mask_rcnn):
    detector, data = Counting(mask_rcnn, class_names=MadeImages.class_names), MadeImages()
    predict(detector, data, tmp_path, dtype="float32", batch=1)
    store = PredictionStore(tmp_path)
    chosen = DecodeSettings(score_threshold=0.01, max_detections=8)
    affine = ClassAffine.over_foreground(np.ones(6), np.array([1, 0, 0, 1, -1, 0]), 0, method="made")
    methods = [decode(store, transform, chosen) for transform in (None, affine)]
    steps: list[int] = []
    encoded = mask_maker(detector, data, store, batch=1, progress=steps.append)(methods)
    keys = [set(zip(m.image_index.tolist(), m.proposal.tolist(), m.labels.tolist(), strict=True)) for m in methods]
    assert keys[0] != keys[1]
    assert detector.asked == len(keys[0] | keys[1]) < len(methods[0]) + len(methods[1])
    assert sum(steps) == 4
    for method, masks in zip(methods, encoded, strict=True):
        for image, box, mask in zip(method.image_index.tolist(), method.boxes, masks, strict=True):
            size = store[image].height, store[image].width
            expected = paste_mask(np.ones((28, 28), np.float32), box, *size)
            np.testing.assert_array_equal(decode_segmentation(mask, *size), expected)
    assert mask_maker(detector, data, store)([Detections.empty()] * 2) == [[], []]  # nothing was detected


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="to be a detector of torchvision"):
        TorchvisionDetector(torch.nn.Linear(2, 2))
