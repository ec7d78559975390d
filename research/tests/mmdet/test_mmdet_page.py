"""The commands of the page that trains Table 1 run as they are typed: Mask R-CNN R50. Run by `make test-mmdet`."""

from __future__ import annotations

import pytest
import torch
from mmengine.runner import CheckpointLoader

from logn.methods.affine import ClassAffine
from logn.statistics.moments import ClassMoments

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from mmengine.config import Config

NAME = "mask_rcnn_r50_random_lvis"
CLASSES = 1203


@pytest.fixture(scope="module")
def page(tmp_path_factory, page_shell):
    return page_shell(tmp_path_factory.mktemp("page"), NAME)


def weights(run):
    return CheckpointLoader.load_checkpoint(str(run / "epoch_1.pth"), map_location="cpu")["state_dict"]


def changed(page, run, start):
    """The modules of `run` that differ from where it started."""
    before, after = weights(page.runs / start), weights(page.runs / run)
    same_shape = {name for name in before.keys() & after.keys() if before[name].shape == after[name].shape}
    return {name for name in same_shape if not torch.equal(before[name], after[name])}


def test_ce(page):
    train, plain = page.run("CE")
    assert "[1][2/2]" in train
    assert {"lvis/bbox_AP", "lvis/segm_AP"} <= page.metrics(plain).keys()


def test_logn_and_loga(page):
    _, plain, logn, _, loga = page.run("LogN and LogA", block=0)
    official = page.run("LogN and LogA", block=1)
    recommended = page.run("LogN and LogA", block=2)
    for output in (plain, logn, loga, *official, *recommended):
        assert "lvis/segm_APf" in page.metrics(output)
    run = page.runs / NAME
    exact, sampled = (ClassMoments.load(run / f"{name}.safetensors") for name in ("exact", "official"))
    assert exact.num_columns == sampled.num_columns == CLASSES + 1
    assert "moving average" in sampled.head.population
    maps = {name: ClassAffine.load(run / name / "map.safetensors") for name in ("logn", "official", "root")}
    assert maps["root"].scale[:-1] == pytest.approx(maps["logn"].scale[:-1] ** 0.5, rel=1e-6)
    assert maps["official"].scale != pytest.approx(maps["logn"].scale)


@pytest.mark.parametrize(("row", "run"), [("EQL", "eql"), ("EQL v2", "eql-v2"), ("Seesaw", "seesaw")])
def test_a_loss(page, row, run):
    train, plain, recommended = page.run(row)
    assert "[1][2/2]" in train
    for output in (plain, recommended):
        assert "lvis/segm_AP" in page.metrics(output)
    folder = page.runs / f"{NAME}_{run}"
    assert (folder / "recommended" / "map.safetensors").is_file()
    bias = weights(folder)["roi_head.bbox_head.fc_cls.bias"]
    assert bias.numpy() == pytest.approx(0 if run == "seesaw" else -6.9068, abs=0.01)
    columns = {"eql": CLASSES, "eql-v2": CLASSES + 1, "seesaw": CLASSES + 2}
    assert len(bias) == columns[run]


@pytest.mark.parametrize(("row", "run"), [("LOCE", "loce"), ("LOCE + MFS", "mfs")])
def test_loce(page, row, run):
    page.run("LOCE")
    *_, train, plain, recommended = page.run(row)
    assert "LOCE passes over the training images" in train
    for output in (plain, recommended):
        assert "lvis/segm_AP" in page.metrics(output)
    moved = changed(page, f"{NAME}_{run}", f"{NAME}_normed_mask")
    assert {name.split(".")[-2] for name in moved} >= {"fc_cls", "fc_reg", "rpn_conv", "conv_logits"}
    assert not any(name.startswith(("backbone", "neck")) or "shared_fcs" in name for name in moved)
    config = Config.fromfile(page.runs / f"{NAME}_{run}" / f"{NAME}_normed_mask.py")
    assert (config.param_scheduler[1].milestones, config.param_scheduler[1].end) == ([3, 5], 6)
    assert config.model.roi_head.feature_memory == (run == "mfs")
    assert config.model.roi_head.mask_head.predictor_cfg.type == "NormedConv2d"


def test_the_training_of_the_authors(page):
    train, official = page.run("The training of the authors' code")
    assert "[1][2/2]" in train
    assert "lvis/segm_AP" in page.metrics(official)
    assert weights(page.runs / f"{NAME}_norm")["roi_head.bbox_head.logit_norm.num_batches_tracked"] == 2
