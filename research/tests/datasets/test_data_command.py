"""`logn data`: results on stdout, one sentence for bad input."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PIL import Image

from logn.cli.main import execute

GLYPHS = ("--classes", "6", "--train", "9", "--dev", "3", "--test", "3", "--size", "64", "--workers", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "glyphs"
    assert execute(["data", "glyphs", "-o", str(path), *GLYPHS]) == 0
    return path


def test_glyphs_prints_what_was_made(folder, capsys):
    assert execute(["data", "glyphs", "-o", str(folder), *GLYPHS, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["images"], result["classes"]) == (9, 6)
    assert sum(result["groups"].values()) == 6


def test_inspect_tells_the_label_distribution_of_a_sampler(folder, capsys):
    distributions = {}
    for sampler in ("random", "class-balanced"):
        assert execute(["data", "inspect", str(folder / "train.json"), "--sampler", sampler, "--json"]) == 0
        distributions[sampler] = json.loads(capsys.readouterr().out)["label_distribution"]
    assert np.sum(distributions["random"]) == pytest.approx(1)
    assert np.std(distributions["class-balanced"]) < np.std(distributions["random"])
    assert execute(["data", "inspect", str(folder / "train.json")]) == 0
    assert "label distribution" not in capsys.readouterr().out


def test_preview_writes_a_sheet(folder, tmp_path, capsys):
    sheet = tmp_path / "sheet.png"
    command = ["data", "preview", str(folder / "train.json"), "-o", str(sheet), "--rows", "1", "--columns", "2"]
    assert execute([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    with Image.open(sheet) as picture:
        assert picture.size == (result["width"], result["height"])
        colours = {colour for _, colour in picture.getcolors(1 << 20)}
    assert (213, 94, 0) in colours  # with nine images every class is rare


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["glyphs", "-o", "{folder}", *GLYPHS, "--seed", "1"], "there seed is 0 and not 1"),
        (["glyphs", "-o", "{folder}/x", "--classes", "1204"], "Expected `classes`"),
        (["glyphs", "-o", "{folder}/x", "--clutter", "9"], "Expected `clutter`"),
        (["inspect", "{folder}/none.json"], "does not exist"),
        (["inspect", "{folder}/train.json", "--sampler", "best"], "Expected `name` to be one of"),
        (["preview", "{folder}/train.json", "-o", "{folder}/sheet.xyz"], "Expected `.*sheet.xyz`"),
        (["preview", "{folder}/train.json", "-o", "s.png", "--images", "{folder}/none"], "Image 5 of .* is not at"),
    ],
)
def test_bad_input_gets_one_sentence(folder, capsys, arguments, words):
    filled = [argument.replace("{folder}", str(folder)) for argument in arguments]
    assert execute(["data", *filled]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert re.search(words, captured.err)
