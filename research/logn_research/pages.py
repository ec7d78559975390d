"""The tables on the pages of `research/docs`, from the JSON of `research/results`: `python -m logn_research.pages`.

A page has `<!-- NAME -->` and `<!-- end -->`; what stands between them is made from `results/NAME.json`, and everything
else is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logn.files import write_text
from logn_research.evidence import deployment_prior, operating_points

ROOT = Path(__file__).parents[1]
#: From the content of a JSON file to Markdown, by the name of the file.
TABLES: dict[str, Callable[[Any], str]] = {
    "deployment-prior": deployment_prior.results,
    "operating-points": operating_points.results,
}
_BLOCK = re.compile(r"(<!-- ([\w-]+) -->\n).*?(<!-- end -->\n)", flags=re.S)


def filled(text: str, results: Path = ROOT / "results") -> str:
    """The page with the tables of its blocks made anew.

    Args:
        text: The page.
        results: Folder of the JSON files.
    """

    def block(match: re.Match[str]) -> str:
        content = json.loads((results / f"{match[2]}.json").read_text(encoding="utf-8"))
        return f"{match[1]}{TABLES[match[2]](content)}{match[3]}"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Fill in all pages."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (again := filled(text)) != text:
            write_text(page, again)
            print(page)


if __name__ == "__main__":
    main()
