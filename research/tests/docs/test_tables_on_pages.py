"""The tables on the pages are those of the data."""

import pytest
from logn_research.pages import ROOT, filled

PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_page_has_the_tables_of_the_data(page):
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text
