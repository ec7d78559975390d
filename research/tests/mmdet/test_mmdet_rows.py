"""Parts of the rows of the paper's table in MMDetection, on a small model. Run by `make test-mmdet`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import logn

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

import logn_research.mmdetection  # noqa: F401 - registers the losses
from logn_research.mmdetection_statistics import official_statistics
from mmdet.registry import MODELS
from mmengine.config import Config
from mmengine.runner import Runner

from logn.statistics.head import Head


def with_loss(config, loss):
    """The configuration with a loss of ours, as `train.py` writes it."""
    root = Path(config.train_dataloader.dataset.dataset.data_root)
    config = Config(config.to_dict())
    config.model.type = "LongTailRCNN"
    head = config.model.roi_head.bbox_head
    head.type, head.cls_predictor_cfg = "LongTailBBoxHead", {"type": "Linear"}
    head.loss_cls = {"type": "LongTailLoss", "loss": loss, "counts": str(root / "train.json")}
    if loss == "loce":
        config.model.roi_head.update(type="EquilibriumRoIHead", feature_memory=True)
    return config


@pytest.mark.parametrize("loss", ["eql", "eql-v2", "bags", "loce", "seesaw", "cross-entropy"])
def test_the_layer_of_a_loss_gives_what_the_framework_decodes(loss, config):
    """An attached shift of a class moves its scores and no other's (but for the softmax), whatever the loss."""
    model = MODELS.build(with_loss(config, loss).model).eval()
    model.init_weights()
    layer = logn.locate_logits(model)
    assert layer.path == "roi_head.bbox_head.loss_cls.loss.test_logits"
    head = model.roi_head.bbox_head.loss_cls
    rows = torch.randn(5, head.loss.layout.columns)
    before = head.get_activation(rows)
    scale, shift = np.ones(layer.num_columns), np.zeros(layer.num_columns)
    shift[2] = 1.0
    handle = logn.attach(model, layer, logn.ClassAffine(scale, shift, head=Head(background=layer.background)))
    after = head.get_activation(rows)
    assert (after[:, 2] > before[:, 2]).all()
    handle.remove()
    assert torch.equal(head.get_activation(rows), before)


@pytest.mark.parametrize("loss", ["eql-v2", "bags"])
def test_the_line_of_the_configuration_corrects_a_loss(loss, config, tmp_path):
    """The hook finds the logits of the loss, which are not the columns of the class layer, and removes its map."""
    tested = with_loss(config, loss)
    saved = tmp_path / "map.safetensors"
    tested.custom_hooks = [{"type": "logn.callbacks.LogNHook", "method": "logn", "save_to": str(saved)}]
    tested.work_dir = str(tmp_path)
    runner = Runner.from_cfg(tested)
    assert runner.test()
    head = runner.model.roi_head.bbox_head.loss_cls.loss
    affine = logn.ClassAffine.load(saved)
    assert len(affine.scale) == head.layout.test_columns(head.num_classes)
    assert (affine.scale[: head.num_classes] != 1).all()
    assert not head.test_logits._forward_hooks


def test_loce_fills_its_scores_and_memory_before_it_trains(config, tmp_path):
    config = with_loss(config, "loce")
    config.custom_hooks = [{"type": "FillScoresHook"}]
    config.train_cfg.max_epochs = 0
    config.work_dir = str(tmp_path)
    runner = Runner.from_cfg(config)
    runner.train()
    head = runner.model.roi_head
    classes = (head.bbox_head.loss_cls.loss.mean_score != 0.01).nonzero()[:, 0].tolist()
    assert classes
    assert all(len(head.memory.features_of(number)) for number in classes)
    assert runner.model.training


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
