"""Mask R-CNN, ResNet-101, repeat factor sampling, LVIS v1; cross-entropy, normed classifier and mask."""

_base_ = "mmdet::seesaw_loss/mask-rcnn_r101_fpn_seesaw-loss-normed-mask_sample1e-3-ms-2x_lvis-v1.py"

model = {
    "roi_head": {
        "bbox_head": {
            "loss_cls": {"_delete_": True, "type": "CrossEntropyLoss", "use_sigmoid": False, "loss_weight": 1.0}
        }
    }
}
