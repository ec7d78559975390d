"""One result, written for people: tables as text and Markdown, and verdicts that claim no more than intervals allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from logn.base.text_table import USUAL, TextStyle, write_table
from logn.errors import InputError
from logn.measure.classification.accuracy import SHOTS
from logn.measure.comparison import CLASSIFICATION, DETECTION, Comparison, MethodResult
from logn.measure.detection.bootstrap import Interval
from logn.measure.detection.metrics import count_name
from logn.measure.detection.threshold_curve import describe_threshold
from logn.measure.detection.tide import ERROR_TYPES, SPECIAL_ERRORS

FORMATS = ("table", "markdown")
# What is measured at an equal number of detections: class means, then numbers.
AT_COUNT = ("recall", "precision", "F1", "found", "found-r", "false-alarms-r")
OTHER_COLUMNS = {
    DETECTION: (
        *("AP50", "AP75", "AP-mask", "APr-mask", "APc-mask", "APf-mask"),
        *("AP-Pool", "APr-Pool", "ECE"),
    ),
    CLASSIFICATION: ("balanced", "ECE", "confidence", "NLL"),
}
# What the verdict is about, and what to call it; of a detector after its recall and F1.
VERDICTS = {
    DETECTION: {name: name for name in ("APr", "APc", "APf", "AP")},
    CLASSIFICATION: {
        "few": "few-shot accuracy",
        "medium": "medium-shot accuracy",
        "many": "many-shot accuracy",
        "top-1": "overall accuracy",
    },
}
SHOWN_PAIRS = 8
NEITHER_IS_GOOD = ("confidence",)


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


def _markdown_line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
    return f"| {' | '.join(cells)} |"


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Give the tables of a comparison: metrics with differences, then errors or confusions where there are any."""
    tables = [metric_table(comparison)]
    if comparison.baseline.errors is not None:
        tables.append(error_table(comparison))
    if comparison.baseline.confused:
        tables.append(confusion_table(comparison))
    return tables


def main_columns(comparison: Comparison) -> list[str]:
    """The metrics that are shown with their difference to the uncorrected model."""
    names = ["top-1", *SHOTS]
    if comparison.task == DETECTION:
        names = ["AP", "APr", "APc", "APf", *(count_name(name, comparison.settings.at) for name in AT_COUNT)]
    return [name for name in names if name in comparison.metric_names]


def metric_table(comparison: Comparison, others: Sequence[str] | None = None) -> Table:
    """One row per method: the main metrics, below each its difference to the first row, then `others`."""
    main = main_columns(comparison)
    others = OTHER_COLUMNS[comparison.task] if others is None else others
    others = [name for name in others if name in comparison.metric_names]
    rows, tones = [], []
    for index, row in enumerate(comparison.rows):
        changes = [f"\n{change_text(row.differences[name], name)}" if index else "" for name in main]
        cells = [metric_text(name, row[name]) + change for name, change in zip(main, changes, strict=True)]
        rows.append((row.name, *cells, *(metric_text(name, row[name]) for name in others)))
        of_main = [tone(row.differences[name], name) if index else "" for name in main]
        tones.append(("", *of_main, *[""] * len(others)))
    return Table(caption(comparison), ("method", *main, *others), tuple(rows), tones=tuple(tones))


def error_table(comparison: Comparison) -> Table:
    """One row per method and group: AP50 and what each kind of error costs."""
    names = (*ERROR_TYPES, *SPECIAL_ERRORS)
    rows = [
        (row.name, group, points(values["AP50"]), *(points(values[name]) for name in names))
        for row in comparison.rows
        for group, values in _error_groups(row).items()
    ]
    text = "AP50 that fixing each kind of error would add (TIDE 1.0.1); FP and FN overlap with the six."
    return Table(text, ("method", "classes", "AP50", *names), tuple(rows), keys=2)


def _error_groups(row: MethodResult) -> dict[str, Mapping[str, float]]:
    if row.errors is None:
        return {}
    return {"all": {"AP50": row.errors.base, **row.errors.gains}, **row.errors.per_group}


def confusion_table(comparison: Comparison) -> Table:
    """What the uncorrected model confuses most, and how often each method does."""
    classes = comparison.classes
    rows = tuple(
        (
            classes[pair.label].name,
            classes[pair.predicted].name,
            str(classes[pair.label].examples),
            *(str(row.confused[index].errors) for row in comparison.rows),
        )
        for index, pair in enumerate(comparison.baseline.confused[:SHOWN_PAIRS])
    )
    text = "The pairs that the uncorrected model confuses most: rows of the class that are taken for the other."
    return Table(text, ("class", "taken for", "rows", *(row.name for row in comparison.rows)), rows, keys=2)


