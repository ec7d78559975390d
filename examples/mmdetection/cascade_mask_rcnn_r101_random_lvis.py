"""Cascade Mask R-CNN, ResNet-101, random sampling, LVIS v1; cross-entropy, normed classifier and mask."""

_base_ = "mmdet::seesaw_loss/cascade-mask-rcnn_r101_fpn_seesaw-loss-normed-mask_random-ms-2x_lvis-v1.py"

stages = _base_.model.roi_head.bbox_head
for stage in stages:
    stage.loss_cls = {"type": "CrossEntropyLoss", "use_sigmoid": False, "loss_weight": 1.0}
model = {"roi_head": {"bbox_head": stages}}
del stage
