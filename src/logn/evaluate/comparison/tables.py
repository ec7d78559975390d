"""One result, written for people and for papers: plain text, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from logn.errors import InputError
from logn.evaluate.comparison.comparison import CLASSIFICATION, Comparison
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.verdict import interval_text, tone
from logn.evaluate.detection.bootstrap import Interval
from logn.evaluate.detection.recall_at_count import SHOWN_AT, recall_name
from logn.evaluate.detection.tide import ERROR_TYPES, SPECIAL_ERRORS
from logn.table import USUAL, TextStyle, write_table

RECALL = recall_name(SHOWN_AT)
MAIN_COLUMNS = ("AP", "APr", "APc", "APf", RECALL)
FORMATS = ("table", "markdown", "csv", "latex")
OTHER_COLUMNS = (
    *("AP50", "AP75", "AP-mask", "APr-mask", "APc-mask", "APf-mask"),
    *("AP-Fixed", "APr-Fixed", "AP-Pool", "APr-Pool", "ECE"),
)


# A header and rows of cells.
Cells = tuple[tuple[str, ...], list[tuple[str, ...]]]
# How to write the values of a metric, by its name.
Writers = Mapping[str, Callable[[float], str]]
NO_WRITERS: Writers = {}


@dataclass(frozen=True)
class Table:
    """A header, rows of text and what they mean; a cell may have two lines.

    Args:
        caption: What the numbers are.
        header: The titles of the columns.
        rows: The cells.
        keys: How many columns say what a row is.
        tones: Of each cell, whether its difference is a clear gain ("up"), a clear loss ("down") or neither.

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
    keys: int = 1
    tones: tuple[tuple[str, ...], ...] = ()

    def to_text(self, style: TextStyle = USUAL) -> str:
        """Write the table with aligned columns; those that do not fit the width stand below the others."""
        written = write_table(self.header, self.rows, style, keys=self.keys, tones=self.tones)
        return f"{written}\n\n{style.wrap(self.caption)}"

    def to_markdown(self) -> str:
        """Write the table for a README or a pull request."""
        lines = [[cell.replace("\n", " ") for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rule = "|".join([":" + "-" * (widths[0] + 1), *("-" * (width + 1) + ":" for width in widths[1:])])
        written = [_markdown_line(row, widths) for row in lines]
        return "\n".join([written[0], f"|{rule}|", *written[1:], "", self.caption])

    def to_csv(self) -> str:
        """Write the table as comma-separated values, without the caption.

        A name that a spreadsheet would run as a formula gets an apostrophe in front; numbers stay as they are.

        Example:
            >>> print(Table("", ("method", "AP"), (("logn:margin=0,use_std=false", "25.4"),)).to_csv())
            method,AP
            "logn:margin=0,use_std=false",25.4
            <BLANKLINE>
        """
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([map(_no_formula, row) for row in (self.header, *self.rows)])
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


def _no_formula(cell: str) -> str:
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


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
    return tables + sweep_tables(comparison, MAIN_COLUMNS, "the other half of the images")


def metric_table(comparison: Comparison) -> Table:
    """One row per method: the main metrics, below each its difference to the first row, then the others."""
    header, rows = metric_cells(comparison, MAIN_COLUMNS, OTHER_COLUMNS)
    return Table(caption(comparison), header, tuple(rows), tones=metric_tones(comparison, header, MAIN_COLUMNS))


def error_table(comparison: Comparison) -> Table:
    """One row per method and group: AP50 and what each kind of error costs."""
    names = (*ERROR_TYPES, *SPECIAL_ERRORS)
    rows = [
        (row.name, group, points(values["AP50"]), *(points(values[name]) for name in names))
        for row in comparison.rows
        for group, values in _error_groups(row).items()
    ]
    overlap = "masks" if comparison.settings.mask_errors else "boxes"
    text = f"AP50 that fixing each kind of error would add (TIDE 1.0.1, {overlap}); FP and FN overlap with the six."
    return Table(text, ("method", "classes", "AP50", *names), tuple(rows), keys=2)


def _error_groups(row: MethodResult) -> dict[str, Mapping[str, float]]:
    if row.errors is None:
        return {}
    return {"all": {"AP50": row.errors.base, **row.errors.gains}, **row.errors.per_group}


def full_table(comparison: Comparison) -> Table:
    """Every metric and every difference with its ends, for a spreadsheet; in points."""
    header, rows = full_cells(comparison)
    timed = tuple((*cells, f"{row.seconds:.4f}") for cells, row in zip(rows, comparison.rows, strict=True))
    return Table(caption(comparison), (*header, "seconds"), timed)


def caption(comparison: Comparison) -> str:
    """Say the protocol, how the differences were found, and every note."""
    parts = [comparison.protocol.describe(), comparison.protocol.evaluator]
    if comparison.num_bootstrap and len(comparison.rows) > 1:
        share = f"{100 * comparison.confidence:g} %"
        parts.append(f"differences with {share} intervals from {comparison.num_bootstrap:,} paired draws of images")
    pool = comparison.protocols.get("AP-Pool")
    own = []
    if pool is not None and pool.per_class_limit:
        own.append(
            f"AP-Fixed and AP-Pool: the best {pool.per_class_limit:,} detections of each class, no limit per image"
        )
    if comparison.baseline.recall:
        own.append(_recall_caption(comparison))
    notes = dict.fromkeys(
        [*comparison.notes, *(f"{row.name}: {note}" for row in comparison.rows for note in row.notes)]
    )
    return ". ".join([", ".join(parts), *own, *(note.rstrip(".") for note in notes)]) + "."


def _recall_caption(comparison: Comparison) -> str:
    """Say what the recall is of, and which threshold gives each method as many detections."""
    first = comparison.baseline.recall[SHOWN_AT]
    of_methods = ", ".join(f"{row.name} {row.recall[SHOWN_AT].threshold:.3g}" for row in comparison.rows)
    return (
        f"{RECALL}: class-mean recall (IoU 0.5) of the {first.detections:,} best detections, as many as "
        f"{comparison.baseline.name} has above {SHOWN_AT:g}; thresholds that keep as many: {of_methods}"
    )


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


def metric_cells(
    comparison: Comparison, main: Sequence[str], others: Sequence[str], writers: Writers = NO_WRITERS
) -> Cells:
    """One row per method: the main metrics, below each its difference to the first row, then the others.

    Args:
        comparison: What was measured.
        main: Metrics with differences, of which only those are shown that were measured.
        others: Metrics without, in the same way.
        writers: Writes the values of those metrics that are not written in points.
    """
    shown = [name for name in main if name in comparison.metric_names]
    extra = [name for name in others if name in comparison.metric_names]
    rows = []
    for place, row in enumerate(comparison.rows):
        changes = [f"\n{change_text(row.differences[name])}" if place else "" for name in shown]
        cells = [points(row[name]) + change for name, change in zip(shown, changes, strict=True)]
        rows.append((row.name, *cells, *(writers.get(name, points)(row[name]) for name in extra)))
    return ("method", *shown, *extra), rows


def metric_tones(comparison: Comparison, header: Sequence[str], main: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Of each cell of `metric_cells`, whether its difference is a clear gain or a clear loss."""
    others = [
        tuple(tone(row.differences[name]) if name in main else "" for name in header) for row in comparison.rows[1:]
    ]
    return (("",) * len(header), *others)


def full_cells(comparison: Comparison, writers: Writers = NO_WRITERS) -> Cells:
    """One row per method: every metric and every difference with its ends."""
    names = comparison.metric_names
    header = ("method", *(f"{name}{part}" for name in names for part in ("", " difference", " low", " high")))
    rows = []
    for row in comparison.rows:
        cells = [row.name]
        for name in names:
            change = row.differences[name]
            numbers = (row[name], change.difference, change.low, change.high)
            cells += map(writers.get(name, exact), numbers)
        rows.append(tuple(cells))
    return header, rows


def sweep_tables(comparison: Comparison, columns: Sequence[str], choosers: str) -> list[Table]:
    """One table per sweep: the metrics over its values; `choosers` is what a value is chosen on."""
    tables = []
    for curve in comparison.curves:
        names = [name for name in columns if name in curve.metrics]
        rows = tuple(
            (f"{value:g}", *(points(curve.metrics[name][place]) for name in names))
            for place, value in enumerate(curve.sweep.values)
        )
        chosen = f"{choosers} chose {curve.chosen}." if curve.chosen else "no value was chosen."
        text = f"{curve.sweep.method} over {curve.sweep.parameter}; {chosen}"
        tables.append(Table(text, (curve.sweep.parameter, *names), rows))
    return tables


def per_class_table(comparison: Comparison) -> Table:
    """AP or accuracy of every class under every method, in points; empty where there is nothing to measure it on."""
    if comparison.task == CLASSIFICATION:
        from logn.evaluate.classification.tables import per_class_table as of_classifier

        return of_classifier(comparison)
    header = ("id", "name", "group", "boxes", *(row.name for row in comparison.rows))
    rows = tuple(
        (
            str(known.id),
            known.name,
            known.group or "",
            str(known.examples),
            *(exact(float(row.metrics.per_class[place])) for row in comparison.rows),
        )
        for place, known in enumerate(comparison.classes)
    )
    return Table(comparison.describe(), header, rows)


def write_comparison(comparison: Comparison, form: str = "table", *, style: TextStyle = USUAL) -> str:
    """Write a comparison, of a detector or of a classifier, as "table", "markdown", "csv" or "latex".

    Text, Markdown and LaTeX show the main metrics in points; CSV has every metric with the ends of every interval.

    Args:
        comparison: What was measured.
        form: One of the four.
        style: What a "table" must fit.
    """
    if form not in FORMATS:
        raise InputError(f"Expected `format` to be one of {', '.join(FORMATS)}, but got {form!r}.")
    tables, full = comparison_tables, full_table
    if comparison.task == CLASSIFICATION:
        from logn.evaluate.classification import tables as of_classifier

        tables, full = of_classifier.classification_tables, of_classifier.full_table
    if form == "csv":
        return full(comparison).to_csv()
    if form == "table":
        return "\n\n".join(table.to_text(style) for table in tables(comparison))
    write = {"markdown": Table.to_markdown, "latex": Table.to_latex}[form]
    return "\n\n".join(map(write, tables(comparison)))
