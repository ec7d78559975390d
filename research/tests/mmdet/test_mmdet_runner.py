"""MMDetection's own loops on glyph scenes: train a little, then collect, attach and evaluate by one hook."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from logn.methods.affine import ClassAffine
from logn.methods.logit_normalization import logit_normalization
from logn.models.layer import find_modules
from logn.models.locate import locate_logits
from logn.statistics.moments import ClassMoments

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from mmengine.runner import Runner

ROOT = Path(__file__).parents[3]
CLASSES = 8
TRAIN_IMAGES = 24


def test_the_hook_collects_attaches_and_lets_the_framework_evaluate(config, checkpoint, tmp_path):
    tested = config.copy()
    tested.load_from = checkpoint
    plain = Runner.from_cfg(tested).test()

    tested.custom_hooks = [
        {
            "type": "logn.callbacks.LogNHook",
            "method": "logn",
            "margin": "min",
            "save_to": str(tmp_path / "map.safetensors"),
        }
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
    example = str(ROOT / "examples" / "mmdetection/test.py")
    results = []
    saved, official = str(tmp_path / "map.safetensors"), str(tmp_path / "official.safetensors")
    statistics = ["--statistics", str(tmp_path / "exact.safetensors")]
    runs = (
        [*statistics, "--save-to", saved],
        ["--maps", saved],
        [*statistics],
        ["--official", "--method", "logn", "--save-to", official],
    )
    monkeypatch.syspath_prepend(ROOT / "examples" / "mmdetection")
    for extra in runs:
        arguments = [example, str(path), checkpoint, "--work-dir", str(tmp_path / "work"), *extra]
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(example, run_name="__main__")
        results.append(json.loads(capsys.readouterr().out.strip().splitlines()[-1]))
    assert results[0] == results[1] == results[2]
    assert ClassAffine.load(official).scale != pytest.approx(ClassAffine.load(saved).scale)
    assert all(np.isfinite(value) for value in results[0].values())
    assert Path(checkpoint).name == "epoch_2.pth"


def test_two_processes_end_with_the_map_of_one(config, checkpoint, tmp_path):
    path = tmp_path / "config.py"
    config.dump(path)
    maps = {}
    for name, start, launcher in (
        ("one", [sys.executable], "none"),
        ("two", [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], "pytorch"),
    ):
        saved = tmp_path / f"{name}.safetensors"
        given = [str(path), checkpoint, "--save-to", str(saved), "--launcher", launcher, "--work-dir", str(tmp_path)]
        example = str(ROOT / "examples" / "mmdetection" / "test.py")
        done = subprocess.run([*start, example, *given], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:6000]
        maps[name] = ClassAffine.load(saved)
    np.testing.assert_allclose(maps["two"].scale, maps["one"].scale, rtol=1e-6)
    np.testing.assert_allclose(maps["two"].shift, maps["one"].shift, rtol=1e-5, atol=1e-6)
