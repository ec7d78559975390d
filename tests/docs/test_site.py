"""What the site rests on, checked without building it: every page has its place, every name and log its words."""

import json
import re
from pathlib import Path

import pytest

import logn

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not (ROOT / "mkdocs.yml").exists(), reason="the site is not beside the tests")


def navigation():
    """The pages of each section of mkdocs.yml."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    sections = re.split(r"^  - (\w[\w ]*):\n", text, flags=re.M)[1:]
    pairs = zip(sections[::2], sections[1::2], strict=True)
    return {name: re.findall(r"([\w/.-]+\.md)$", lines, flags=re.M) for name, lines in pairs}


def test_every_page_has_one_place():
    placed = [page for pages in navigation().values() for page in pages]
    inside = sorted(page for page in placed if not page.startswith("repository/"))
    assert inside == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert all((ROOT / page.removeprefix("repository/")).exists() for page in placed if page.startswith("repository/"))


def test_every_public_name_is_in_the_reference():
    listed = re.findall(r"^::: logn\.(\w+)$", (DOCS / "reference" / "api.md").read_text(encoding="utf-8"), flags=re.M)
    assert sorted(listed) == sorted(set(logn.__all__) - {"__version__"})


def test_every_public_name_has_an_example():
    without = []
    for name in sorted(set(logn.__all__) - {"__version__", "losses"}):
        thing = getattr(logn, name)
        members = vars(thing).values() if isinstance(thing, type) else ()
        texts = [thing.__doc__ or "", *(getattr(member, "__doc__", None) or "" for member in members)]
        if not any(">>>" in text or "Example" in text for text in texts):
            without.append(name)
    assert without == []


def test_nothing_is_fetched_from_elsewhere():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in settings
    assert "http" not in settings


def test_the_figures_at_the_size_of_lvis_are_those_of_the_file():
    steps = json.loads((DOCS / "results" / "full-lvis.json").read_text(encoding="utf-8"))["19809"]
    measured = [
        (f"{step['wall']:.0f}", f"{step['peak MB together']:,.0f}") for name, step in steps.items() if name != "write"
    ]
    section = (DOCS / "speed.md").read_text(encoding="utf-8").partition("## The size of LVIS")[2].partition("## ")[0]
    assert re.findall(r"\| ([\d,]+) \| ([\d,]+) MB \|$", section, flags=re.M) == measured