def caption(comparison: Comparison) -> str:
    """Say what was measured, how the differences were found, and every note."""
    parts = [comparison.description]
    if comparison.task == DETECTION:
        parts.append(comparison.protocol.evaluator)
    settings = comparison.settings
    if settings.num_bootstrap and len(comparison.rows) > 1:
        units = "images" if comparison.task == DETECTION else "rows"
        share = f"{100 * settings.confidence:g} %"
        parts.append(f"differences with {share} intervals from {settings.num_bootstrap:,} paired draws of {units}")
    own = [_recall_caption(comparison)] if comparison.baseline.recall else []
    return ". ".join([", ".join(parts), *own, *(note.rstrip(".") for note in comparison.notes)]) + "."


def _recall_caption(comparison: Comparison) -> str:
    """Say what recall, precision and F1 are of, and which threshold gives each method as many detections."""
    at = comparison.settings.at
    first = comparison.baseline.recall[at]
    of_methods = ", ".join(f"{row.name} {row.recall[at].threshold:.3g}" for row in comparison.rows)
    return (
        f"@n:{at:g}: class-mean recall, precision and F1 (IoU 0.5), objects found and false alarms (r: rare classes) "
        f"of the {first.detections:,} best detections, as many as {comparison.baseline.name} has above {at:g}; "
        f"thresholds that keep as many: {of_methods}"
    )


def is_number(name: str) -> bool:
    """Whether a metric is a number of detections instead of a share.

    Example:
        >>> is_number("false-alarms-r@n:0.25"), is_number("F1@n:0.25")
        (True, False)
    """
    return name.startswith(("found", "false-alarms"))


def metric_text(name: str, value: float) -> str:
    """A metric as a table has it: in points, numbers as they are, the negative log-likelihood in nats.

    Example:
        >>> metric_text("AP", 0.254), metric_text("NLL", 1.5), metric_text("found@n:0.25", 1017)
        ('25.4', '1.500', '1,017')
    """
    if is_number(name):
        return f"{value:,.0f}"
    return _nats(value) if name == "NLL" else points(value)


def points(value: float) -> str:
    """Write a value between -1 and 1 in points; a zero has no sign.

    Example:
        >>> points(0.2543), points(-0.0002), points(float("nan"))
        ('25.4', '0.0', '-')
    """
    return "-" if math.isnan(value) else f"{round(100 * value, 1) + 0.0:.1f}"


