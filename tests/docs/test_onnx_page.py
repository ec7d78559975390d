"""The page on ONNX files shows code that runs: in the example, and on the command line."""

import runpy
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


def test_the_example_helps_rare_classes(example):
    before, after = (
        dict(zip(text.split()[::2], text.split()[1::2], strict=True)) for text in (example["before"], example["after"])
    )
    assert float(after["rare"]) > float(before["rare"])
    assert float(after["all"]) > float(before["all"])
    assert example["report"].largest_difference < 1e-4


def test_the_commands_give_what_the_example_gives(example, blocks, shell):
    folder = example["folder"]
    (folder / "corrected.onnx").unlink()
    assert "corrected.onnx: the map is in `3.weight`." in shell("".join(blocks("sh")), folder)
    assert example["accuracy"](folder / "corrected.onnx") == example["after"]
    onnxruntime.InferenceSession(str(folder / "corrected.onnx"), providers=["CPUExecutionProvider"])


def test_one_command_does_the_same(example, blocks, shell):
    folder = example["folder"]
    (command,) = blocks("bash")
    assert "Wrote    model-corrected.onnx" in shell(command, folder)
    assert example["accuracy"](folder / "model-corrected.onnx") == example["after"]
