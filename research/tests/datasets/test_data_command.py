"""`logn data`: results on stdout, one sentence for bad input."""

from __future__ import annotations

import json
import re

import pytest

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
    assert (result["images"], result["classes"]) == (15, 6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["glyphs", "-o", "{folder}", *GLYPHS, "--seed", "1"], "there seed is 0 and not 1"),
        (["glyphs", "-o", "{folder}/x", "--classes", "1204"], "Expected `classes`"),
    ],
)
def test_bad_input_gets_one_sentence(folder, capsys, arguments, words):
    filled = [argument.replace("{folder}", str(folder)) for argument in arguments]
    assert execute(["data", *filled]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert re.search(words, captured.err)
