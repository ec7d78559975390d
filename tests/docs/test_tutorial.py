"""The tutorial works by copy and paste, from drawing the scenes to the thresholds; here with a few of everything."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")
SHORTER = {
    "--classes 40 --train 1200 --dev 240 --test 240": "--classes 6 --train 24 --dev 12 --test 4 --size 64 --workers 1",
    "--iterations 500": "--iterations 2",
    "--max-images 400": "--max-images 8",
}


@pytest.mark.usefixtures("one_thread")
def test_the_tutorial_can_be_pasted(tmp_path, monkeypatch, blocks, run_logn, run_python, capsys):
    for package in ("torchvision", "PIL", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    said = ""
    for block in blocks("sh"):
        shorter = {long: short for long, short in SHORTER.items() if long in block}
        if "logn correct" in block:  # of a detector that has learnt nothing, nothing would be written
            shorter = {"--max-images 400": "--max-images 8 --method logn"}
        said += run_logn(block, shorter=shorter)
    assert "recommended" in said
    assert (tmp_path / "corrected" / "checkpoint.safetensors").is_file()
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
    (lines,) = blocks("python")
    names = run_python(lines)
    assert names["kept"].shape == names["found"].scores.shape
    assert len(names["points"].thresholds) == 6
    assert "objects in 4 images" in capsys.readouterr().out


def test_all_that_is_shortened_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    assert all(long in text for long in SHORTER)
