"""What the second stage is trained on: labels of regions, and losses that are those of torchvision."""

import pytest
import torch
from logn_research.training.feature_memory import Recalled
from logn_research.training.regions import box_losses, mask_loss, mask_targets, sample_regions
from torch.nn import functional
from torchvision.models.detection import roi_heads
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher

ALL = BalancedPositiveNegativeSampler(100, 0.5)
TRUTH = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 40.0, 40.0]])
PROPOSALS = torch.tensor(
    [
        [0.0, 0.0, 10.0, 9.0],  # the first object
        [20.0, 20.0, 40.0, 31.0],  # overlaps the second by 0.55
        [0.0, 0.0, 10.0, 4.5],  # overlaps the first by 0.45
        [60.0, 60.0, 70.0, 70.0],  # nothing
    ]
)


@pytest.mark.parametrize(
    ("high", "low", "labels", "objects"),
    [
        (0.5, 0.5, [3, 7, 0, 0, 3, 7], [0, 1, 0, 0, 0, 1]),
        (0.6, 0.5, [3, 0, 0, 3, 7], [0, 0, 0, 0, 1]),  # what lies between the thresholds is left out
    ],
)
def test_regions_get_the_class_of_their_object_or_the_background(high, low, labels, objects):
    targets = [{"boxes": TRUTH, "labels": torch.tensor([3, 7])}]
    samples = sample_regions([PROPOSALS], targets, Matcher(high, low), ALL)
    assert samples.labels[0].tolist() == labels
    positive = samples.labels[0] > 0
    assert samples.truth_index[0][positive].tolist() == [
        place for place, label in zip(objects, labels, strict=True) if label
    ]
    torch.testing.assert_close(samples.true_boxes[0][positive], TRUTH[samples.truth_index[0][positive]])
    assert samples.is_truth[0].tolist() == [False] * (len(labels) - 2) + [True, True]


def test_an_image_without_objects_is_all_background():
    targets = [{"boxes": torch.empty(0, 4), "labels": torch.empty(0, dtype=torch.int64)}]
    samples = sample_regions([PROPOSALS], targets, Matcher(0.5, 0.5), ALL)
    assert samples.labels[0].tolist() == [0] * 4
    assert len(samples.positives()[0][0]) == 0


def test_objects_of_different_images_have_different_numbers():
    targets = [{"boxes": TRUTH, "labels": torch.tensor([3, 7])}] * 2
    samples = sample_regions([PROPOSALS] * 2, targets, Matcher(0.5, 0.5), ALL)
    numbers = samples.instances()[torch.cat(samples.labels) > 0]
    assert len(numbers.unique()) == 4


@pytest.mark.parametrize("boxes_per_region", [1, 9])
def test_the_losses_of_the_boxes_are_those_of_torchvision(boxes_per_region):
    targets = [{"boxes": TRUTH, "labels": torch.tensor([3, 7])}] * 2
    samples = sample_regions([PROPOSALS, PROPOSALS + 1.0], targets, Matcher(0.5, 0.5), ALL)
    coder = BoxCoder((10.0, 10.0, 5.0, 5.0))
    labels = torch.cat(samples.labels)
    torch.manual_seed(0)
    logits, offsets = torch.randn(len(labels), 9), torch.randn(len(labels), 4 * boxes_per_region)
    wanted = coder.encode(samples.true_boxes, samples.boxes)
    # torchvision has boxes for every class; one box for all is the same as nine equal ones.
    every = offsets if boxes_per_region == 9 else offsets.repeat(1, 9)
    expected = roi_heads.fastrcnn_loss(logits, every, samples.labels, wanted)
    found = box_losses(logits, offsets, samples, coder, functional.cross_entropy, beta=1 / 9)
    torch.testing.assert_close(found, expected)


def test_recalled_regions_join_both_losses():
    targets = [{"boxes": TRUTH, "labels": torch.tensor([3, 7])}]
    samples = sample_regions([PROPOSALS], targets, Matcher(0.5, 0.5), ALL)
    labels = torch.cat((samples.labels[0], torch.tensor([5])))
    torch.manual_seed(0)
    logits, offsets, answer = torch.randn(len(labels), 9), torch.randn(len(labels), 4), torch.randn(1, 4)
    coder = BoxCoder((10.0, 10.0, 5.0, 5.0))
    recalled = Recalled(torch.zeros(1, 8), torch.tensor([4]), answer, torch.tensor([99]))
    found = box_losses(logits, offsets, samples, coder, functional.cross_entropy, beta=1.0, recalled=recalled)
    torch.testing.assert_close(found[0], functional.cross_entropy(logits, labels))
    positive = labels > 0
    regions = samples.labels[0] > 0
    wanted = coder.encode_single(samples.true_boxes[0][regions], samples.boxes[0][regions])
    distance = functional.smooth_l1_loss(offsets[positive], torch.cat((wanted, answer)), reduction="sum")
    torch.testing.assert_close(found[1], distance / len(labels))


def test_masks_are_cropped_to_their_regions():
    torch.manual_seed(0)
    masks = (torch.rand(2, 64, 64) > 0.5).to(torch.uint8)
    targets = [{"boxes": TRUTH, "labels": torch.tensor([3, 7]), "masks": masks}]
    boxes, rows = [torch.tensor([[20.0, 22.0, 28.0, 30.0], [0.0, 4.0, 8.0, 12.0]])], [torch.tensor([1, 0])]
    # A region of 8 x 8 whole pixels at a size of 8 is the mask itself.
    crops = torch.stack((masks[1, 22:30, 20:28], masks[0, 4:12, 0:8])).float()
    torch.testing.assert_close(mask_targets(boxes, rows, targets, 8), crops)
    logits = torch.randn(2, 8, 8)
    expected = functional.binary_cross_entropy_with_logits(logits, crops)
    torch.testing.assert_close(mask_loss(logits, boxes, rows, targets), expected)
    assert mask_loss(logits[:0], [boxes[0][:0]], [rows[0][:0]], targets) == 0
