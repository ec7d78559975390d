"""The page on the report: its commands and its lines of Python run, on a detector that is trained here."""

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


def test_the_commands_write_a_page(demonstration, workplace, blocks, run_logn):
    shutil.copytree(demonstration, workplace / "run")
    (commands,) = blocks("sh")
    run_logn(commands)
    assert "<html" in (workplace / "report.html").read_text(encoding="utf-8")


def test_the_lines_of_python_read_a_comparison(demonstration, blocks, run_python, capsys):
    (reading,) = blocks("python")
    found = run_python(reading)
    assert "\nrecommended " in capsys.readouterr().out
    assert found["affine"].num_classes == 7
