"""Without an optional package, what needs it raises one error that names the extra."""

import sys

import pytest

import logn
from logn.data.masks import encode_segmentation
from logn.report.page import _environment


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("hotcoco", "evaluate", lambda: encode_segmentation([[0, 0, 2, 0, 2, 2]], 4, 4)),
        ("jinja2", "report", lambda: _environment.__wrapped__()),
    ],
)
def test_the_error_names_the_extra(monkeypatch, package, extra, call):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        logn.MissingExtraError, match=rf"`{package}` is not installed: run pip install .logn\[{extra}\]"
    ):
        call()
