"""Masks of several methods: pasted as torchvision pastes them, and made once for all methods."""

from __future__ import annotations

import numpy as np
import pytest

from logn.data.masks import encode_mask, outline_of, paste_mask
from logn.measure.detection.mask_precision import MaskModel
from logn.methods.affine import ClassAffine
from logn.models.proposals import Proposals
from logn.predictions.decoder import DecodeSettings, decode
from logn.predictions.detections import Detections
from logn.predictions.predict import predict
from logn.predictions.store import Predictions
from logn.statistics.head import Head


@pytest.mark.parametrize("seed", range(5))
def test_pasted_masks_equal_torchvision(seed):
    torch = pytest.importorskip("torch")
    paste_masks_in_image = pytest.importorskip("torchvision.models.detection.roi_heads").paste_masks_in_image
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


class MadeImages:
    image_ids, category_ids, class_names = np.array([4, 9, 2, 30]), np.arange(1, 7), tuple("abcdef")
    images_fingerprint = None

    def read_image(self, index):
        return np.full((60, 80, 3), index, np.uint8)


class Counting:
    """Proposes at random and counts the masks that it is asked for; they fill their boxes."""

    background, activation, num_classes, class_names, asked = 0, "softmax", 6, tuple("abcdef"), 0

    def propose(self, images):
        found = []
        for image in images:
            rng = np.random.default_rng(round(float(image.max()) * 255))
            corner = rng.uniform(0, 40, (30, 6, 2))
            boxes = np.concatenate([corner, corner + rng.uniform(5, 20, corner.shape)], axis=-1)
            found.append(Proposals(boxes, rng.normal(0, 2, (30, 7)), height=60, width=80))
        return found

    def masks(self, image, boxes, classes, rows):
        self.asked += len(boxes)
        return (paste_mask(np.ones((28, 28), np.float32), box, 60, 80) for box in boxes)


def test_masks_are_made_once_for_all_methods(tmp_path):
    detector, data = Counting(), MadeImages()
    predict(detector, data, tmp_path, dtype="float32")
    store = Predictions(tmp_path)
    chosen = DecodeSettings(score_threshold=0.01, max_detections=8)
    affine = ClassAffine.over_foreground(np.ones(6), np.array([1, 0, 0, 1, -1, 0]), Head(background=0), method="made")
    methods = [decode(store, transform, chosen) for transform in (None, affine)]
    steps: list[int] = []
    encoded = MaskModel.of(detector, data, store).make(methods, steps.append)
    keys = [set(zip(m.image_index.tolist(), m.proposal.tolist(), m.labels.tolist(), strict=True)) for m in methods]
    assert keys[0] != keys[1]
    assert detector.asked == len(keys[0] | keys[1]) < len(methods[0]) + len(methods[1])
    assert sum(steps) == 4
    for method, masks in zip(methods, encoded, strict=True):
        for image, box, mask in zip(method.image_index.tolist(), method.boxes, masks, strict=True):
            size = store[image].height, store[image].width
            expected = paste_mask(np.ones((28, 28), np.float32), box, *size)
            assert mask == encode_mask(expected)
    assert [len(masks) for masks in MaskModel.of(detector, data, store).make([Detections.empty()] * 2)] == [0, 0]


def test_an_outline_goes_around_every_part_and_hole():
    ring = np.ones((3, 4), np.bool_)
    ring[1, 1] = ring[:, 3] = False
    ring[2, 3] = True
    path = outline_of(encode_mask(ring))
    assert path.count("M") == path.count("Z") == 2
    assert outline_of(encode_mask(np.zeros((2, 2), np.bool_))) == ""
