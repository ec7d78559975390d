"""One result, written for people and for papers: plain text, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from logn.errors import InputError
from logn.evaluate.bootstrap import Interval
from logn.evaluate.comparison import Comparison, interval_text
from logn.evaluate.error_types import ERROR_TYPES, SPECIAL_ERRORS
from logn.evaluate.method_result import MethodResult

# Wide enough for every table here: a table is never broken to fit a terminal that is not there.
TEXT_WIDTH = 250

MAIN_COLUMNS = ("AP", "APr", "APc", "APf")
OTHER_COLUMNS = (
    *("AP50", "AP75", "AP-mask", "APr-mask", "APc-mask", "APf-mask"),
    *("AP-Fixed", "APr-Fixed", "AP-Pool", "APr-Pool", "ECE"),
)


@dataclass(frozen=True)
class Table:
    """A header, rows of text and what they mean; a cell may have two lines.

    Example:
        >>> print(Table("Cups", ("method", "AP"), (("none", "25.4"),)).to_markdown())
        | method |   AP |
        |:-------|-----:|
        | none   | 25.4 |
        <BLANKLINE>
        Cups
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_text(self) -> str:
        """Write the table with aligned columns."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as RichTable

        table = RichTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for place, name in enumerate(self.header):
            table.add_column(name, justify="right" if place else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*(cell.replace("[", r"\[") for cell in row))
        buffer = io.StringIO()
        Console(file=buffer, width=TEXT_WIDTH, color_system=None).print(table)
        lines = [line.rstrip() for line in buffer.getvalue().strip("\n").splitlines()]
        return "\n".join([*lines, self.caption])

    def to_markdown(self) -> str:
        """Write the table for a README or a pull request."""
        lines = [[cell.replace("\n", " ") for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rule = "|".join([":" + "-" * (widths[0] + 1), *("-" * (width + 1) + ":" for width in widths[1:])])
        written = [_markdown_line(row, widths) for row in lines]
        return "\n".join([written[0], f"|{rule}|", *written[1:], "", self.caption])

    def to_csv(self) -> str:
        """Write the table as comma-separated values, without the caption.

        Example:
            >>> print(Table("", ("method", "AP"), (("logn:margin=0,use_std=false", "25.4"),)).to_csv())
            method,AP
            "logn:margin=0,use_std=false",25.4
            <BLANKLINE>
        """
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([self.header, *self.rows])
        return buffer.getvalue()

    def to_latex(self) -> str:
        """Write the table for a paper; it needs the package booktabs."""
        body = [" & ".join(map(_latex, row)) + r" \\" for row in self.rows]
        return "\n".join(
            [
                r"\begin{tabular}{l" + "r" * (len(self.header) - 1) + "}",
                r"\toprule",
                " & ".join(map(_latex, self.header)) + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                f"% {self.caption}",
            ]
        )


def _markdown_line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
    return f"| {' | '.join(cells)} |"


def _latex(text: str) -> str:
    text = text.replace("\n", " ")
    for character in "&%#_$":
        text = text.replace(character, "\\" + character)
    return text


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Give the tables of a comparison: metrics with differences, then errors and sweeps where there are any."""
    tables = [metric_table(comparison)]
    if comparison.rows[0].errors is not None:
        tables.append(error_table(comparison))
    return tables + sweep_tables(comparison)


def metric_table(comparison: Comparison) -> Table:
    """One row per method: the main metrics, below each its difference to the first row, then the others."""
    main = [name for name in MAIN_COLUMNS if name in comparison.metric_names]
    others = [name for name in OTHER_COLUMNS if name in comparison.metric_names]
    rows = []
    for place, row in enumerate(comparison.rows):
        changes = [f"\n{change_text(row.differences[name])}" if place else "" for name in main]
        cells = [points(row[name]) + change for name, change in zip(main, changes, strict=True)]
        rows.append((row.name, *cells, *(points(row[name]) for name in others), f"{row.seconds:.2f}"))
    return Table(caption(comparison), ("method", *main, *others, "s"), tuple(rows))


def error_table(comparison: Comparison) -> Table:
    """One row per method and group: AP50 and what each kind of error costs."""
    names = (*ERROR_TYPES, *SPECIAL_ERRORS)
    rows = [
        (row.name, group, points(values["AP50"]), *(points(values[name]) for name in names))
        for row in comparison.rows
        for group, values in _error_groups(row).items()
    ]
    text = "AP50 that mending each kind of error would add (TIDE 1.0.1, boxes); FP and FN overlap with the six."
    return Table(text, ("method", "classes", "AP50", *names), tuple(rows))


