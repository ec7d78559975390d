"""Text that fits a terminal: columns that find no room go into tables below."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

GAP = 2
# As wide as tables are where the width of the terminal is unknown.
USUAL_WIDTH = 100
# The colours of gains and losses, as the report page has them: green, and orange (the nearest of sixteen colours).
COLOURS = {"up": "green", "down": "yellow"}
_OWN_COLOURS = re.compile("(\x1b\\[(?:0|1|32|33)m)")
# What a terminal acts on instead of showing it: control characters but for the end of a line and the tab, and marks
# that change the direction of the text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What must stay on one line: an interval, and the difference before it.
_INTERVAL = re.compile(r" ?\[[^\[\]]*\]")

# The cells of a column, the title first.
Column = Sequence[str]


def printable(text: str) -> str:
    r"""A text with a visible sign for each control character: a name from a file must not steer the terminal.

    Example:
        >>> printable("cup\x1b[2J")
        'cup␛[2J'
    """
    return _CONTROLS.sub(_picture, text)


def printable_json(text: str) -> str:
    r"""The same of a JSON document, which stays one of the same content.

    Example:
        >>> printable_json('"cup\x9b2J"')
        '"cup\\u009b2J"'
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_table(text: str) -> str:
    """The same of a text that `write_table` may have coloured: its own colours stay."""
    parts = _OWN_COLOURS.split(text)
    return "".join(part if place % 2 else printable(part) for place, part in enumerate(parts))


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    # Unicode has pictures of the first 32 and of delete; each is one column wide, so that tables stay aligned.
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


@dataclass(frozen=True)
class TextStyle:
    """What text must fit, and what it may use.

    Args:
        width: Columns of a table; None for no limit.
        prose: Columns of a sentence; None leaves it on one line.
        colours: Whether gains and losses are coloured.
        rule: The character under a header.
    """

    width: int | None = USUAL_WIDTH
    prose: int | None = None
    colours: bool = False
    rule: str = "─"

    def wrap(self, text: str, indent: str = "") -> str:
        """Break sentences where the line ends, but never an interval; control characters become visible signs.

        Example:
            >>> print(TextStyle(prose=30).wrap("logn lowers APf by 2.8 [1.8, 3.8] in all."))
            logn lowers APf by
            2.8 [1.8, 3.8] in all.
        """
        text = printable(text)
        if self.prose is None:
            return text
        empty = text[: len(text) - len(text.lstrip("\n"))]
        broken = textwrap.fill(
            unbroken(text).strip("\n"),
            self.prose,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return empty + broken.replace("\xa0", " ")


USUAL = TextStyle()


def unbroken(sentence: str) -> str:
    r"""A sentence with blanks that no line ends at, inside its intervals and before them.

    Example:
        >>> unbroken("raises AP by 2.0 [1.0, 3.0].").split(" ")
        ['raises', 'AP', 'by', '2.0\xa0[1.0,\xa03.0].']
    """
    return _INTERVAL.sub(lambda found: found[0].replace(" ", "\xa0"), sentence)


def write_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: TextStyle = USUAL,
    *,
    keys: int = 1,
    tones: Sequence[Sequence[str]] = (),
) -> str:
    r"""Write columns one under the other: the keys to the left, numbers to the right.

    Where they do not fit, long keys are folded, and the columns that are left over follow in tables below that repeat
    the keys.

    Args:
        header: The titles.
        rows: The cells; a cell may have several lines.
        style: What to fit.
        keys: How many columns name a row.
        tones: "up", "down" or nothing for each cell: the colour of the lines below its first.

    Example:
        >>> rows = [("none", "3.9", "8.3"), ("logn", "3.2\n-0.7 [-1.2, -0.2]", "6.6")]
        >>> print(write_table(("method", "AP", "AP50"), rows))
        method                 AP  AP50
        ───────────────────────────────
        none                  3.9   8.3
        logn                  3.2   6.6
                -0.7 [-1.2, -0.2]
        >>> print(write_table(("method", "AP", "AP50"), rows, TextStyle(width=30)))
        method                 AP
        ─────────────────────────
        none                  3.9
        logn                  3.2
                -0.7 [-1.2, -0.2]
        <BLANKLINE>
        method  AP50
        ────────────
        none     8.3
        logn     6.6
    """
    columns: list[Column] = [tuple(map(printable, cells)) for cells in zip(header, *rows, strict=True)]
    widths = [_column_width(column) for column in columns]
    groups, key_width = [list(range(keys, len(columns)))], None
    if style.width is not None and sum(widths) + GAP * (len(widths) - 1) > style.width:
        left_over, quarter = style.width - sum(width + GAP for width in widths[1:]), max(style.width // 4, 8)
        longest_word = max(cell_width(word) for cell in columns[0] for word in cell.split() or [""])
        key_width = min(widths[0], left_over if left_over >= min(longest_word, quarter) else quarter)
        groups = _groups(widths, keys, style.width - key_width - sum(width + GAP for width in widths[1:keys]))
    blocks = []
    for group in groups:
        table = _rich_table([*range(keys), *group], columns, widths, style, keys, key_width, tones)
        blocks.append(_printed(table, style))
    return "\n\n".join(blocks)


def cell_width(text: str) -> int:
    """How many columns of a terminal the widest line of a text takes; wide characters take two.

    Example:
        >>> cell_width("fork"), cell_width("猫")
        (4, 2)
    """
    from rich.cells import cell_len

    return max(map(cell_len, text.split("\n")))


def _column_width(column: Column) -> int:
    """The widest cell; a title may be broken at its spaces."""
    return max(map(cell_width, [*column[0].split(" "), *column[1:]]))


def _groups(widths: Sequence[int], keys: int, room: int) -> list[list[int]]:
    """The columns of numbers of each table: as many as fit into the room beside the keys."""
    groups: list[list[int]] = [[]]
    for place in range(keys, len(widths)):
        if groups[-1] and sum(widths[index] + GAP for index in (*groups[-1], place)) > room:
            groups.append([])
        groups[-1].append(place)
    return groups


def _rich_table(
    group: Sequence[int],
    columns: Sequence[Column],
    widths: Sequence[int],
    style: TextStyle,
    keys: int,
    key_width: int | None,
    tones: Sequence[Sequence[str]],
) -> Table:
    from rich.box import Box
    from rich.table import Table
    from rich.text import Text

    box = Box(f"    \n    \n {style.rule * 2} \n    \n    \n    \n    \n    \n", ascii=style.rule == "-")
    table = Table(box=box, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1), header_style="bold")
    for place in group:
        if place < keys:
            table.add_column(Text(columns[place][0]), overflow="fold", max_width=key_width if place == 0 else None)
        else:
            table.add_column(Text(columns[place][0]), justify="right", overflow="fold", min_width=widths[place])
    for row in range(1, len(columns[0])):
        cells = []
        for place in group:
            first, *more = columns[place][row].split("\n")
            colour = COLOURS.get(tones[row - 1][place], "") if tones else ""
            cells.append(Text("\n").join([Text(first), *(Text(line, style=colour) for line in more)]))
        table.add_row(*cells)
    return table


def _printed(table: Table, style: TextStyle) -> str:
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file,
        width=style.width or 10_000,
        color_system="standard" if style.colours else None,
        force_terminal=style.colours,
        legacy_windows=False,
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
