"""The paper's table in its own framework: our losses, LOCE's memory and the authors' head inside MMDetection.

A configuration names this module once, and its classes by their names:

    custom_imports = dict(imports=["logn_research.mmdetection"])
    model = dict(type="LongTailRCNN", roi_head=dict(bbox_head=dict(type="LongTailBBoxHead", loss_cls=dict(
        type="LongTailLoss", _delete_=True, loss="eql-v2", counts="lvis_v1_train.json"))))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmdet.models.detectors import TwoStageDetector
from mmdet.models.roi_heads import Shared2FCBBoxHead, StandardRoIHead
from mmdet.registry import HOOKS, MODELS
from mmdet.structures.bbox import bbox2roi
from mmengine.hooks import Hook
from torch import Tensor, nn

from logn.data.class_counts import ClassCounts
from logn.models.layer import LogitLayer
from logn_research.losses import make_loss
from logn_research.training.feature_memory import SIGNS, FeatureMemory, jittered_boxes


@MODELS.register_module()
class LongTailLoss(nn.Module):
    """One of our losses as MMDetection's classification loss; it decides the number of columns and the scores.

    Args:
        loss: Its name and options, as in `logn train --loss`: `eql`, `eql-v2`, `bags`, `loce`, `seesaw:p=0.6`.
        counts: Training annotations, or another file of class counts.
        loss_weight: Factor of the loss.
    """

    custom_cls_channels = True
    custom_activation = True
    custom_accuracy = True

    def __init__(self, loss: str, counts: str, loss_weight: float = 1.0) -> None:
        super().__init__()
        self.loss = make_loss(loss, ClassCounts.load(counts), background=-1)
        self.loss_weight = loss_weight
        self.instances: Tensor | None = None  # of the next batch: which object each row belongs to

    def get_cls_channels(self, num_classes: int) -> int:
        """How many outputs the class layer has."""
        if num_classes != self.loss.num_classes:
            raise ValueError(f"Expected counts of {num_classes} classes, but got {self.loss.num_classes}.")
        return self.loss.layout.columns

    def get_activation(self, cls_score: Tensor) -> Tensor:
        """Scores `(N, classes + 1)`, the background last."""
        return self.loss.activate(cls_score)

    def get_accuracy(self, cls_score: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Share of the objects' regions whose highest score is that of their class, in percent; only in training."""
        if not self.training:  # whoever listens to the test logits would hear these rows twice
            return {}
        objects = self.loss.is_foreground(labels)
        best = self.loss.activate(cls_score[objects])[:, : self.loss.num_classes].argmax(1)
        return {"acc_classes": 100 * (best == labels[objects]).float().mean().nan_to_num()}

    def forward(
        self,
        cls_score: Tensor,
        label: Tensor,
        weight: Tensor | None = None,
        avg_factor: float | None = None,
        reduction_override: str | None = None,
    ) -> Tensor:
        """The loss of a batch; all regions weigh the same, as in MMDetection's samplers."""
        if not self.training:  # a pass that gathers statistics: whoever listens to the test logits hears them
            self.loss.test_logits(self.loss.checked(cls_score))
        known = {"instances": self.instances} if self.loss.uses_instances and self.instances is not None else {}
        self.instances = None
        result: Tensor = self.loss_weight * self.loss(cls_score, label, **known)
        return result


@MODELS.register_module()
class LongTailBBoxHead(Shared2FCBBoxHead):  # type: ignore[misc]
    """MMDetection's box head, whose class layer starts where a `LongTailLoss` wants it: EQL at a prior of 0.001."""

    def init_weights(self) -> None:
        """The framework's random weights, and the bias of the loss."""
        super().init_weights()
        nn.init.constant_(self.fc_cls.bias, self.loss_cls.loss.layout.initial_bias)


