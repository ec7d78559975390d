"""The notebooks run from the first cell to the last, and are kept without outputs."""

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="the examples are not beside the tests")


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def kept_outputs(path):
    """The cells that say what they printed on somebody's machine."""
    return [cell["id"] for cell in cells(path) if cell.get("outputs") or cell.get("execution_count") is not None]


def run(name, shorter):
    """Run the cells in order, as a kernel does; `shorter` is what would take long here, all of which must be there."""
    names = {}
    for cell in cells(FOLDER / name):
        if cell["cell_type"] == "code":
            code = "".join(cell["source"])
            for long in [text for text in shorter if text in code]:
                code = code.replace(long, shorter.pop(long))
            exec(compile(code, f"{name}, {cell['id']}", "exec"), names)  # noqa: S102 - our own notebook
    assert shorter == {}
    return names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_stripped(path):
    assert kept_outputs(path) == []
    assert json.loads(path.read_text(encoding="utf-8"))["nbformat"] == 4


def test_an_array_of_logits_is_corrected(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names = run("classifier_from_arrays.ipynb", {})
    assert names["after"]["few"] > names["before"]["few"]
    assert "recommended" in capsys.readouterr().out


def test_a_detector_gets_a_report(tmp_path, monkeypatch, capsys):
    for package in ("onnxruntime", "PIL", "jinja2"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = run("detector_to_report.ipynb", {"600, 240": "30, 20", "num_bootstrap=100": "num_bootstrap=0"})
    assert names["done"].output.is_file()
    assert "norcal" in capsys.readouterr().out
    assert "<html" in (tmp_path / "detector-notebook" / "report.html").read_text(encoding="utf-8")


if __name__ == "__main__":  # the hook of .pre-commit-config.yaml
    sys.exit("\n".join(f"{path.name}: clear the outputs" for path in NOTEBOOKS if kept_outputs(path)) or 0)
