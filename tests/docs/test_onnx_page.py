"""The page on ONNX files shows code that runs: in the example, and on the command line."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "onnx.md"
EXAMPLE = ROOT / "examples" / "onnx_classifier.py"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)


def test_every_block_of_python_is_in_the_example():
    script = EXAMPLE.read_text(encoding="utf-8")
    assert blocks("python")
    assert all(block in script for block in blocks("python"))


def test_the_example_helps_rare_classes(example):
    before, after = (
        dict(zip(text.split()[::2], text.split()[1::2], strict=True)) for text in (example["before"], example["after"])
    )
    assert float(after["rare"]) > float(before["rare"])
    assert float(after["all"]) > float(before["all"])
    assert example["report"].largest_difference < 1e-4


def test_the_commands_give_what_the_example_gives(example):
    folder = example["folder"]
    (folder / "corrected.onnx").unlink()
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = "set -e\n" + "".join(blocks("sh"))
    environment = {**os.environ, "PATH": binaries}
    result = subprocess.run(
        ["bash", "-c", commands], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    assert "corrected.onnx: the map is in `3.weight`." in result.stdout
    assert example["accuracy"](folder / "corrected.onnx") == example["after"]
    onnxruntime.InferenceSession(str(folder / "corrected.onnx"), providers=["CPUExecutionProvider"])
