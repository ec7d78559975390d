"""The paper's table in its own framework: our losses, LOCE's memory and the official statistics inside MMDetection.

A configuration names this module once, and its classes by their names:

    custom_imports = dict(imports=["logn_research.mmdetection"])
    model = dict(roi_head=dict(bbox_head=dict(loss_cls=dict(
        type="LongTailLoss", _delete_=True, loss="eql-v2", counts="lvis_v1_train.json"))))

`official_statistics` are those of the authors' code: a moving average over the regions that training samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.registry import MODELS
from mmdet.structures.bbox import bbox2roi
from torch import Tensor, nn

from logn.data.class_counts import ClassCounts
from logn.models.layer import LogitLayer, count_columns, find_modules
from logn.statistics.moments import ClassMoments, StatisticsMetadata
from logn_research.estimators import MovingAverage
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
        """Share of the objects' regions whose highest score is that of their class, in percent."""
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


def logit_layer(model: Any) -> LogitLayer:
    """Where a detector with a `LongTailLoss` has the logits that a correction takes.

    Args:
        model: MMDetection's two-stage detector.
    """
    loss = model.roi_head.bbox_head.loss_cls.loss
    layout = loss.layout
    return LogitLayer(
        "roi_head.bbox_head.loss_cls.loss.test_logits",
        background=layout.background,
        activation=layout.activation,
        num_columns=layout.test_columns(loss.num_classes),
    )


@MODELS.register_module()
class MemoryRoIHead(StandardRoIHead):  # type: ignore[misc]
    """MMDetection's RoI head with LOCE's memory of features, from which weak classes are drawn more often (MFS).

    Its classification loss is a `LongTailLoss` of `loce`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.memory = FeatureMemory(self.bbox_head.num_classes)

    def bbox_loss(self, x: tuple[Tensor, ...], sampling_results: Sequence[Any]) -> dict[str, Any]:
        """The loss of the sampled regions and of some that the memory recalls."""
        rois = bbox2roi([sample.priors for sample in sampling_results])
        results: dict[str, Any] = self._bbox_forward(x, rois)
        targets = self.bbox_head.get_targets(sampling_results, self.train_cfg)
        self._keep(x, sampling_results)
        wrapper = self.bbox_head.loss_cls
        instances = _instances(sampling_results)
        scores, boxes = results["cls_score"], results["bbox_pred"]
        drawn = self.memory.draw(wrapper.loss.mean_score)
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
    def _keep(self, x: tuple[Tensor, ...], sampling_results: Sequence[Any]) -> None:
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
        self.memory.add(features, classes, _offsets(torch.cat(jittered), around))


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


def official_statistics(
    model: Any, loader: Iterable[Any], layer: LogitLayer, *, momentum: float | None = 5e-5
) -> tuple[ClassMoments, ...]:
    """Statistics over the regions that training samples (512 an image) of augmented images, one for each stage.

    No weight changes. The authors' code passes one image at a time, so give a loader with a batch size of 1.

    Args:
        model: MMDetection's two-stage detector, a cascade too.
        loader: The training loader of a configuration, whose pipeline has the augmentation.
        layer: Where the logits are.
        momentum: Of the moving average; None for exact moments.
    """
    model.eval()
    modules = find_modules(model, layer)
    columns = count_columns(model, layer)
    metadata = StatisticsMetadata(
        background=layer.background, activation=layer.activation, population="sampled regions"
    )
    average = partial(MovingAverage, momentum=momentum) if momentum is not None else ClassMoments
    stages: list[Any] = [average(columns, metadata=metadata) for _ in modules]

    def listen(stage: Any) -> Callable[..., None]:
        return lambda module, inputs, output: stage.update(output[:, :columns])

    hooks = [module.register_forward_hook(listen(stage)) for module, stage in zip(modules, stages, strict=True)]
    try:
        with torch.no_grad():
            for batch in loader:
                data = model.data_preprocessor(batch, True)
                model.loss(data["inputs"], data["data_samples"])
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(stage if momentum is None else stage.moments() for stage in stages)
