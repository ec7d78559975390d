"""The how-to pages show code that runs: every block of Python stands in the example of its page."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "classification.md": "classification.py",
    "classifiers.md": "classifier.py",
    "detectron2.md": "detectron2_test.py",
    "engines.md": "engines.py",
    "many-machines.md": "many_machines.py",
    "mmdetection.md": "mmdetection/test.py",
    "onnx.md": "onnx_classifier.py",
    "timm.md": "timm_classifier.py",
    "torchvision.md": "torchvision_detector.py",
    "transformers.md": "transformers_detector.py",
    "ultralytics.md": "ultralytics_yolo.py",
}
pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the documentation is not beside the tests")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_is_in_its_example(page):
    text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
    script = (ROOT / "examples" / PAGES[page]).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    assert blocks
    for block in blocks:  # without the indentation that they have in the function of the script
        assert any(textwrap.indent(block, " " * width) in script for width in (0, 4, 8)), block
        compile(block, page, "exec")  # so that it can be pasted
    assert f"`examples/{PAGES[page]}`" in text


def test_every_page_is_known():
    without_python = {"labels.md"}  # its commands are run by test_labels_page.py
    assert {*PAGES} | without_python == {path.name for path in (ROOT / "docs" / "how-to").glob("*.md")}
