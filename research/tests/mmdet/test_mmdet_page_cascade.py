"""The commands of the page that trains Table 1 run as they are typed: Cascade R101. Run by `make test-mmdet`."""

from __future__ import annotations

import pytest
import torch
from mmengine.runner import CheckpointLoader

from logn.methods.affine import ClassAffine

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from mmengine.config import Config

NAME = "cascade_mask_rcnn_r101_random_lvis"
STAGES = 3


@pytest.fixture(scope="module")
def page(tmp_path_factory, page_shell):
    return page_shell(tmp_path_factory.mktemp("page"), NAME)


def weights(path):
    return CheckpointLoader.load_checkpoint(str(path), map_location="cpu")["state_dict"]


def test_logn_and_loga_of_a_cascade(page):
    _, *tests = page.run("LogN and LogA", block=0)
    plain, logn, _, loga = tests
    for output in (plain, logn, loga, *page.run("LogN and LogA", block=1)):
        assert "lvis/segm_APf" in page.metrics(output)
    for name in ("logn", "official"):
        maps = [ClassAffine.load(page.runs / NAME / name / f"map.{stage}.safetensors") for stage in range(STAGES)]
        assert len({tuple(affine.shift) for affine in maps}) == STAGES


@pytest.mark.parametrize(("row", "run"), [("EQL", "eql"), ("EQL v2", "eql-v2"), ("Seesaw", "seesaw")])
def test_a_loss_on_a_cascade(page, row, run):
    train, plain, recommended = page.run(row)
    assert "[1][2/2]" in train
    for output in (plain, recommended):
        assert "lvis/segm_AP" in page.metrics(output)
    trained = weights(page.runs / f"{NAME}_{run}" / "epoch_1.pth")
    for stage in range(STAGES):
        bias = trained[f"roi_head.bbox_head.{stage}.fc_cls.bias"].numpy()
        assert bias == pytest.approx(0 if run == "seesaw" else -6.9068, abs=0.01)


def test_bags_in_two_processes(page):
    """Parameters that are frozen after the processes agreed on their gradients fail in the second iteration."""
    assert "[1][2/2]" in page.run("CE")[0]
    (page.runs / f"{NAME}_linear" / "epoch_2.pth").symlink_to("epoch_1.pth")
    train, plain, recommended = page.run("BAGS", processes=2, epochs=2)
    assert "[2][1/1]" in train
    assert "Distributed training: True" in train
    for output in (plain, recommended):
        assert "lvis/segm_AP" in page.metrics(output)
    run = page.runs / f"{NAME}_bags"
    before, after = weights(page.runs / f"{NAME}_linear" / "epoch_1.pth"), weights(run / "epoch_2.pth")
    moved = {
        name
        for name in before.keys() & after.keys()
        if before[name].shape != after[name].shape or not torch.equal(before[name], after[name])
    }
    layers = {f"roi_head.bbox_head.{stage}.fc_cls" for stage in range(STAGES)}
    assert {name.rpartition(".")[0] for name in moved} == layers
    config = Config.fromfile(run / f"{NAME}_linear.py")
    assert (config.param_scheduler[1].milestones, config.optim_wrapper.optimizer.lr) == ([8, 11], 0.01)
