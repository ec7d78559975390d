"""What the page calls things: a detector has AP, boxes and images, a classifier accuracy and rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from logn.evaluate.comparison.comparison import CLASSIFICATION, DETECTION, Comparison, MethodResult
from logn.evaluate.comparison.tables import MAIN_COLUMNS, OTHER_COLUMNS, points


@dataclass(frozen=True)
class TaskWords:
    """The words and metrics of a task.

    Args:
        model: What was corrected.
        metric: The metric of the headline.
        score: What to call it.
        data: What all methods were measured on.
        units: What the draws draw.
        examples: What is counted of a class in the evaluated data.
        groups: Titles of the metrics by group, the last one of all classes.
        main: Columns of the table with differences.
        others: Columns without.
        beside: Those of them that stand beside the main ones; the rest is folded.
    """

    model: str
    metric: str
    score: str
    data: str
    units: str
    examples: str
    groups: Mapping[str, str]
    main: tuple[str, ...]
    others: tuple[str, ...]
    beside: tuple[str, ...]


WORDS = {
    DETECTION: TaskWords(
        model="detector",
        metric="AP",
        score="AP",
        data="proposals",
        units="images",
        examples="boxes",
        groups={"APr": "Rare classes", "APc": "Common classes", "APf": "Frequent classes", "AP": "All classes"},
        main=MAIN_COLUMNS[DETECTION],
        others=OTHER_COLUMNS[DETECTION],
        beside=("AP50", "AP75", "ECE"),
    ),
    CLASSIFICATION: TaskWords(
        model="classifier",
        metric="top-1",
        score="accuracy",
        data="logits",
        units="rows",
        examples="rows",
        groups={
            "few": "Few-shot classes",
            "medium": "Medium-shot classes",
            "many": "Many-shot classes",
            "top-1": "All rows",
        },
        main=MAIN_COLUMNS[CLASSIFICATION],
        others=OTHER_COLUMNS[CLASSIFICATION],
        beside=("balanced", "ECE", "confidence"),
    ),
}
# Of these the smallest value is the best; of those neither end is.
SMALL_IS_GOOD = ("ECE", "NLL")
NEITHER_IS_GOOD = ("confidence",)


def words_of(comparison: Comparison) -> TaskWords:
    """The words for what was compared."""
    return WORDS[comparison.task]


def metric_of(row: MethodResult, name: str) -> float:
    """A metric of a method; NaN where it was not measured."""
    return row.values.get(name, math.nan)


def metric_text(name: str, value: float) -> str:
    """A metric as the table has it: in points, the negative log-likelihood in nats.

    Example:
        >>> metric_text("AP", 0.254), metric_text("NLL", 1.5)
        ('25.4', '1.500')
    """
    return f"{value:.3f}" if name == "NLL" and not math.isnan(value) else points(value)
