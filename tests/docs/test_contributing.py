"""The tree in CONTRIBUTING.md is the real one, and the files that it names exist."""

import re
from pathlib import Path

import pytest

import logn

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
PACKAGE = Path(logn.__file__).parent
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


def folders_of_tree(text):
    """The drawn folders below the package, in their order; two spaces more are one folder deeper."""
    above = []
    for line in re.findall(r"^ {4}( *[\w/]+/ +\S.*)$", text, flags=re.M):
        depth = (len(line) - len(line.lstrip())) // 2
        above[depth:] = [line.split()[0].rstrip("/")]
        if depth:
            yield "/".join(above[1:])


def test_the_tree_is_the_real_one():
    real = (path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_dir())
    drawn = list(folders_of_tree(PAGE.read_text(encoding="utf-8")))
    assert sorted(drawn) == sorted(path for path in real if "__pycache__" not in path)


def test_the_files_exist():
    paths = re.findall(r"`((?:src|tests|docs|research)/[\w/.-]*)`", PAGE.read_text(encoding="utf-8"))
    assert len(paths) > 8
    assert [path for path in paths if not (PAGE.parent / path).exists()] == []
