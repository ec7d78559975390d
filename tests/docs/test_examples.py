"""The examples and notebooks run, and the pages show them as they are; the tables of pages are what was measured."""

import importlib.util
import io
import json
import re
import runpy
import sys
import textwrap
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from logn.demo.problem import draw_problem

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
SCRIPTS = {
    "huggingface": ("transformers_detector.py",),
    "many-machines": ("many_machines.py",),
    "mmdetection": ("mmdetection/test.py",),
    "onnx": ("onnx_classifier.py", "engines.py"),
    "pytorch": ("classifier.py", "torchvision_detector.py", "timm_classifier.py", "classification.py"),
    "scikit-learn": ("scikit_learn.py",),
    "ultralytics": ("ultralytics_yolo.py",),
}


def how_to(name):
    return (ROOT / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", SCRIPTS)
def test_every_block_of_python_is_in_an_example(page):
    scripts = "\n".join((ROOT / "examples" / name).read_text(encoding="utf-8") for name in SCRIPTS[page])
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", how_to(page), flags=re.M | re.S)
    assert blocks
    for block in map(textwrap.dedent, blocks):  # without the indentation that they have in the function of the script
        assert any(textwrap.indent(block, " " * width) in scripts for width in (0, 4, 8)), block
        compile(block, page, "exec")  # so that it can be pasted
    assert all(f"`examples/{name}`" in how_to(page) for name in SCRIPTS[page])


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def kept_outputs():
    """The cells that hold what they printed on somebody's machine."""
    return [
        f"{path.name}: clear the output of {cell['id']}"
        for path in NOTEBOOKS
        for cell in cells(path)
        if cell.get("outputs") or cell.get("execution_count") is not None
    ]


def test_notebooks_are_kept_without_outputs():
    assert kept_outputs() == []


def make_small_demo(folder):
    """The detector and the scenes of `logn demo`, a few of them."""
    draw_problem(folder / "data", train=30, test=20)
    (folder / "glyphs.onnx").write_bytes((files("logn.demo") / "glyphs.onnx").read_bytes())


@pytest.mark.parametrize(
    ("name", "packages", "shorter"),
    [
        ("classifier_from_arrays", ("sklearn",), {}),
        ("detector_to_report", ("onnxruntime", "PIL", "jinja2"), {"num_bootstrap=100": "num_bootstrap=0"}),
    ],
)
def test_notebooks_run(name, packages, shorter, tmp_path, monkeypatch, capsys):
    for package in packages:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    if name == "detector_to_report":
        make_small_demo(tmp_path / "runs" / "demo")
    names, left = {}, dict(shorter)
    for cell in cells(ROOT / "examples" / "notebooks" / f"{name}.ipynb"):
        if cell["cell_type"] == "code":
            code = "".join(cell["source"])
            for long in [text for text in left if text in code]:
                code = code.replace(long, left.pop(long))
            exec(compile(code, f"{name}, {cell['id']}", "exec"), names)  # noqa: S102 - our own notebook
    assert left == {}
    assert "recommended" in capsys.readouterr().out
    if name == "classifier_from_arrays":
        assert names["after"]["few"] > names["before"]["few"]
    else:
        assert names["done"].output.is_file()
        assert "<html" in (tmp_path / "detector-notebook" / "report.html").read_text(encoding="utf-8")


def test_the_partitions_of_many_machines_merge_to_what_one_process_gives(monkeypatch):
    import logn

    torch, image = pytest.importorskip("torch"), pytest.importorskip("PIL.Image")
    spec = importlib.util.spec_from_file_location("many_machines", ROOT / "examples" / "many_machines.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    assert tuple(recipe.preprocess(np.zeros((30, 40, 3), np.uint8)).shape) == (3, 224, 224)

    def make_model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 5, 6)).double().eval()

    monkeypatch.setattr(recipe, "make_model", make_model)
    monkeypatch.setattr(recipe, "preprocess", lambda pixels: torch.from_numpy(pixels.transpose(2, 0, 1) / 255))
    contents = []
    for seed in range(7):
        file = io.BytesIO()
        image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)).save(file, "PNG")
        contents.append(file.getvalue())
    parts = [recipe.statistics_of(iter(contents[start : start + 3])) for start in (0, 3, 6)]
    merged = logn.ClassMoments.from_bytes(recipe.merged(recipe.merged(parts[0], parts[1]), parts[2]))
    whole = logn.ClassMoments.from_bytes(recipe.statistics_of(contents))
    assert merged.count.tolist() == [7.0] * 6
    assert merged.head == whole.head
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(merged.variance, whole.variance, rtol=1e-12)
    # The same rows in another order, as their keys come from their batches.
    np.testing.assert_array_equal(np.sort(merged.sample, axis=0), np.sort(whole.sample, axis=0))


def test_the_numbers_of_the_classifier_are_near_those_of_the_page(tmp_path, monkeypatch):
    """Other versions of scikit-learn may round otherwise; a page that is plainly out of date fails."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(ROOT / "examples" / "classification.py"))
    assert example["comparison"]["recommended"].differences["few"].low > 0
    (table,) = re.findall(r"^```text\n(.*?)^```", how_to("pytorch"), flags=re.M | re.S)
    for line in table.splitlines():
        name, before, _, after = line.split()
        assert 100 * example["before"][name] == pytest.approx(float(before), abs=2.0)
        assert 100 * example["after"][name] == pytest.approx(float(after), abs=2.0)


def test_the_numbers_of_scikit_learn_are_near_those_of_the_page(capsys):
    pytest.importorskip("sklearn")
    runpy.run_path(str(ROOT / "examples" / "scikit_learn.py"))
    printed = capsys.readouterr().out.splitlines()
    (table,) = re.findall(r"^```text\n(.*?)^```", how_to("scikit-learn"), flags=re.M | re.S)
    for line, shown in zip(printed, table.splitlines(), strict=False):
        *words, before, _, after = line.split()
        *expected, shown_before, _, shown_after = shown.split()
        assert words == expected
        assert [float(before), float(after)] == pytest.approx([float(shown_before), float(shown_after)], abs=0.02)
    assert len(printed) == len(table.splitlines()) + 1


def results(name):
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("images", ["2476", "19809"])
def test_the_figures_at_the_size_of_lvis_are_those_of_the_file(images):
    steps = {name: step for name, step in results("full-lvis")[images].items() if name != "write"}
    measured = [(f"{step['wall']:.0f}", f"{step['peak MB together']:,.0f}") for step in steps.values()]
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    table = page.partition(f"| {int(images):,} images, ")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"\| ([\d,]+) \| ([\d,]+) MB \|$", table, flags=re.M)) == sorted(measured)


if __name__ == "__main__":  # the hook of .pre-commit-config.yaml
    sys.exit("\n".join(kept_outputs()) or 0)
