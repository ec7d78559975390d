"""What to do after reading the page: a few sentences that follow from the numbers, with the commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from logn.evaluate.comparison.comparison import DETECTION, Comparison
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.verdict import tone
from logn.report.task_words import metric_of, words_of

# Methods that can be applied in part.
IN_PART = ("recommended", "logn", "p2p", "loga", "norcal")
# The metric of the frequent classes, and what to call them.
FREQUENT = {"APf": "frequent classes", "many": "many-shot classes"}


@dataclass(frozen=True)
class Step:
    """Something to do, and the command that does it; empty where there is none."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class NextSteps:
    """The end of the page, before how it was made."""

    template: ClassVar[str] = "next_steps.html.jinja"
    steps: tuple[Step, ...]


def next_steps(comparison: Comparison, focus: MethodResult) -> NextSteps:
    """What follows from the numbers for somebody who wants to use the method."""
    return NextSteps(tuple(_steps(comparison, focus)))


def _steps(comparison: Comparison, focus: MethodResult) -> Iterator[Step]:
    words = words_of(comparison)
    change = focus.differences.get(words.metric)
    direction = "flat" if change is None else tone(change)
    best = max(comparison.rows, key=lambda row: metric_of(row, words.metric))
    if direction == "down":
        yield Step(
            f"{focus.name} lowers {words.score} here: keep the model as it is"
            + (f", or look at {best.name}, the highest of the table." if best.name not in (focus.name, "none") else ".")
        )
    else:
        sure = "" if direction == "up" else ", if the groups that matter to you gain more than the others lose"
        yield Step(f"Use it{sure}: correct the model itself, at no cost of speed.", _correct(focus.name))
    yield from _for_frequent(comparison, focus)
    if comparison.task == DETECTION:
        yield Step(
            "Choose the score threshold again: corrected scores are on another scale. One per class, to be folded in:",
            _thresholds(comparison, focus.name),
        )
    yield Step(
        "Confirm it on other images: a method that was chosen by this table has to be measured on images that had no "
        "part in the choice."
    )


def _for_frequent(comparison: Comparison, focus: MethodResult) -> Iterator[Step]:
    for metric, named in FREQUENT.items():
        lost = metric in focus.differences and tone(focus.differences[metric]) == "down"
        if lost and focus.name.partition(":")[0] in IN_PART and "strength=" not in focus.name:
            part = focus.settings.get("strength", 1.0) / 2
            half = f"{focus.name}{',' if ':' in focus.name else ':'}strength={part:g}"
            yield Step(
                f"If {named} matter more to you than rare ones, try half of it: compare with the method {half}, too."
            )


def _correct(method: str) -> str:
    return shlex.join(["logn", "correct", "MODEL", "--images", "train/", "--method", method, "-o", "CORRECTED"])


def _thresholds(comparison: Comparison, method: str) -> str:
    known = comparison.provenance
    predictions = (known.inputs.get("predictions") or {}).get("path", "predictions")
    labels = known.inputs.get("annotations") or "val.json"
    words = ["logn", "thresholds", str(predictions), "-a", str(labels), "--method", method]
    statistics = _given(known.command, "-s", "--statistics")
    words += [] if statistics is None else ["-s", statistics]
    return shlex.join([*words, "--split", "-o", "points.json"])


def _given(command: tuple[str, ...], *options: str) -> str | None:
    """What stands behind an option of the command that compared."""
    for word, following in pairwise(command):
        if word in options:
            return following
    return None