def _nats(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def change_text(change: Interval, name: str = "") -> str:
    """Write the difference of a metric with its interval, where there is one.

    Example:
        >>> change_text(Interval(0.041, 0.02, 0.063)), change_text(Interval(57, 40, 75), "false-alarms-r@n:0.25")
        ('+4.1 [2.0, 6.3]', '+57 [40, 75]')
    """
    if math.isnan(change.difference):
        return "-"
    if is_number(name):
        ends = "" if math.isnan(change.low) else f" [{change.low:,.0f}, {change.high:,.0f}]"
        return f"{change.difference:+,.0f}{ends}".replace("[-0,", "[0,").replace(" -0]", " 0]")
    text = f"{100 * change.difference:+.1f}"
    return text if math.isnan(change.low) else f"{text} {interval_text(change)}"


def write_comparison(comparison: Comparison, form: str = "table", *, style: TextStyle = USUAL) -> str:
    """Write a comparison, of a detector or of a classifier, as "table" or "markdown"; metrics are in points.

    Args:
        comparison: What was measured.
        form: One of the two.
        style: What a "table" must fit.
    """
    if form not in FORMATS:
        raise InputError(f"Expected `form` to be one of {', '.join(FORMATS)}, but got {form!r}.")
    tables = comparison_tables(comparison)
    return "\n\n".join(table.to_text(style) if form == "table" else table.to_markdown() for table in tables)


def describe_method(comparison: Comparison, row: MethodResult) -> str:
    """Say in a sentence or two what the method of a row changes."""
    at_count = {count_name(name, comparison.settings.at): name for name in ("recall", "F1")}
    titles = (at_count if comparison.task == DETECTION else {}) | VERDICTS[comparison.task]
    changes = {title: row.differences[metric] for metric, title in titles.items() if metric in row.differences}
    sentences = [describe_changes(row.name, changes)]
    before, after = comparison.baseline, row
    if comparison.task == CLASSIFICATION:
        confidence = f"{100 * before['confidence']:.1f} to {100 * after['confidence']:.1f}"
        sentences.append(
            f"{describe_calibration(before.values, after.values)}, its mean confidence goes from {confidence}."
        )
    elif "ECE" in row.differences:
        sentences.append(f"{describe_calibration(before.values, after.values)}.")
    rare = count_name("false-alarms", comparison.settings.at, "r")
    if rare in row.differences:
        right = count_name("found", comparison.settings.at, "r")
        numbers = [f"{before[name]:,.0f} -> {after[name]:,.0f}" for name in (right, rare)]
        change = change_text(row.differences[rare], rare)
        sentences.append(f"Rare classes: {numbers[0]} right, {numbers[1]} false alarms ({change}).")
    if before.thresholds is not None and after.thresholds is not None:
        sentences.append(describe_threshold(before.thresholds, after.thresholds))
    return " ".join(sentences)


def describe_changes(name: str, differences: Mapping[str, Interval]) -> str:
    """Say which metrics a method raises, which it lowers, and of which neither can be said.

    Example:
        >>> describe_changes("logn", {"APr": Interval(0.041, 0.02, 0.063), "APf": Interval(-0.003, -0.009, 0.002)})
        'logn raises APr by 4.1 [2.0, 6.3]; no clear change in APf (-0.3 [-0.9, 0.2]).'
        >>> describe_changes("logn", {"APf": Interval(-0.028, -0.038, -0.018)})
        'logn lowers APf by 2.8 [1.8, 3.8].'
        >>> describe_changes("logn", {"AP": Interval(0.0002, 0.0001, 0.0003)})
        'logn makes no clear difference in AP (+0.0 [0.0, 0.0]).'
        >>> describe_changes("logn", {"AP": Interval(0.01, float("nan"), float("nan"))})
        'logn changes AP by +1.0, without intervals to say how sure that is.'
    """
    changes = {metric: change for metric, change in differences.items() if not math.isnan(change.difference)}
    if not changes:
        return f"Nothing can be said about {name}: no metric was measured."
    if all(math.isnan(change.low) for change in changes.values()):
        listed = join_words(f"{metric} by {100 * change.difference:+.1f}" for metric, change in changes.items())
        return f"{name} changes {listed}, without intervals to say how sure that is."
    # A change that is written as 0.0 is none.
    clear_ones = {metric for metric, change in changes.items() if change.is_clear and abs(change.difference) >= 0.0005}
    raised = [_amount(metric, change) for metric, change in changes.items() if metric in clear_ones and change.low > 0]
    lowered = [
        _amount(metric, change) for metric, change in changes.items() if metric in clear_ones and change.high < 0
    ]
    unclear = [
        f"{metric} ({100 * change.difference:+.1f} {interval_text(change)})"
        for metric, change in changes.items()
        if metric not in clear_ones
    ]
    verbs = [f"{verb} {join_words(amounts)}" for verb, amounts in (("raises", raised), ("lowers", lowered)) if amounts]
    if not verbs:
        return f"{name} makes no clear difference in {join_words(unclear)}."
    clear = f"{name} {' and '.join(verbs)}"
    return f"{clear}; no clear change in {join_words(unclear)}." if unclear else f"{clear}."


def describe_calibration(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Say whether scores mean less than before, without the stop.

    Example:
        >>> describe_calibration({"ECE": 0.062}, {"ECE": 0.19})
        'Its calibration error (ECE) rises from 6.2 to 19.0'
    """
    old, new = before["ECE"], after["ECE"]
    if math.isnan(old) or math.isnan(new):
        return "Its calibration error (ECE) could not be measured"
    if math.isclose(old, new, abs_tol=5e-4):
        return f"Its calibration error (ECE) stays at {100 * new:.1f}"
    return f"Its calibration error (ECE) {'falls' if new < old else 'rises'} from {100 * old:.1f} to {100 * new:.1f}"


def tone(change: Interval, name: str = "") -> str:
    """Whether a change is a clear gain or a clear loss: only what the whole interval makes sure is coloured.

    Example:
        >>> tone(Interval(0.02, 0.01, 0.03)), tone(Interval(0.02, -0.01, 0.03)), tone(Interval(-0.1, -0.2, -0.05))
        ('up', 'flat', 'down')
        >>> tone(Interval(57, 40, 75), "false-alarms-r@n:0.25"), tone(Interval(0.1, 0.1, 0.2), "confidence")
        ('down', 'flat')
    """
    if name in NEITHER_IS_GOOD or not (change.low > 0 or change.high < 0):
        return "flat"
    return "up" if (change.low > 0) != small_is_good(name) else "down"


def small_is_good(name: str) -> bool:
    """Whether less of a metric is better."""
    return name in ("ECE", "NLL") or name.startswith("false-alarms")


def _amount(metric: str, change: Interval) -> str:
    """By how much, without a sign: the verb has it, and so the ends of the interval have none either."""
    low, high = sorted((abs(change.low), abs(change.high)))
    return f"{metric} by {points(abs(change.difference))} [{points(low)}, {points(high)}]"


def interval_text(change: Interval) -> str:
    """Write the ends of an interval in points.

    Example:
        >>> interval_text(Interval(0.02, -0.01, 0.05))
        '[-1.0, 5.0]'
    """
    return f"[{points(change.low)}, {points(change.high)}]"


def join_words(words: Iterable[str]) -> str:
    """Join with commas and a last "and".

    Example:
        >>> join_words(["a", "b", "c"])
        'a, b and c'
    """
    listed = list(words)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
