"""Each loss of the paper's table trains, is tested and is corrected in MMDetection. Run by `make test-mmdet`."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import logn

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from logn_research.mmdetection import MemoryRoIHead, logit_layer, official_statistics
from mmengine.config import Config
from mmengine.runner import Runner

ROOT = Path(__file__).parents[3]
TRAIN = runpy.run_path(str(ROOT / "examples" / "mmdetection" / "train.py"))


def written(config, tmp_path, **changes):
    config = Config(config.to_dict())
    config.model.roi_head.bbox_head.cls_predictor_cfg = {"type": "Linear"}
    config.merge_from_dict(changes)
    path = tmp_path / "config.py"
    config.dump(path)
    return path


@pytest.mark.parametrize("loss", ["eql", "eql-v2", "bags", "loce", "seesaw", "cross-entropy"])
def test_a_loss_trains_is_tested_and_corrected(loss, config, tmp_path):
    root = Path(config.train_dataloader.dataset.dataset.data_root)
    path = written(config, tmp_path)
    arguments = [str(path), "--loss", loss, "--counts", str(root / "train.json"), "--epochs", "1"]
    runner = TRAIN["main"]([*arguments, "--work-dir", str(tmp_path / "run")])
    head = runner.model.roi_head
    assert type(head.bbox_head.loss_cls).__name__ == "LongTailLoss"
    assert isinstance(head, MemoryRoIHead) == (loss == "loce")
    if loss == "loce":
        assert len(head.memory) > 0
        assert (head.bbox_head.loss_cls.loss.mean_score != 0.01).any()

    tested = Config.fromfile(path)
    TRAIN["use_loss"](tested, loss, str(root / "train.json"))
    tested.load_from, tested.work_dir = str(tmp_path / "run" / "epoch_1.pth"), str(tmp_path / "test")
    plain = Runner.from_cfg(tested).test()
    assert plain
    assert all(np.isfinite(value) for value in plain.values())

    tested.custom_hooks = [
        {"type": "logn.callbacks.mmdetection.LogNHook", "method": "logn", "layer": logit_layer(runner.model)}
    ]
    corrected = Runner.from_cfg(tested).test()
    assert corrected.keys() == plain.keys()


def test_official_statistics_are_those_of_sampled_regions(config, checkpoint):
    tested = Config(config.to_dict())
    tested.load_from = checkpoint
    runner = Runner.from_cfg(tested)
    runner.load_or_resume()
    loader = runner.build_dataloader(tested.train_dataloader)
    model = runner.model.eval()
    layer = logn.locate_logits(model)
    rows = []
    model.roi_head.bbox_head.register_forward_hook(lambda module, inputs, output: rows.append(output[0]))
    (moments,) = official_statistics(model, loader, layer, momentum=None)
    logits = torch.cat(rows).double()
    images = sum(len(batch["inputs"]) for batch in loader)
    assert len(logits) <= 512 * images
    np.testing.assert_allclose(moments.mean, logits.mean(0).numpy(), rtol=1e-5, atol=1e-6)
