"""The examples in the docstrings of the scripts' modules hold; the package's own are collected by pytest."""

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["evidence", "evidence_figure", "evidence_tables", "margin_landscape"])
def test_the_examples_hold(name):
    found = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0
