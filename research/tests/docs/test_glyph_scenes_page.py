"""The page on glyph scenes: its lines of Python run, and its commands too."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "glyph-scenes.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")

FEW = {"train=300": "train=40, dev=2, test=2, size=64"}


def test_the_lines_of_python_draw_and_read(tmp_path, monkeypatch, blocks, run_python):
    for package in ("PIL", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    names = run_python(code, shorter=FEW)
    dataset, sample = names["dataset"], names["sample"]
    assert (len(dataset), dataset.num_classes) == (40, 30)
    assert sample.masks().shape == (len(sample.labels), *sample.image.shape[:2])
    assert set(names["sampler"].indices(epoch=0, seed=0)) == set(range(40))
    assert names["sampler"].label_distribution().shape == (30,)


def test_the_commands_draw_and_preview(tmp_path, monkeypatch, run_logn):
    for package in ("PIL", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    first, *_ = re.findall(r"(?:^    logn .+\n)+", PAGE.read_text(encoding="utf-8"), flags=re.M)
    few = "-o glyphs --classes 6 --train 8 --dev 1 --test 1 --size 64 --workers 1"
    run_logn(first.replace("    ", ""), shorter={"-o glyphs": few})
    assert (tmp_path / "sheet.png").exists()
