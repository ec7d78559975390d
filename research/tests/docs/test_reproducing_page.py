"""The list of what the paper has: every row has a command, tests that exist, and what differs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reproducing.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| paper |"))
]


def test_every_row_has_a_command_a_test_and_what_differs():
    assert len(ROWS) > 25
    for item, command, test, difference in ROWS:
        assert item
        assert command
        assert difference, item
        named = re.findall(r"`(tests/[^`]+)`", test)
        assert named, item
        assert all((ROOT / path).is_file() for path in named), item


def test_every_equation_table_and_figure_is_listed():
    items = " ".join(row[0] for row in ROWS)
    tables = ("Table 1", "Table 2", "Table 3", "ImageNet-LT")
    for name in ("Eq. 1", "Eq. 2", "Eq. 3", "Eq. 4 to 6", "Algorithm 1", *tables):
        assert name in items
    for name in ("Fig. 1a", "Fig. 1b", "Fig. 2", "Fig. 3", "Fig. 4 and 5", "Fig. 6", "Appendix"):
        assert name in items
