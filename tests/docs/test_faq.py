"""The FAQ quotes error messages as the source has them."""

import ast
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the documentation is not beside the tests")
SOURCE = Path(__file__).resolve().parents[2] / "src" / "logn"
RAISED = ("InputError", "__init__")  # the latter for `MissingExtraError`, which makes its own


def template(node):
    """A text with `…` in the place of everything that is not a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return "…"


def texts():
    """The text of each call, in the order of the source."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                text = template(node.args[0])
                if called in RAISED and text.strip("… ."):
                    yield text


def squashed(text):
    """One space between words, and one `…` for what is filled in one after the other."""
    return " ".join(re.sub(r"…[… ]*…", "…", text).split())


def test_every_quoted_message_is_in_the_source():
    messages = set(map(squashed, texts()))
    quotes = re.findall(r"^> (.+)$", (DOCS / "faq.md").read_text(encoding="utf-8"), flags=re.M)
    assert len(quotes) > 30
    for quote in map(squashed, quotes):  # a quote that ends in `…` is a beginning
        beginning = quote.rstrip("… ") if quote.endswith("…") else None
        assert quote in messages or any(beginning and text.startswith(beginning) for text in messages), quote
