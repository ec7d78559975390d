"""Text that fits a terminal: columns that find no room go below the others, and no number is ever broken."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
# A title is broken into words where it is wider than its column, but not into less than this.
NARROWEST_TITLE = 12
# As wide as tables are where nobody sees the terminal.
USUAL_WIDTH = 100
# The colours of gains and losses, as the report page has them: green, and orange (the nearest of sixteen colours).
COLOURS = {"up": "\x1b[32m", "down": "\x1b[33m"}
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
_OWN_COLOURS = re.compile("(" + "|".join(map(re.escape, (*COLOURS.values(), BOLD, PLAIN))) + ")")
# What a terminal acts on instead of showing it: control characters but for the end of a line and the tab, and marks
# that change the direction of the text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What must stay on one line: an interval, and the difference before it.
_INTERVAL = re.compile(r" ?\[[^\[\]]*\]")
# Where the name of a method may be broken.
_PIECES = re.compile(r"[^:,/ ]*[:,/ ]?")

Lines = list[str]
# The lines of every cell of a column, the header first.
Column = list[Lines]


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
        """Break sentences where the line ends, but never an interval.

        Example:
            >>> print(TextStyle(prose=30).wrap("logn lowers APf by 2.8 [1.8, 3.8] in all."))
            logn lowers APf by
            2.8 [1.8, 3.8] in all.
        """
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

    Where they do not fit, the columns with several lines (a metric with its difference) come first and narrower, the
    others in tables below that repeat the keys.

    Args:
        header: The titles.
        rows: The cells; one may have several lines.
        style: What to fit.
        keys: How many columns say what a row is.
        tones: Of each cell "up", "down" or nothing: the colour of the lines below its first.

    Example:
        >>> rows = [("none", "3.9", "8.3"), ("logn", "3.2\n-0.7 [-1.2, -0.2]", "6.6")]
        >>> print(write_table(("method", "AP", "AP50"), rows))
        method                 AP  AP50
        ───────────────────────────────
        none                  3.9   8.3
        logn                  3.2   6.6
                -0.7 [-1.2, -0.2]
        >>> print(write_table(("method", "AP", "AP50"), rows, TextStyle(width=24)))
        method            AP
        ────────────────────
        none             3.9
        logn             3.2
                        -0.7
                [-1.2, -0.2]
        <BLANKLINE>
        method  AP50
        ────────────
        none     8.3
        logn     6.6
    """
    texts = [[printable(cell) for cell in row] for row in (header, *rows)]
    columns: list[Column] = [[cell.split("\n") for cell in column] for column in zip(*texts, strict=True)]
    colours = [[""] * len(header), *(tones or [[""] * len(header)] * len(rows))]
    blocks = [list(range(len(columns)))]
    if style.width is not None and _width(columns) > style.width:
        columns = _narrower(columns, style.width, keys)
        blocks = _packed(columns, style.width, keys)
    return "\n\n".join(
        "\n".join(
            _block(
                [columns[place] for place in block], [[row[place] for place in block] for row in colours], style, keys
            )
        )
        for block in blocks
    )


def cell_width(text: str) -> int:
    """How many columns of a terminal a text takes: two for a wide character, none for an accent.

    Example:
        >>> cell_width("fork"), cell_width("猫")
        (4, 2)
    """
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def _width(columns: Sequence[Column]) -> int:
    return sum(map(_column_width, columns)) + GAP * (len(columns) - 1)


def _column_width(column: Column) -> int:
    return max(cell_width(line) for cell in column for line in cell)


def _is_tall(column: Column) -> bool:
    return any(len(cell) > 1 for cell in column)


def _narrower(columns: Sequence[Column], width: int, keys: int) -> list[Column]:
    """Fold long names and titles; intervals move to a line of their own where their columns do not fit beside."""
    named = [[_folded(cell, max(width // 4, 8)) for cell in column] for column in columns[:keys]]
    titled = [[_title(column), *column[1:]] for column in columns[keys:]]
    tall = [column for column in titled if _is_tall(column[1:])]
    if tall and _width([*named, *tall]) > width:
        titled = [[column[0], *map(_interval_below, column[1:])] for column in titled]
    return [*named, *titled]


def _folded(cell: Lines, width: int) -> Lines:
    """Break a name behind its punctuation."""
    lines = [""]
    for piece in (piece for text in cell for piece in _PIECES.findall(text)):
        if lines[-1] and cell_width(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _title(column: Column) -> Lines:
    """Break a title at its spaces where it is wider than what stands below it."""
    (text,) = column[0]
    below = _column_width(column[1:]) if column[1:] else 0
    return textwrap.wrap(text, max(below, NARROWEST_TITLE), break_long_words=False) or [""]


def _interval_below(cell: Lines) -> Lines:
    return [part for line in cell for part in (line.replace(" [", "\n[").split("\n"))]


def _packed(columns: Sequence[Column], width: int, keys: int) -> list[list[int]]:
    """Places of the columns of each block: tall ones first, then as many as fit."""
    tall = [place for place in range(keys, len(columns)) if _is_tall(columns[place][1:])]
    others = [place for place in range(keys, len(columns)) if place not in tall]
    blocks: list[list[int]] = []
    for group in (tall, others):
        open_block: list[int] = []
        for place in group:
            wanted = [columns[at] for at in (*range(keys), *open_block, place)]
            if open_block and _width(wanted) > width:
                blocks.append(open_block)
                open_block = []
            open_block.append(place)
        blocks += [open_block] if open_block else []
    return [[*range(keys), *block] for block in blocks]


def _block(columns: Sequence[Column], tones: Sequence[Sequence[str]], style: TextStyle, keys: int) -> Lines:
    widths = [_column_width(column) for column in columns]
    lines: Lines = []
    for place, cells in enumerate(zip(*columns, strict=True)):
        height = max(map(len, cells))
        # The words of a title stand on the rule, those of a row hang from its first line.
        filled = [
            [""] * (height - len(cell)) + cell if place == 0 else cell + [""] * (height - len(cell)) for cell in cells
        ]
        for level in range(height):
            parts = [
                _aligned(cell[level], widths[at], left=at < keys, colour=_colour(style, tones[place][at], place, level))
                for at, cell in enumerate(filled)
            ]
            lines.append((" " * GAP).join(parts).rstrip())
        if place == 0:
            lines.append(style.rule * (sum(widths) + GAP * (len(widths) - 1)))
    return lines


def _colour(style: TextStyle, tone: str, row: int, level: int) -> str:
    if not style.colours:
        return ""
    return BOLD if row == 0 else COLOURS.get(tone, "") if level else ""


def _aligned(text: str, width: int, *, left: bool, colour: str) -> str:
    space = " " * (width - cell_width(text))
    shown = f"{colour}{text}{PLAIN}" if colour and text else text
    return shown + space if left else space + shown
