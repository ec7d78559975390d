"""The page on errors quotes what the program says: every sentence on it is one of the source."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "troubleshooting.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


@pytest.fixture(scope="module")
def source():
    spec = importlib.util.spec_from_file_location("error_texts", DOCS / "error_texts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def squashed(text):
    """One space between words, and one `…` for what is filled in one after the other."""
    return " ".join(re.sub(r"…[… ]*…", "…", text).split())


def is_said(quote, sentences):
    """Whether a sentence is quoted in full, or its beginning where the quote ends in `…`."""
    quote = squashed(quote)
    if quote in sentences:
        return True
    return quote.endswith("…") and any(sentence.startswith(quote.rstrip("… ")) for sentence in sentences)


def test_every_quoted_error_is_in_the_source(source):
    sentences = {squashed(text) for _, text in source.texts()}
    quotes = re.findall(r"^> (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    assert len(quotes) > 40
    assert [quote for quote in quotes if not is_said(quote, sentences)] == []


def test_a_quote_that_nobody_says_is_noticed():
    sentences = {"Expected `…` to be a file, but there is none."}
    assert is_said("Expected `…` to be a file, but there is none.", sentences)
    assert is_said("Expected `…` to be a file, but …", sentences)
    assert not is_said("Expected `…` to be a file", sentences)
    assert not is_said("Expected `…` to be a folder, but …", sentences)


def test_the_page_of_all_refusals_has_them_all(source):
    written = source.page()
    assert written.count("\n- ") + 1 > 900
    for folder in ("calibrators", "cli", "evaluate", "logits"):
        assert f"## {folder}\n" in written
