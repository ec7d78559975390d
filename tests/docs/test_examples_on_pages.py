"""The how-to pages show code that runs: every block of Python stands in an example, which another test runs."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "huggingface.md": ("transformers_detector.py",),
    "many-machines.md": ("many_machines.py",),
    "mmdetection.md": ("mmdetection/test.py", "detectron2_test.py"),
    "onnx.md": ("onnx_classifier.py", "engines.py"),
    "pytorch.md": ("classifier.py", "torchvision_detector.py", "timm_classifier.py", "classification.py"),
    "ultralytics.md": ("ultralytics_yolo.py",),
}
pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the documentation is not beside the tests")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_is_in_an_example(page):
    text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
    scripts = "\n".join((ROOT / "examples" / name).read_text(encoding="utf-8") for name in PAGES[page])
    blocks = [textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", text, flags=re.M | re.S)]
    assert blocks
    for block in blocks:  # without the indentation that they have in the function of the script
        assert any(textwrap.indent(block, " " * width) in scripts for width in (0, 4, 8)), block
        compile(block, page, "exec")  # so that it can be pasted
    assert all(f"`examples/{name}`" in text for name in PAGES[page])
