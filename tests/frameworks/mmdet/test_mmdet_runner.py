"""MMDetection's own loops on glyph scenes: train a little, then collect, attach and evaluate by one hook."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
from logn_research.datasets.glyphs.settings import GlyphSettings

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.methods.logit_normalization import logit_normalization
from logn.logits.layer import find_modules
from logn.logits.locate import locate_logits
from logn.statistics.moments import ClassMoments

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.runner import Runner

register_all_modules()
ROOT = Path(__file__).parents[3]
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


def test_the_hook_collects_attaches_and_lets_the_framework_evaluate(config, checkpoint, tmp_path):
    tested = config.copy()
    tested.load_from = checkpoint
    plain = Runner.from_cfg(tested).test()

    tested.custom_hooks = [
        {"type": "logn.deploy.mmdetection.LogNHook", "margin": "min", "save_to": str(tmp_path / "map.safetensors")}
    ]
    runner = Runner.from_cfg(tested)
    layer = locate_logits(runner.model)
    (module,) = find_modules(runner.model, layer)
    assert type(module).__name__ == "NormedLinear"
    rows = []
    head = runner.model.roi_head.bbox_head
    head.register_forward_hook(lambda module, inputs, output: rows.append(output[0]))
    metrics = runner.test()
    assert metrics.keys() == plain.keys()
    assert not module._forward_hooks
    assert len(rows) == TRAIN_IMAGES // 2 + 8 // 2

    # The map is that of the statistics over the training images, each once, by the test pipeline.
    moments = ClassMoments(CLASSES + 1)
    for logits in rows[: TRAIN_IMAGES // 2]:
        moments.update(logits)
    expected = logit_normalization(moments, background=-1, margin="min")
    saved = ClassAffine.load(tmp_path / "map.safetensors")
    np.testing.assert_allclose(saved.scale, expected.scale, rtol=1e-5)
    np.testing.assert_allclose(saved.shift, expected.shift, rtol=1e-4, atol=1e-5)


def test_the_example_tests_with_a_saved_map_as_with_a_collected_one(config, checkpoint, tmp_path, monkeypatch, capsys):
    path = tmp_path / "config.py"
    config.dump(path)
    example = str(ROOT / "examples" / "mmdetection_test.py")
    results = []
    for extra in (["--save-to", str(tmp_path / "map.safetensors")], ["--maps", str(tmp_path / "map.safetensors")]):
        arguments = [example, str(path), checkpoint, "--work-dir", str(tmp_path / "work"), *extra]
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(example, run_name="__main__")
        results.append(json.loads(capsys.readouterr().out.strip().splitlines()[-1]))
    assert results[0] == results[1]
    assert all(np.isfinite(value) for value in results[0].values())
    assert Path(checkpoint).name == "epoch_2.pth"


def test_two_processes_end_with_the_map_of_one(config, checkpoint, tmp_path):
    config = config.copy()
    # On GPUs the framework wraps the model itself, and talks by NCCL; without any it still asks for one.
    config.model_wrapper_cfg = {"type": "MMDistributedDataParallel", "broadcast_buffers": False, "device_ids": None}
    config.env_cfg.dist_cfg.backend = "gloo"
    path = tmp_path / "config.py"
    config.dump(path)
    example = tmp_path / "without_gpu.py"
    example.write_text(
        "import runpy, torch\n"
        "torch.cuda.set_device = lambda device: None\n"
        f"runpy.run_path({str(ROOT / 'examples' / 'mmdetection_test.py')!r}, run_name='__main__')\n"
    )
    maps = {}
    for name, start, launcher in (
        ("one", [sys.executable], "none"),
        ("two", [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], "pytorch"),
    ):
        saved = tmp_path / f"{name}.safetensors"
        arguments = [
            str(path),
            checkpoint,
            "--save-to",
            str(saved),
            "--launcher",
            launcher,
            "--work-dir",
            str(tmp_path),
        ]
        done = subprocess.run([*start, str(example), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:6000]
        maps[name] = ClassAffine.load(saved)
    np.testing.assert_allclose(maps["two"].scale, maps["one"].scale, rtol=1e-6)
    np.testing.assert_allclose(maps["two"].shift, maps["one"].shift, rtol=1e-5, atol=1e-6)