def _error_groups(row: MethodResult) -> dict[str, Mapping[str, float]]:
    if row.errors is None:
        return {}
    return {"all": {"AP50": row.errors.base, **row.errors.gains}, **row.errors.per_group}


def sweep_tables(comparison: Comparison) -> list[Table]:
    """One table per sweep: the metrics over its values."""
    tables = []
    for curve in comparison.curves:
        names = [name for name in MAIN_COLUMNS if name in curve.metrics]
        rows = [
            (f"{value:g}", *(points(curve.metrics[name][place]) for name in names))
            for place, value in enumerate(curve.sweep.values)
        ]
        text = f"{curve.sweep.method} over {curve.sweep.parameter}; no value was chosen."
        if curve.chosen:
            text = (
                f"{curve.sweep.method} over {curve.sweep.parameter}; the other half of the images chose {curve.chosen}."
            )
        tables.append(Table(text, (curve.sweep.parameter, *names), tuple(rows)))
    return tables


def full_table(comparison: Comparison) -> Table:
    """Every metric and every difference with its ends, for a spreadsheet; in points."""
    names = comparison.metric_names
    header = [
        "method",
        *(f"{name}{part}" for name in names for part in ("", " difference", " low", " high")),
        "seconds",
    ]
    rows = []
    for row in comparison.rows:
        cells = [row.name]
        for name in names:
            change = row.differences[name]
            cells += [exact(value) for value in (row[name], change.difference, change.low, change.high)]
        rows.append((*cells, f"{row.seconds:.4f}"))
    return Table(caption(comparison), tuple(header), tuple(rows))


def caption(comparison: Comparison) -> str:
    """Say the protocol, how the differences were found, and every note."""
    parts = [comparison.protocol.describe(), comparison.protocol.evaluator]
    if comparison.draws and len(comparison.rows) > 1:
        share = f"{100 * comparison.confidence:g} %"
        parts.append(f"differences with {share} intervals from {comparison.draws:,} paired draws of images")
    pool = comparison.protocols.get("AP-Pool")
    own = []
    if pool is not None and pool.per_class_limit:
        own.append(
            f"AP-Fixed and AP-Pool: the best {pool.per_class_limit:,} detections of each class, no limit an image"
        )
    notes = dict.fromkeys(
        [*comparison.notes, *(f"{row.name}: {note}" for row in comparison.rows for note in row.notes)]
    )
    return ". ".join([", ".join(parts), *own, *(note.rstrip(".") for note in notes)]) + "."


def points(value: float) -> str:
    """Write a value between 0 and 1 in points.

    Example:
        >>> points(0.2543), points(float("nan"))
        ('25.4', '-')
    """
    return "-" if math.isnan(value) else f"{100 * value:.1f}"


def exact(value: float) -> str:
    """Write a value between 0 and 1 in points with four decimals; nothing where there is none."""
    return "" if math.isnan(value) else f"{100 * value:.4f}"


def change_text(change: Interval) -> str:
    """Write a difference with its interval, where there is one.

    Example:
        >>> change_text(Interval(0.041, 0.02, 0.063))
        '+4.1 [2.0, 6.3]'
    """
    if math.isnan(change.difference):
        return "-"
    text = f"{100 * change.difference:+.1f}"
    return text if math.isnan(change.low) else f"{text} {interval_text(change)}"


_WRITERS: Mapping[str, Callable[[Comparison], str]] = {
    "table": lambda comparison: "\n\n".join(table.to_text() for table in comparison_tables(comparison)),
    "markdown": lambda comparison: "\n\n".join(table.to_markdown() for table in comparison_tables(comparison)),
    "csv": lambda comparison: full_table(comparison).to_csv(),
    "latex": lambda comparison: "\n\n".join(table.to_latex() for table in comparison_tables(comparison)),
}
FORMATS = tuple(_WRITERS)


def write_comparison(comparison: Comparison, form: str = "table") -> str:
    """Write a comparison as "table", "markdown", "csv" or "latex".

    Text, Markdown and LaTeX show the main metrics in points; CSV has every metric with the ends of every interval.
    """
    if form not in _WRITERS:
        raise InputError(f"Expected `format` to be one of {', '.join(FORMATS)}, but got {form!r}.")
    return _WRITERS[form](comparison)
