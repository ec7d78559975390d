"""The how-to pages show code that runs: every block stands in the example, and the examples run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {"torchvision.md": "torchvision_detector.py", "classifiers.md": "classifier.py"}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_is_in_the_example(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to" / page).read_text(), re.DOTALL)
    script = (ROOT / "examples" / PAGES[page]).read_text()
    assert blocks
    for block in blocks:
        assert block in script


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
