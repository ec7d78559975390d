"""Every script can be imported, and the methods that it names exist."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

from logn.methods.catalog import parse

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_a_script_can_be_imported_and_its_methods_exist(name):
    methods = getattr(import_module(name), "METHODS", ())
    for spec in methods.values() if isinstance(methods, Mapping) else methods:
        if spec is not None:
            parse(spec)
