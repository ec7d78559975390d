"""A small Mask R-CNN of MMDetection on glyph scenes, the commands of the page, and what the `lvis` package needs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
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


ROOT = Path(__file__).parents[3]
PAGE = ROOT / "research" / "docs" / "mmdetection.md"
# What the trainings of the page get besides: small images, no workers, no pretrained backbone. Their runs keep it.
PARTS = ("train_dataloader", "val_dataloader", "test_dataloader")
OPTIONS = [
    *(f"{part}.{option}" for part in PARTS for option in ("num_workers=0", "persistent_workers=False")),
    "train_dataloader.dataset.pipeline.2.scales=[(48,48)]",
    *(f"{part}.dataset.pipeline.1.scale=(48,48)" for part in PARTS[1:]),
    "model.backbone.init_cfg=None",
]


def tiny_lvis():
    spec = importlib.util.spec_from_file_location("tiny_lvis", Path(__file__).with_name("tiny_lvis.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class PageShell:
    """A folder with `examples` and `data/lvis_v1`, in which the commands of the page are typed."""

    def __init__(self, folder, name):
        self.folder, self.name, self.done = folder, name, {}
        (folder / "examples").symlink_to(ROOT / "examples")
        tiny_lvis().write_tiny_lvis(folder / "data" / "lvis_v1")
        text = PAGE.read_text(encoding="utf-8")
        self.sections = dict(re.findall(r"^##+ ([^\n]+)\n(.*?)(?=^##|\Z)", text, flags=re.M | re.S))

    def run(self, section, *, processes=1, epochs=1, block=None):
        """Type the commands of a section (or of one of its blocks), once; the output of each is returned.

        Only trainings have several processes here: in a test each has 300 masks of 1,203 classes, some gigabytes.
        """
        if (section, block) not in self.done:
            blocks = re.findall(r"(?:^    .*\n)+", self.sections[section], flags=re.M)
            lines = blocks[block].splitlines() if block is not None else "".join(blocks).splitlines()
            lines = [line.strip() for line in lines]
            counts = [processes if line.startswith("train ") else 1 for line in lines]
            self.done[section, block] = [
                self.type(line, count, epochs) for line, count in zip(lines, counts, strict=True)
            ]
        return self.done[section, block]

    def type(self, line, processes=1, epochs=1):
        """Run a line in a shell, after the definitions of the page."""
        (start,) = re.findall(r"(?:^    .*\n)+", self.sections["Every row by its own commands"], flags=re.M)
        # Two iterations; each row is tested by a command of its own, so not after the training as well.
        options = shlex.join([*OPTIONS, f"train_cfg.max_epochs={epochs}", f"train_cfg.val_begin={epochs + 1}"])
        start = start.replace("--nproc-per-node 8", f"--nproc-per-node {processes}")
        start = start.replace("--launcher pytorch; }", f"--launcher pytorch --cfg-options {options}; }}")
        start = start.replace("name=mask_rcnn_r50_random_lvis", f"name={self.name}")
        line = re.sub(r"epoch_\d+\.pth", f"epoch_{epochs}.pth", line)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            ["bash", "-euc", f"{start}\n{line}"],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return done.stdout + done.stderr

    @property
    def runs(self):
        return self.folder / "runs" / "table1"

    def metrics(self, output):
        """The metrics that a test printed."""
        (line,) = re.findall(r"^\{.*\}$", output, flags=re.M)
        return json.loads(line)


@pytest.fixture(scope="session")
def page_shell():
    """Makes a shell for the commands of the page: `page_shell(folder, name)`."""
    return PageShell
