"""Mask R-CNN, ResNet-50, random sampling, LVIS v1; linear classifier and normed mask: the first stage of LOCE."""

_base_ = "mask_rcnn_r50_random_lvis.py"

model = {"roi_head": {"bbox_head": {"cls_predictor_cfg": {"_delete_": True, "type": "Linear"}}}}
