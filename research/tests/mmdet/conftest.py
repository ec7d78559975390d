"""A small Mask R-CNN of MMDetection on glyph scenes, and what the released `lvis` package needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
from logn_research.datasets.glyphs.settings import GlyphSettings

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.runner import Runner

register_all_modules()
CONFIGS = Path(__import__("mmdet").__file__).parent / ".mim" / "configs"
CLASSES = 8
TRAIN_IMAGES = 24


def small_mask_rcnn(config):
    """The framework's Mask R-CNN with few channels, its classifier normed as in the paper."""
    model = config.model
    model.backbone.update(depth=18, base_channels=8, init_cfg=None, frozen_stages=-1)
    model.neck.update(in_channels=[8, 16, 32, 64], out_channels=32)
    model.rpn_head.update(in_channels=32, feat_channels=32)
    model.rpn_head.anchor_generator.scales = [4]
    heads = model.roi_head
    heads.bbox_roi_extractor.out_channels = heads.mask_roi_extractor.out_channels = 32
    heads.bbox_head.update(in_channels=32, fc_out_channels=64, num_classes=CLASSES)
    heads.bbox_head.cls_predictor_cfg = {"type": "NormedLinear", "temperature": 20}
    heads.mask_head.update(in_channels=32, conv_out_channels=16, num_convs=1, num_classes=CLASSES)
    model.test_cfg.rpn.update(nms_pre=100, max_per_img=50)
    # The paper's margin lowers the scores of all classes: a threshold could leave nothing to evaluate.
    model.test_cfg.rcnn.update(score_thr=0.0, max_per_img=50)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    root = tmp_path_factory.mktemp("glyphs")
    settings = GlyphSettings(classes=CLASSES, train=TRAIN_IMAGES, dev=2, test=8, size=64)
    generate_glyph_scenes(root, settings)
    names = [category["name"] for category in json.loads((root / "train.json").read_text())["categories"]]
    config = Config.fromfile(CONFIGS / "lvis" / "mask-rcnn_r50_fpn_sample1e-3_ms-1x_lvis-v1.py")
    small_mask_rcnn(config)
    common = {"data_root": f"{root}/", "metainfo": {"classes": names}}
    config.train_dataloader.update(batch_size=4, num_workers=0, persistent_workers=False)
    config.train_dataloader.dataset.dataset.update(ann_file="train.json", **common)
    for step in config.train_dataloader.dataset.dataset.pipeline:
        if step.type == "RandomChoiceResize":
            step.scales = [(96, 96), (128, 128)]
    config.test_dataloader.update(batch_size=2, num_workers=0, persistent_workers=False)
    config.test_dataloader.dataset.update(ann_file="test.json", **common)
    for step in config.test_dataloader.dataset.pipeline:
        if step.type == "Resize":
            step.scale = (128, 128)
    config.test_evaluator.update(ann_file=str(root / "test.json"))
    config.val_dataloader = config.val_cfg = config.val_evaluator = None
    config.train_cfg = {"type": "EpochBasedTrainLoop", "max_epochs": 2}
    config.randomness = {"seed": 0}
    config.work_dir = str(tmp_path_factory.mktemp("work"))
    config.default_hooks.logger.interval = 1
    config.env_cfg.mp_cfg.mp_start_method = "spawn"
    return config


@pytest.fixture(autouse=True)
def numpy_of_lvis(monkeypatch):
    # The released `lvis` package says numpy.float, which NumPy 1.24 removed.
    monkeypatch.setattr(np, "float", float, raising=False)


@pytest.fixture(scope="module")
def checkpoint(config):
    runner = Runner.from_cfg(config)
    runner.train()
    return str(Path(config.work_dir) / "epoch_2.pth")
