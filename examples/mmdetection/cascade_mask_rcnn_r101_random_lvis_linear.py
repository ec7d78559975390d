"""Cascade Mask R-CNN, ResNet-101, random sampling, LVIS v1; linear classifier and mask: the row "CE"."""

_base_ = "cascade_mask_rcnn_r101_random_lvis.py"

stages = _base_.model.roi_head.bbox_head
for stage in stages:
    stage.cls_predictor_cfg = {"type": "Linear"}
masks = _base_.model.roi_head.mask_head
for mask in masks if isinstance(masks, list) else [masks]:
    mask.predictor_cfg = {"type": "Conv"}
model = {"roi_head": {"bbox_head": stages, "mask_head": masks}}
del stage, mask
