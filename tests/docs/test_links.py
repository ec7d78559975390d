"""What the pages point at is there: other pages, pictures, scripts, tests."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def headings(page):
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target, place in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if target.startswith("../../actions/"):
            continue  # a page of the site that hosts the repository, whatever its address is
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not place or place in headings(file), f"{target}#{place}"
    for path in re.findall(r"`(?:python )?((?:docs|examples|benchmarks|src|tests)/[\w/.-]+)[` ]", text):
        assert (ROOT / path).exists(), path
