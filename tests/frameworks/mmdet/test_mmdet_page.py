"""The commands of MMDetection's page, from predictions to the report."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
from logn_research.datasets.glyphs.settings import GlyphSettings
from safetensors.torch import load_file

from logn.cli.main import execute
from logn.evaluate.store.store import PredictionStore

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/how-to/mmdetection.md"
MODEL = """
import json, pathlib, runpy
from mmengine.config import Config

def build():
    small = runpy.run_path({models!r})
    model = small["build"](small["small"]("mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py", classes=small["fewer_classes"]))
    names = [category["name"] for category in json.loads(pathlib.Path("train.json").read_text())["categories"]]
    steps = [
        dict(type="LoadImageFromFile"),
        dict(type="Resize", scale=(64, 64), keep_ratio=True),
        dict(type="PackDetInputs", meta_keys=("img_id", "ori_shape", "img_shape", "scale_factor")),
    ]
    model.cfg = Config(dict(test_dataloader=dict(dataset=dict(pipeline=steps))))
    model.dataset_meta = dict(classes=names)
    return model
"""


def test_the_commands_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    generate_glyph_scenes(tmp_path, GlyphSettings(classes=6, train=12, dev=2, test=4, size=64))
    (tmp_path / "test.json").rename(tmp_path / "val.json")
    (tmp_path / "my_detector.py").write_text(MODEL.format(models=str(HERE / "test_mmdet_models.py")))
    page = PAGE.read_text(encoding="utf-8")
    block = re.search(r"```console\n(\$ logn predict my_detector.*?)```", page, re.DOTALL)[1]
    commands = [shlex.split(line.removeprefix("$ ")) for line in block.splitlines()]
    assert [command[1] for command in commands] == ["predict", "collect", "compare", "report"]
    for command in commands:
        assert execute(command[1:]) == 0
    store = PredictionStore("predictions")
    assert (len(store), store.header.background, store.header.class_boxes) == (4, -1, True)
    assert (tmp_path / "comparison" / "report.html").is_file()


def test_the_first_command_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "my_detector", raising=False)
    generate_glyph_scenes(tmp_path, GlyphSettings(classes=6, train=12, dev=1, test=1, size=64))
    (tmp_path / "images").rename(tmp_path / "train")
    (tmp_path / "my_detector.py").write_text(MODEL.format(models=str(HERE / "test_mmdet_models.py")))
    page = PAGE.read_text(encoding="utf-8")
    command = shlex.split(re.search(r"```console\n\$ (logn correct .*?)```", page, re.DOTALL)[1])
    assert execute([*command[1:], "--method", "logn"]) == 0  # random weights have no tail that asks for one
    weights = load_file("corrected.safetensors")
    before = sys.modules["my_detector"].build().state_dict()
    changed = {name for name, values in before.items() if not torch.equal(values, weights[name])}
    assert changed == {f"roi_head.bbox_head.fc_cls.{kind}" for kind in ("weight", "bias")}
