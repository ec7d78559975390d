"""The page on the report: its commands and its lines of Python run, on a detector that is trained here."""

import re
import shutil
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "report.md"
pytestmark = [
    pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture
def demonstration(workplace, run_logn):
    """What `logn demo` leaves in the folder of its seed, made of less."""
    folder = workplace / "runs" / "demo" / "standard" / "seed-0"
    folder.mkdir(parents=True)
    (workplace / "glyphs").rename(folder / "data")
    (workplace / "runs" / "glyphs").rename(folder / "model")
    run_logn(
        f"logn predict {folder}/model --data {folder}/data/test.json -o {folder}/predictions\n"
        f"logn collect {folder}/model --data {folder}/data/train.json -o {folder}/statistics.safetensors\n"
        f"logn compare {folder}/predictions -s {folder}/statistics.safetensors -a {folder}/data/test.json"
        f" --counts {folder}/data/train.json --methods recommended,logn --bootstrap 50 -o {folder}"
    )
    return folder


def test_the_commands_write_a_page_and_a_figure(demonstration, workplace, blocks, run_logn):
    shutil.copytree(demonstration, workplace / "run")
    (commands,) = blocks("sh")
    run_logn(commands)
    assert "<html" in (workplace / "report.html").read_text(encoding="utf-8")
    assert (workplace / "tide.pdf").read_bytes().startswith(b"%PDF")


def test_the_lines_of_python_give_the_numbers_of_a_figure(demonstration, blocks, run_python, capsys):
    reading, code = blocks("python")
    found = run_python(reading)
    assert "\nrecommended " in capsys.readouterr().out
    assert found["affine"].num_classes == 7
    run_python(code)
    assert -1 <= float(capsys.readouterr().out) <= 1


def test_the_figure_on_training_with_logn_can_be_made(demonstration, workplace, blocks, run_logn):
    from logn_research.experiments.artifact_cache import ArtifactCache
    from logn_research.experiments.bench_detectors import BENCHMARK
    from logn_research.experiments.online_table import sections

    (commands,) = blocks("console")
    bench, settings, *others = commands.splitlines()
    assert bench == "$ logn bench online --root runs/bench"
    cache = ArtifactCache("runs/bench")
    # What the bench leaves, made of less: the same detector under the name of each.
    detectors = {row.detector.name: row.detector for row in sections(BENCHMARK, 0)[1].rows}.values()
    assert len(detectors) == 3
    shutil.copytree(demonstration / "data", cache.data_folder(next(iter(detectors))))
    for detector in detectors:
        shutil.copytree(demonstration / "predictions", cache.model_folder(detector) / "predictions-test")
        shutil.copy(demonstration / "statistics.safetensors", cache.model_folder(detector))
    lines = "\n".join(others)
    for name, value in re.findall(r"(\w+)=(\S+)", settings):
        lines = lines.replace(f"${name}", value)
    run_logn(lines)
    assert (workplace / "online.png").exists()


def test_the_modules_that_compute_the_figures_exist():
    import importlib

    (names,) = re.findall(r"a function that computes \(([^)]*)\)", PAGE.read_text(encoding="utf-8"))
    for name in re.findall(r"`([\w.]+)`", names):
        importlib.import_module(name if "." in name else f"logn.report.{name}")
