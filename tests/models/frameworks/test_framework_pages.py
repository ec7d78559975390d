"""The examples of the frameworks run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# The others need more than can be installed beside the pinned torch, or data: `make test-mmdet` runs MMDetection's,
# `make test-engines` that of the engines.
RUNNING = {
    "transformers_detector.py": ("transformers", "class logits: model.decoder.class_embed.1, background None, sigmoid"),
    "timm_classifier.py": ("timm", "class logits: head, head_dist"),
    "ultralytics_yolo.py": ("ultralytics", "folded in 2 maps of 80 classes"),
}


@pytest.mark.parametrize("script", RUNNING)
def test_the_examples_run(script, capsys):
    package, said = RUNNING[script]
    pytest.importorskip(package, reason="the extra `frameworks` is not installed")
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    printed = capsys.readouterr().out
    assert said in printed
    assert float(re.search(r"largest difference .*: (\S+)", printed)[1]) < 1e-2
