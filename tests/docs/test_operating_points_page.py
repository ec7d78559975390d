"""The page on operating points works by copy and paste, and its results are those of the committed data."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import logn

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operating-points.md"
SCRIPT = ROOT / "benchmarks" / "operating_points.py"
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


@pytest.fixture
def script():
    if not SCRIPT.exists():
        pytest.skip("the benchmarks are not beside the tests")
    spec = importlib.util.spec_from_file_location("operating_points_script", SCRIPT)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_results_are_those_of_the_data(script):
    measured = json.loads(script.DATA.read_text()) if script.DATA.exists() else []
    text = PAGE.read_text(encoding="utf-8")
    assert script.page_with(text, script.results(measured)) == text


def test_a_source_is_measured_once(script, tmp_path, monkeypatch):
    source = script.Source("one", ("a", "b"), ("c", "d"), None)
    calls = []
    row = {way: {title: 0.5 for title, *_ in script.COLUMNS} for way in script.WAYS}
    made = {"name": "one", "methods": dict.fromkeys(script.METHODS, row)}
    monkeypatch.setattr(script, "measure", lambda source: calls.append(source) or made)
    for _ in range(2):
        assert script.measured_once(source, tmp_path / "new") == made
    assert len(calls) == 1
    assert "| no correction | one threshold | 50.0 | 50.0 | 50.0 |" in script.results([made])
