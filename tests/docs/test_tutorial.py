"""The tutorial works by copy and paste, from the demonstration to the thresholds; here on fewer scenes."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


@pytest.mark.usefixtures("one_thread")
def test_the_tutorial_can_be_pasted(tmp_path, monkeypatch, blocks, run_logn, run_python, capsys):
    for package in ("onnxruntime", "PIL", "matplotlib", "jinja2"):
        pytest.importorskip(package)
    from logn.cli.verbs import demo

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "TRAINING_IMAGES", 40)
    monkeypatch.setattr(demo, "TEST_IMAGES", 30)
    exhaustive, ship = blocks("python")
    printed = ""
    for block in blocks("console"):
        if "exhaustive.json" in block and not Path("runs/demo/data/exhaustive.json").exists():
            run_python(exhaustive)
        printed += run_logn(block)
    assert "Long-tailed: of 100 classes" in printed
    assert "recommended" in printed
    assert Path("corrected.onnx").is_file()
    assert "<html" in Path("report.html").read_text(encoding="utf-8")
    names = run_python(ship)
    assert names["kept"].shape == names["detections"].scores.shape
    assert "objects" in capsys.readouterr().out
