"""Odd phrases stay out of what a user reads: README, pages, messages and docstrings."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BANNED = (
    "reckoned",
    r"mend(?:s|ed|ing)?",
    "its kin",
    "that there is not",
    "that there is none of",
    "nothing to speak of",
    "is said in",
    "nobody knows",
    "of equal ones",
    "a word for",
    "with a word",
)
PHRASES = re.compile(rf"\b(?:{'|'.join(BANNED)})\b".replace(" ", r"\s+"), flags=re.I)
FILES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the documentation is not beside the tests")


def test_no_odd_phrases():
    odd = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}"
        for path in sorted(FILES)
        for text in [path.read_text(encoding="utf-8")]
        for match in PHRASES.finditer(text)
    ]
    assert odd == []


def test_phrases_are_noticed():
    assert [bool(PHRASES.search(text)) for text in ("It is  said\nin x", "amend, recommend", "mended")] == [1, 0, 1]
