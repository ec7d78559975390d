"""The page on training classifiers runs, and its commands have the options it names."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "classification-training.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


def test_the_lines_of_python_train_and_correct_a_classifier(tmp_path, monkeypatch, blocks):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    names: dict = {}
    exec(code, names)  # noqa: S102 - our own page
    assert names["logits"].shape == (60, 3)
    assert abs(names["logits"].mean(0)).max() < 0.01


@pytest.mark.usefixtures("one_thread")
def test_the_commands_train_and_compare(tmp_path, monkeypatch, blocks, run_logn):
    for package in ("torch", "PIL", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    few = " --classes 4 --most 12 --fewest 3 --dev 2 --test 2 --workers 1"
    lines = [line.partition("#")[0].strip() for block in blocks("console") for line in block.splitlines()]
    for line in lines:
        trains = line.startswith("$ logn train ")
        run_logn(line + (few if "glyph-classes" in line else " --iterations 2" if trains else ""))
    for name in ("softmax", "crt", "lws"):
        assert (tmp_path / "runs" / name / "checkpoint.safetensors").exists()


def test_every_command_has_options_that_exist(blocks, assert_options_exist):
    lines = [line for block in blocks("console") for line in re.findall(r"^\$ logn (.+)$", block, flags=re.M)]
    assert len(lines) > 4
    assert_options_exist(lines)


def test_the_tables_name_what_there_is():
    from logn_research.losses.loss_factory import LOSS_NAMES
    from logn_research.training.classifiers import MODELS
    from logn_research.training.recipes import PRESETS

    text = PAGE.read_text(encoding="utf-8")
    for name in (*MODELS, *PRESETS, *(set(LOSS_NAMES) - {"bags"})):
        assert f"`{name}`" in text, name
    small, paper = PRESETS["small"], PRESETS["paper"]
    assert f"learning rate {small.learning_rate:g} for {small.batch} images" in text
    assert f"| {small.epochs:g} epochs |" in text
    assert f"learning rate {paper.learning_rate:g} for {paper.batch} images" in text
