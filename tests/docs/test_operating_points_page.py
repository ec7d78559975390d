"""The page on operating points works by copy and paste."""

import subprocess
import sys
from pathlib import Path

import pytest

import logn

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operating-points.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


def test_the_page_can_be_pasted(tmp_path, blocks, shell):
    make, use = blocks("python")
    (command,), (shown,) = blocks("sh"), blocks("text")
    subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True)
    printed = shell(command, tmp_path)
    assert shown.strip() in printed
    assert "on the other half" in printed  # a title of two lines
    points = logn.OperatingPoints.load(tmp_path / "points.json")
    assert points.thresholds[0] > points.thresholds[2]  # rare classes score low
    assert points.affine(0.25) == logn.ClassAffine.load(tmp_path / "points.safetensors")
    subprocess.run([sys.executable, "-c", use], cwd=tmp_path, check=True)
    assert logn.OperatingPoints.load(tmp_path / "points.json").target == "fppi=0.2"
