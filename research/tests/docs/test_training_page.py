"""The page on training detectors runs: its commands, its script on two processes, and a loss of one's own."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
pytestmark = [
    pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests"),
    pytest.mark.usefixtures("one_thread"),
]


def test_the_script_trains_on_two_processes(workplace, blocks):
    script, _ = blocks("python")
    assert "iterations=1000" in script
    (workplace / "script.py").write_text(script.replace("iterations=1000", "iterations=3"))
    # The run that is there had other settings, and would be refused.
    (workplace / "runs" / "glyphs").rename(workplace / "runs" / "before")
    subprocess.run([sys.executable, "script.py"], cwd=workplace, check=True, capture_output=True)
    assert (workplace / "runs" / "glyphs" / "checkpoint.safetensors").exists()


def test_a_loss_of_ones_own_trains(workplace, blocks, run_python):
    from logn_research.training.recipes import DetectorTrainingConfig
    from logn_research.training.train import train_detector

    imports, own_loss = blocks("python")
    assert "import train_detector\n" in imports
    assert "import DetectorTrainingConfig\n" in imports
    run_python(
        own_loss,
        {"train_detector": train_detector, "DetectorTrainingConfig": partial(DetectorTrainingConfig, iterations=1)},
    )
    assert (workplace / "runs" / "smoothed" / "checkpoint.safetensors").exists()


def test_the_commands_draw_and_train_detector(tmp_path, monkeypatch, blocks, run_logn):
    for package in ("torchvision", "PIL", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    commands, _, _ = blocks("sh")
    ours, for_lvis, _ = commands.partition("logn train lvis")
    assert for_lvis
    few = "logn data glyphs --classes 6 --train 16 --dev 1 --test 1 --size 64 --workers 1"
    run_logn(ours, shorter={"logn data glyphs": few, "--processes 2": "--iterations 1"})
    assert (tmp_path / "runs" / "glyphs" / "log.jsonl").exists()


def test_the_light_detector_trains_collects_and_predicts(workplace, blocks, run_logn):
    import torch
    from torchvision.models import mobilenet_v2

    _, commands, _ = blocks("sh")
    (workplace / "glyphs").rename(workplace / "photos")
    torch.save(mobilenet_v2().state_dict(), workplace / "mobilenet_v2.pth")
    run_logn(commands, shorter={"-m light": "-m light --image-size 64 --iterations 1 --batch 2"})
    assert (workplace / "runs" / "photos" / "predictions").exists()


def test_the_backbones_and_their_packages_are_those_of_the_page():
    from logn_research.training.backbones import PACKAGES
    from logn_research.training.settings import LIGHT_BACKBONES, MODELS

    text = PAGE.read_text(encoding="utf-8")
    rows = [
        line.split("|")[1:3]
        for line in text.splitlines()
        if line.startswith(tuple(f"| `{b}`" for b in LIGHT_BACKBONES))
    ]
    assert [name.split("`")[1] for name, _ in rows] == list(LIGHT_BACKBONES)
    assert [package.strip(" `") for _, package in rows] == [PACKAGES.get(b, ("", "", ""))[2] for b in LIGHT_BACKBONES]
    assert all(f"| `{model}` |" in text for model in MODELS)


def test_the_line_of_the_log_has_the_fields_of_the_page(workplace, blocks):
    (shown,) = blocks("json")
    written = (workplace / "runs" / "glyphs" / "log.jsonl").read_text().splitlines()[-1]
    assert json.loads(shown).keys() <= json.loads(written).keys()
