"""The examples of the how-to pages on torchvision and on classifiers run."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_detector_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples/torchvision_detector.py"))
    assert "roi_heads.box_predictor.cls_score: 900 proposals" in capsys.readouterr().out


def test_the_classifier_example_helps_rare_classes(capsys):
    runpy.run_path(str(ROOT / "examples/classifier.py"))
    lines = capsys.readouterr().out.splitlines()
    before, corrected, paper = (dict(zip(line.split()[-8::2], line.split()[-7::2], strict=True)) for line in lines)
    assert float(corrected["rare"]) > float(before["rare"])
    assert float(corrected["all"]) > float(before["all"])
    assert paper == corrected