@MODELS.register_module()
class LogitNormHead(Shared2FCBBoxHead):  # type: ignore[misc]
    """A box head whose training loss sees logits behind a batch normalisation, as the authors' code trains.

    The paper describes LogN as post-hoc; the configurations of its code train all 24 epochs with this head. At test
    time the logits are those of the class layer, so that a correction takes them as of any other detector: the
    authors' own is `test.py --method logn --official`.

    Args:
        momentum: Of the running statistics, which only the authors' code uses at test time.
    """

    def __init__(self, *arguments: Any, momentum: float = 1e-4, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logit_norm = nn.BatchNorm1d(self.fc_cls.out_features, eps=1e-5, momentum=momentum, affine=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits, normalised over the batch in training, and box offsets."""
        logits, offsets = super().forward(x)
        return self.logit_norm(logits) if self.training else logits, offsets


def logit_layer(model: Any) -> LogitLayer:
    """Where a detector with a `LongTailLoss` has the logits that a correction takes.

    A cascade averages the outputs of its stages and gives them to the loss of the last.

    Args:
        model: MMDetection's two-stage detector.
    """
    head = model.roi_head.bbox_head
    cascade = isinstance(head, nn.ModuleList)
    loss = (head[-1] if cascade else head).loss_cls.loss
    stage = f".{len(head) - 1}" if cascade else ""
    return LogitLayer(
        f"roi_head.bbox_head{stage}.loss_cls.loss.test_logits",
        background=loss.layout.background,
        activation=loss.layout.activation,
        num_columns=loss.layout.test_columns(loss.num_classes),
        population="test proposals",
    )


@MODELS.register_module()
class LongTailRCNN(TwoStageDetector):  # type: ignore[misc]
    """Mask R-CNN or Cascade R-CNN with a `LongTailLoss`; `logn.locate_logits` reads its `logit_layer`."""

    @property
    def logit_layer(self) -> LogitLayer:
        """Where the loss has the logits that a correction takes."""
        return logit_layer(self)


@MODELS.register_module()
class EquilibriumRoIHead(StandardRoIHead):  # type: ignore[misc]
    """MMDetection's RoI head for LOCE: its loss, a `LongTailLoss` of `loce`, knows the object of each region.

    Args:
        arguments: Those of the framework's head.
        feature_memory: Keep features of past regions and draw from them, weak classes more often (LOCE's MFS).
        options: Those of the framework's head.
    """

    def __init__(self, *arguments: Any, feature_memory: bool = True, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.memory = FeatureMemory(self.bbox_head.num_classes) if feature_memory else None
        self.filling = False  # whether to keep features in evaluation mode, too

    def bbox_loss(self, x: tuple[Tensor, ...], sampling_results: Sequence[Any]) -> dict[str, Any]:
        """The loss of the sampled regions and of some that the memory recalls."""
        rois = bbox2roi([sample.priors for sample in sampling_results])
        results: dict[str, Any] = self._bbox_forward(x, rois)
        targets = self.bbox_head.get_targets(sampling_results, self.train_cfg)
        wrapper = self.bbox_head.loss_cls
        instances = _instances(sampling_results)
        scores, boxes = results["cls_score"], results["bbox_pred"]
        drawn = None
        if self.memory is not None and (self.training or self.filling):
            self._keep(self.memory, x, sampling_results)
            drawn = self.memory.draw(wrapper.loss.mean_score) if self.training else None
        if drawn is not None and drawn.offsets is not None:
            drawn = drawn.to(scores.device)
            more_scores, more_boxes = self.bbox_head(drawn.features)
            scores, boxes = torch.cat((scores, more_scores)), torch.cat((boxes, more_boxes))
            rois = torch.cat((rois, rois.new_zeros(len(drawn.classes), 5)))
            offsets: Any = drawn.offsets
            deviations = offsets.new_tensor(self.bbox_head.bbox_coder.stds)
            recalled = (drawn.classes, torch.ones_like(offsets[:, 0]), offsets / deviations, torch.ones_like(offsets))
            targets = tuple(torch.cat((own, other.to(own))) for own, other in zip(targets, recalled, strict=True))
            instances = torch.cat((instances, drawn.instances))
        wrapper.instances = instances
        results["loss_bbox"] = self.bbox_head.loss(scores, boxes, rois, *targets)
        return results

    @torch.no_grad()
    def _keep(self, memory: FeatureMemory, x: tuple[Tensor, ...], sampling_results: Sequence[Any]) -> None:
        """Keep features of sixteen boxes around each true one; images are padded to one size."""
        extractor = self.bbox_roi_extractor
        size = [side * extractor.featmap_strides[0] for side in x[0].shape[-2:]]
        truth = [sample.pos_gt_bboxes for sample in sampling_results]
        labels = [sample.pos_gt_labels for sample in sampling_results]
        distinct = [_distinct(boxes, classes) for boxes, classes in zip(truth, labels, strict=True)]
        jittered = [jittered_boxes(boxes, size).reshape(-1, 4) for boxes, _ in distinct]
        if not sum(map(len, jittered)):
            return
        around = torch.cat([boxes.repeat_interleave(len(SIGNS), 0) for boxes, _ in distinct])
        classes = torch.cat([labels for _, labels in distinct]).repeat_interleave(len(SIGNS))
        features = extractor(x[: extractor.num_inputs], bbox2roi(jittered))
        memory.add(features, classes, _offsets(torch.cat(jittered), around))


@HOOKS.register_module()
class FillScoresHook(Hook):  # type: ignore[misc]
    """Before LOCE's second stage, pass over the training images once: its mean scores and its memory are filled.

    No weight changes. A resumed run has its mean scores from the checkpoint and fills the memory alone.
    """

    def before_train(self, runner: Any) -> None:
        """Run the training images through the detector in evaluation mode."""
        model = getattr(runner.model, "module", runner.model)
        runner.logger.info("LOCE passes over the training images before the first iteration.")
        model.eval()
        # In training mode the loss takes note of the scores; every process has as many batches.
        model.roi_head.bbox_head.loss_cls.loss.train(runner.iter == 0)
        model.roi_head.filling = True
        with torch.no_grad():
            for batch in runner.train_dataloader:
                data = model.data_preprocessor(batch, True)
                model.loss(data["inputs"], data["data_samples"])
        model.roi_head.filling = False
        model.train()


def _distinct(boxes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.unique(torch.cat((boxes, labels[:, None].to(boxes)), dim=1), dim=0)
    return rows[:, :4], rows[:, 4].long()


def _offsets(boxes: Tensor, targets: Tensor) -> Tensor:
    """What a box regression without weights should answer to move `boxes` onto `targets`."""
    sides, wanted = ((b[:, 2:] - b[:, :2]).clamp(min=1e-3) for b in (boxes, targets))
    middles, aims = ((b[:, 2:] + b[:, :2]) / 2 for b in (boxes, targets))
    return torch.cat(((aims - middles) / sides, (wanted / sides).log()), dim=1)


def _instances(sampling_results: Sequence[Any]) -> Tensor:
    """A number for the object of each sampled region, different in each image; -1 for the background."""
    numbers, start = [], 0
    for sample in sampling_results:
        own = sample.pos_assigned_gt_inds + start
        numbers += [own, own.new_full((len(sample.neg_priors),), -1)]
        start += int(sample.num_gts)
    return torch.cat(numbers)
