"""Our losses against MMDetection's own: values, gradients, state and scores. Run by `make test-mmdet`."""

from __future__ import annotations

import pytest
import torch
from logn_research.losses import EqualizationV2Loss, SeesawLoss, SigmoidFocalLoss

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from mmdet.models.losses import EQLV2Loss, FocalLoss
from mmdet.models.losses import SeesawLoss as TheirSeesawLoss

CLASSES, ROWS, STEPS = 12, 40, 4


def batches(columns, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        logits = 3 * torch.randn(ROWS, columns, generator=generator)
        # Most rows are background, and some classes are much rarer than others.
        share = torch.tensor([2.0 ** -(place % CLASSES) for place in range(CLASSES)] + [3.0])
        yield logits, torch.multinomial(share, ROWS, replacement=True, generator=generator)


def same_value_and_gradient(ours, theirs, logits):
    gradients = []
    values = []
    for loss in (ours, theirs):
        given = logits.clone().requires_grad_()
        value = loss(given)
        value.backward()
        values.append(value.detach())
        gradients.append(given.grad)
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_seesaw(seed):
    ours, theirs = SeesawLoss(CLASSES, background=-1), TheirSeesawLoss(num_classes=CLASSES, return_dict=True)
    for logits, labels in batches(CLASSES + 2, seed):
        same_value_and_gradient(
            lambda x, y=labels: ours(x, y), lambda x, y=labels: sum(theirs(x, y, avg_factor=ROWS).values()), logits
        )
        assert torch.equal(ours.counts, theirs.cum_samples.long())
        torch.testing.assert_close(ours.activate(logits), theirs.get_activation(logits), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_equalization_v2(seed):
    ours, theirs = EqualizationV2Loss(CLASSES, background=-1), EQLV2Loss(num_classes=CLASSES)
    for logits, labels in batches(CLASSES + 1, seed):
        same_value_and_gradient(lambda x, y=labels: ours(x, y), lambda x, y=labels: theirs(x, y), logits)
        torch.testing.assert_close(ours.ratio.float(), theirs.pos_neg, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.activate(logits), theirs.get_activation(logits.clone()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_focal(seed):
    theirs = FocalLoss(use_sigmoid=True, gamma=2.0, alpha=0.25)
    for divide_by in ("positives", "rows"):
        ours = SigmoidFocalLoss(CLASSES, background=-1, divide_by=divide_by)
        for logits, labels in batches(CLASSES, seed):
            count = int((labels < CLASSES).sum()) if divide_by == "positives" else ROWS
            same_value_and_gradient(
                lambda x, y=labels, loss=ours: loss(x, y),
                lambda x, y=labels, n=count: theirs(x, y, avg_factor=n),
                logits,
            )
