"""The FAQ quotes error messages as the source has them."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the documentation is not beside the tests")


def squashed(text):
    """One space between words, and one `…` for what is filled in one after the other."""
    return " ".join(re.sub(r"…[… ]*…", "…", text).split())


def test_every_quoted_message_is_in_the_source():
    spec = importlib.util.spec_from_file_location("error_texts", DOCS / "error_texts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    messages = {squashed(text) for _, text in module.texts()}
    quotes = re.findall(r"^> (.+)$", (DOCS / "faq.md").read_text(encoding="utf-8"), flags=re.M)
    assert len(quotes) > 30
    for quote in map(squashed, quotes):  # a quote that ends in `…` is a beginning
        beginning = quote.rstrip("… ") if quote.endswith("…") else None
        assert quote in messages or any(beginning and text.startswith(beginning) for text in messages), quote
