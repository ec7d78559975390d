"""LogNHook with a runner that stands in for mmengine's; `make test-mmdet` runs it in a real one."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

import logn
from logn.callbacks.mmdetection import LogNHook, training_images
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.layer import LogitLayer


class Detector(nn.Module):
    def __init__(self, stages=2):
        super().__init__()
        self.fc_cls = nn.ModuleList(nn.Linear(3, 4) for _ in range(stages))

    def test_step(self, batch):
        return [stage(batch["inputs"]) for stage in self.fc_cls]


class Runner:
    """What of mmengine's runner the hook uses."""

    def __init__(self, model, loader=()):
        self.model, self.rank, self.logger = model, 0, logging.getLogger("runner")
        self.loader, self.built = list(loader), []
        train = {"type": "RepeatDataset", "dataset": {"type": "Set", "ann_file": "train.json"}}
        test = {"type": "Set", "ann_file": "test.json", "pipeline": [{"type": "Resize"}]}
        self.cfg = {"train_dataloader": {"batch_size": 8, "dataset": train}}
        self.cfg["test_dataloader"] = {"batch_size": 1, "dataset": test}

    def build_dataloader(self, config):
        self.built.append(config)
        return self.loader


def batches():
    generator = torch.Generator().manual_seed(0)
    return [{"inputs": torch.rand(8, 3, generator=generator), "data_samples": [object()]} for _ in range(3)]


def last_stage(runner):
    with torch.inference_mode():
        return torch.cat([runner.model.test_step(batch)[1] for batch in batches()])


LAYER = {"path": ("fc_cls.0", "fc_cls.1"), "background": -1, "stages": True}


def test_it_corrects_the_model_before_the_test_and_restores_it_after(tmp_path):
    torch.manual_seed(0)
    runner = Runner(Detector(), batches())
    hook = LogNHook(method="logn", margin=0.0, layer=LAYER, save_to=str(tmp_path / "maps" / "map.safetensors"))
    plain = last_stage(runner)
    hook.before_test(runner)
    mapped = last_stage(runner)
    hook.after_test(runner)
    after = last_stage(runner)
    np.testing.assert_allclose(mapped[:, :3].mean(dim=0), 0.0, atol=1e-4)
    np.testing.assert_array_equal(mapped[:, 3], plain[:, 3])
    np.testing.assert_array_equal(after, plain)
    (built,) = runner.built
    steps = {"pipeline": [{"type": "Resize"}], "test_mode": True}
    assert built["dataset"] == {"type": "Set", "ann_file": "train.json", **steps}
    assert (built["batch_size"], built["sampler"]["round_up"]) == (1, False)
    maps = [str(tmp_path / "maps" / f"map.{stage}.safetensors") for stage in range(2)]
    np.testing.assert_allclose(ClassAffine.load(maps[1])(plain), mapped, atol=1e-5)

    # The saved maps do the same without collecting; a test that was cut short leaves no map behind for the next.
    again = LogNHook(maps=maps, layer=LogitLayer(**LAYER))
    again.before_test(runner)
    again.before_test(runner)
    np.testing.assert_allclose(last_stage(runner), mapped, atol=1e-5)
    assert len(runner.built) == 1


def hook_map(tmp_path, **options):
    torch.manual_seed(0)
    runner, path = Runner(Detector(stages=1), batches()), tmp_path / "map.safetensors"
    LogNHook(layer=LogitLayer("fc_cls.0", background=-1), save_to=str(path), **options).before_test(runner)
    return ClassAffine.load(path)


@pytest.mark.parametrize(
    "options", [{}, {"strength": 1.0}, {"method": "logn"}, {"method": "logn", "margin": -4}, {"method": "p2p"}]
)
def test_its_map_is_that_of_calibrate_with_the_same_options(tmp_path, options):
    found = hook_map(tmp_path, **options)
    torch.manual_seed(0)
    layer, model = LogitLayer("fc_cls.0", background=-1), Detector(stages=1)
    forward = {"forward": lambda model, batch: model.test_step(batch)}
    wanted = logn.calibrate(model, batches(), layer=layer, **forward, **options).affine
    np.testing.assert_array_equal(found.scale, wanted.scale)
    np.testing.assert_array_equal(found.shift, wanted.shift)


def test_the_number_of_batches_and_the_loader_can_be_given():
    runner = Runner(Detector(stages=1))
    layer = LogitLayer("fc_cls.0", background=-1)
    taken = []

    def loader():
        for batch in batches():
            taken.append(batch)
            yield batch

    LogNHook(dataloader=loader(), num_batches=2, layer=layer).before_test(runner)
    assert len(taken) == 2
    assert not runner.built


def test_a_configuration_without_one_training_set_is_refused():
    for train in (None, {"dataset": {"type": "ConcatDataset", "datasets": []}}):
        with pytest.raises(InputError, match="`dataloader`"):
            training_images(train, {"dataset": {}})
