"""What to do after reading the page: a few sentences that follow from the numbers, with the commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from logn.calibrators.methods import needs
from logn.evaluate.comparison.comparison import DETECTION, Comparison, MethodResult
from logn.evaluate.comparison.tables import tone
from logn.report.commands import command, corrected_name, values_of
from logn.report.task_words import metric_of, words_of

# Methods that can be applied in part.
IN_PART = ("recommended", "logn", "p2p")
# The metric of the frequent classes, and what to call them.
FREQUENT = {"APf": "frequent classes", "many": "many-shot classes"}
# Options of the command that compared which choosing thresholds needs too.
KEPT = ("--statistics", "--counts")


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
        yield _use(comparison, focus.name, sure)
    yield from _for_frequent(comparison, focus)
    if comparison.task == DETECTION:
        again = "Choose the score threshold again: corrected scores are on another scale."
        typed = _thresholds(comparison, focus.name)
        yield Step(f"{again} One per class, to be folded in:" if typed else again, typed)
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


def _use(comparison: Comparison, method: str, sure: str) -> Step:
    """How to correct the model that was measured; where it is not known, how to make the correction."""
    made = comparison.provenance
    model = (made.inputs.get("predictions") or {}).get("model_words")
    if model or not [*values_of(made.command, "--statistics")]:
        words = ["logn", "correct", *(model or ["MODEL"]), "--images", "train/", "--method", method]
        typed = command(*words, "-o", corrected_name(model[0]) if model else "CORRECTED")
        return Step(f"Use it{sure}: correct the model itself, at no cost of speed.", typed)
    (statistics, *_) = values_of(made.command, "--statistics")
    typed = command("logn", "fit", statistics, "--method", method, "-o", "affine.safetensors")
    return Step(f"Use it{sure}: make the correction, which the weights of the model take at no cost of speed.", typed)


def _thresholds(comparison: Comparison, method: str) -> str:
    """The command that chooses thresholds after a method; empty where `logn thresholds` cannot fit it."""
    made = comparison.provenance
    predictions = (made.inputs.get("predictions") or {}).get("path", "PREDICTIONS")
    words = ["logn", "thresholds", str(predictions), "-d", str(made.inputs.get("annotations") or "LABELS")]
    words += ["--method", method]
    if not method.endswith(".safetensors"):  # a file of `logn fit` needs nothing else
        needed = {*needs(method)}
        if not needed <= {"moments", "counts"}:
            return ""
        words += ["-s", "STATISTICS"] if "moments" in needed and not [*values_of(made.command, "--statistics")] else []
        words += ["--counts", "COUNTS"] if "counts" in needed and not [*values_of(made.command, "--counts")] else []
    return command(*words, "-o", "points.json", keep=KEPT, given=made.command)
