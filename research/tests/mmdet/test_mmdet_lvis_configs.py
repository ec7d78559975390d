"""The LVIS configurations of the paper build, and their logits are found; their weights, gigabytes, are not made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from logn.models.layer import count_columns, find_modules
from logn.models.locate import locate_logits

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from mmdet.registry import MODELS
from mmdet.utils import register_all_modules
from mmengine.config import Config

register_all_modules()
CONFIGS = Path(__import__("mmdet").__file__).parent / ".mim" / "configs"
ROOT = Path(__file__).parents[3]
LVIS = 1203
# MMDetection has the paper's schedules under the name of another loss; the paper's models have cross-entropy.
SCHEDULES = "seesaw_loss/{}_fpn_seesaw-loss{}_{}-ms-2x_lvis-v1.py"
MODELS_OF_THE_PAPER = ["mask-rcnn_r50", "mask-rcnn_r101", "cascade-mask-rcnn_r101"]


def heads_of(part):
    return part if isinstance(part, list) else [part]


def paper_config(name, sampling, *, normed_classifier, normed_mask):
    config = Config.fromfile(CONFIGS / SCHEDULES.format(name, "-normed-mask" if normed_mask else "", sampling))
    for head in heads_of(config.model.roi_head.bbox_head):
        head.loss_cls = {"type": "CrossEntropyLoss", "use_sigmoid": False, "loss_weight": 1.0}
        head.cls_predictor_cfg = (
            {"type": "NormedLinear", "temperature": 20} if normed_classifier else {"type": "Linear"}
        )
    return config


def build(config):
    with torch.device("meta"):
        return MODELS.build(config.model)


@pytest.mark.parametrize("normed_mask", [False, True])
@pytest.mark.parametrize("normed_classifier", [False, True])
@pytest.mark.parametrize("sampling", ["random", "sample1e-3"])
@pytest.mark.parametrize("name", MODELS_OF_THE_PAPER)
def test_models_of_the_paper(name, sampling, normed_classifier, normed_mask):
    config = paper_config(name, sampling, normed_classifier=normed_classifier, normed_mask=normed_mask)
    assert (config.train_dataloader.dataset.get("type") == "ClassBalancedDataset") == (sampling == "sample1e-3")
    model = build(config)
    layer = locate_logits(model, num_columns=LVIS + 1)
    stages = 3 if "cascade" in name else 1
    assert (layer.background, layer.activation, layer.num_stages) == (-1, "softmax", stages)
    assert {type(module).__name__ for module in find_modules(model, layer)} == {
        "NormedLinear" if normed_classifier else "Linear"
    }
    mask_heads = heads_of(model.roi_head.mask_head) if stages == 1 else list(model.roi_head.mask_head)
    assert {type(head.conv_logits).__name__ for head in mask_heads} == {"NormedConv2d" if normed_mask else "Conv2d"}


@pytest.mark.parametrize("path", sorted((ROOT / "examples/mmdetection").glob("*_lvis.py")), ids=lambda path: path.stem)
def test_the_configurations_of_table_1_have_the_recipe_of_the_paper(path):
    config = Config.fromfile(path)
    assert (config.train_dataloader.dataset.type == "ClassBalancedDataset") == ("rfs" in path.stem)
    assert (config.train_dataloader.batch_size, config.train_cfg.max_epochs) == (2, 24)
    optimizer = config.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.momentum, optimizer.weight_decay) == ("SGD", 0.02, 0.9, 0.0001)
    model = build(config)
    layer = locate_logits(model, num_columns=LVIS + 1)
    assert layer.num_stages == (3 if "cascade" in path.stem else 1)
    assert {type(module).__name__ for module in find_modules(model, layer)} == {"NormedLinear"}
    for head in heads_of(config.model.roi_head.bbox_head):
        assert head.loss_cls.type == "CrossEntropyLoss"
    for head in heads_of(config.model.roi_head.mask_head):
        assert head.predictor_cfg.type == "NormedConv2d"


@pytest.mark.parametrize("name", ["mask_rcnn_r50", "mask_rcnn_r101"])
def test_the_configurations_of_loce_have_a_linear_classifier_and_a_normed_mask(name):
    config = Config.fromfile(ROOT / f"examples/mmdetection/{name}_random_lvis_normed_mask.py")
    model = build(config)
    assert type(model.roi_head.bbox_head.fc_cls).__name__ == "Linear"
    assert type(model.roi_head.mask_head.conv_logits).__name__ == "NormedConv2d"


LINEAR = sorted((ROOT / "examples/mmdetection").glob("*_lvis_linear.py"))


@pytest.mark.parametrize("path", LINEAR, ids=lambda path: path.stem)
def test_the_configurations_of_the_row_ce_are_linear(path):
    config = Config.fromfile(path)
    normed = Config.fromfile(path.with_name(path.name.replace("_linear", "")))
    assert config.train_dataloader == normed.train_dataloader
    assert config.optim_wrapper == normed.optim_wrapper
    model = build(config)
    layer = locate_logits(model, num_columns=LVIS + 1)
    assert {type(module).__name__ for module in find_modules(model, layer)} == {"Linear"}
    assert not any(type(module).__name__ == "NormedConv2d" for module in model.modules())
    for head in heads_of(config.model.roi_head.bbox_head):
        assert head.loss_cls.type == "CrossEntropyLoss"


@pytest.mark.parametrize("path", sorted((CONFIGS / "lvis").glob("*v1.py")), ids=lambda path: path.stem)
def test_lvis_configurations_of_the_framework(path):
    model = build(Config.fromfile(path))
    assert count_columns(model, locate_logits(model)) == LVIS + 1


@pytest.mark.parametrize("path", sorted((CONFIGS / "seesaw_loss").glob("*.py")), ids=lambda path: path.stem)
def test_seesaw_configurations_of_the_framework(path):
    model = build(Config.fromfile(path))
    layer = locate_logits(model)
    assert (count_columns(model, layer), layer.extra_columns, layer.background) == (LVIS, 2, None)
