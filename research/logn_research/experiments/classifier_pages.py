"""The tables of classifiers for people and for programs: text, a Markdown page, JSON; the paper's next to ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from logn.evaluate.comparison.tables import Table
from logn.strict_json import plain_values
from logn.text_table import USUAL, TextStyle
from logn_research.experiments.classifier_measurements import ClassifierRowResult, ClassifierSectionResult
from logn_research.experiments.classifier_spec import ClassifierProblem
from logn_research.experiments.formatting import half_width, listed, signed, write_page
from logn_research.experiments.imagenet_lt import COMPONENTS, MAIN, MORE, PAPER_DATA, PAPER_MODEL, PaperAccuracy

NAME = "imagenet-lt"
COLUMNS = {"many": "many", "medium": "medium", "few": "few", "overall": "top-1"}
READING = (
    "Every row of the paper's ImageNet-LT table, on the same data and network: Focal loss, EQL, B-Softmax and Seesaw "
    "train the whole network; cRT and LWS train the classifier of the Softmax row again, or a scale for each of its "
    "classes, with class-balanced sampling; tau-norm, LogA and LogN correct a trained classifier. As in the paper, "
    "LogA (tau 1), LogN and Seesaw have a normalised (cosine) classifier, the others a linear one, so the last "
    "section shows what the classifier and the correction do each. The tau of tau-norm is the best on dev in steps of "
    "0.05, as its authors choose it; nothing else is chosen by labels. The paper's numbers stand "
    "next to ours: another network on other data, so compare differences, not heights."
)


@dataclass(frozen=True)
class ClassifierBench:
    """The tables of classifiers, measured.

    Args:
        problem: The data and the length of training.
        seeds: Of data and training.
        sections: What was measured.
        facts: Sizes of the data.
    """

    problem: ClassifierProblem
    seeds: tuple[int, ...]
    sections: tuple[ClassifierSectionResult, ...]
    facts: Mapping[str, Any]

    @property
    def failures(self) -> list[str]:
        """Why rows have no number."""
        return [
            f"{section.title}, {found.row.label}, seed {seed}: {sentence}"
            for section in self.sections
            for found in section.rows
            for seed, sentence in found.failures.items()
        ]

    @property
    def measured(self) -> bool:
        """Whether any row has a number."""
        return any(found.metrics for section in self.sections for found in section.rows)


def mean_text(values: Sequence[float], *, sign: bool = False) -> str:
    """Write the mean with its interval.

    Example:
        >>> mean_text([60.0, 61.0, 62.0]), mean_text([1.0], sign=True), mean_text([])
        ('61.0 ± 2.5', '+1.0', '-')
    """
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):{'+' if sign else ''}.1f}"
    width = half_width(values)
    return mean if math.isnan(width) else f"{mean} ± {width:.1f}"


def section_table(bench: ClassifierBench, section: ClassifierSectionResult) -> Table:
    """Our accuracies, the change against the baseline, calibration, then the paper's accuracies."""
    has_paper = any(found.row.paper for found in section.rows)
    header = ["method", *COLUMNS, "change", "ECE"]
    header += [f"{PAPER_DATA}: {name}" for name in COLUMNS] if has_paper else []
    seeds = f", mean of {len(bench.seeds)} seeds ± 95 % interval of the mean" if len(bench.seeds) > 1 else ""
    last_columns = f"; last columns: the paper's {PAPER_MODEL} on {PAPER_DATA}" if has_paper else ""
    caption = (
        f"{section.title}. Accuracy in percent on {bench.problem.name}{seeds}; change: of overall accuracy against "
        f"{_baselines(section)}, seed by seed{last_columns}."
    )
    return Table(caption, tuple(header), tuple(_line(section, found, has_paper) for found in section.rows))


def _baselines(section: ClassifierSectionResult) -> str:
    named = list(dict.fromkeys(found.row.baseline for found in section.rows))
    return named[0] if len(named) == 1 else "the uncorrected classifier of its kind"


def _line(section: ClassifierSectionResult, found: ClassifierRowResult, has_paper: bool) -> tuple[str, ...]:
    paper = _paper_cells(found.row.paper) if has_paper else ()
    if not found.metrics:
        return (found.row.label, "failed", *[""] * (len(COLUMNS) + 1), *paper)
    cells = [mean_text(list(found.values(metric).values())) for metric in COLUMNS.values()]
    same = found.row.label == found.row.baseline
    change = "" if same else mean_text(section.differences(found, "top-1"), sign=True)
    return (found.row.label, *cells, change, mean_text(list(found.values("ECE").values())), *paper)


def _paper_cells(paper: PaperAccuracy | None) -> tuple[str, ...]:
    if paper is None:
        return ("",) * len(COLUMNS)
    return tuple(f"{getattr(paper, name):.1f}" for name in COLUMNS)


def findings(bench: ClassifierBench) -> list[str]:
    """What the tables say, in sentences; nothing in them is known before the run."""
    found = {section.title: section for section in bench.sections}
    sentences = []
    main = [row for row in found[MAIN].rows if row.metrics]
    for metric, name in (("top-1", "overall accuracy"), ("few", "accuracy of few-shot classes")):
        known = [row for row in main if row.values(metric)]
        if known:
            best = max(known, key=lambda row: _mean(row, metric))
            sentences.append(f"The highest {name} is {_mean(best, metric):.1f} %, by {best.row.label}.")
    sentences += [_gain(found[title], label) for title, label in _GAINS if found[title][label].metrics]
    taus = found[MAIN]["tau-norm"].choices
    if taus:
        listed = ", ".join(f"{spec.rpartition('=')[2]} (seed {seed})" for seed, spec in taus.items())
        sentences.append(f"The tau of tau-norm that is best on dev: {listed}.")
    plain = [found[MORE][label] for label in ("Softmax", "Normalised classifier")]
    if all(row.losses for row in plain):
        told = " and ".join(f"{statistics.fmean(row.losses.values()):.2f} ({row.row.label})" for row in plain)
        sentences.append(f"Cross entropy at the end of training, mean of the seeds: {told}.")
    return sentences


_GAINS = (
    (MAIN, "LogN"),
    (COMPONENTS, "mean"),
    (COMPONENTS, "std"),
    (COMPONENTS, "mean and std"),
    (MORE, "LogN, linear classifier"),
)


def _gain(section: ClassifierSectionResult, label: str) -> str:
    found = section[label]
    changes = {name: section.differences(found, metric) for name, metric in (*COLUMNS.items(), ("ECE", "ECE"))}
    told = [f"{name} accuracy by {mean_text(values, sign=True)}" for name, values in changes.items() if name != "ECE"]
    sentence = f"{label} against {found.row.baseline} changes {', '.join(told)} and ECE by "
    sentence += mean_text(changes["ECE"], sign=True)
    paper, before = found.row.paper, section[found.row.baseline].row.paper
    if paper and before:
        sentence += (
            f"; on {PAPER_DATA} the paper's changes overall accuracy by {signed(paper.overall - before.overall)}"
        )
    return sentence + "."


def _mean(row: ClassifierRowResult, metric: str) -> float:
    return statistics.fmean(row.values(metric).values())


def to_text(bench: ClassifierBench, style: TextStyle = USUAL) -> str:
    """The tables and the findings, for a terminal."""
    return "\n\n".join(
        [
            *(section_table(bench, each).to_text(style) for each in bench.sections),
            "\n".join(map(style.wrap, findings(bench))),
        ]
    )


def to_markdown(bench: ClassifierBench, command: str) -> str:
    """The page; `command` is what makes it."""
    parts = [
        "# ImageNet-LT's table on classifiers that are trained here",
        READING,
        f"Made by `{command}`. {describe(bench)}",
        *(f"## {section.title}\n\n{section_table(bench, section).to_markdown()}" for section in bench.sections),
        *listed("What it says", findings(bench)),
        *listed("Rows without numbers", bench.failures),
    ]
    return "\n\n".join(parts) + "\n"


def describe(bench: ClassifierBench) -> str:
    """Say what the classifiers were trained on, and how long."""
    facts = bench.facts
    seconds = [value for section in bench.sections for row in section.rows for value in row.seconds.values()]
    took = f" The slowest row took {max(seconds):.0f} seconds of training on one thread." if seconds else ""
    return (
        f"The `{bench.problem.model}` network on {bench.problem.name}: {facts['classes']:,} classes, "
        f"{facts['train']:,} training images ({facts['most']:,} of the most frequent class, {facts['fewest']:,} of the "
        f"rarest), "
        f"{facts['test']:,} test images; {facts['epochs']:g} epochs, second stages {facts['stage_epochs']:g}; seed "
        f"{', '.join(map(str, bench.seeds))}. Many-shot classes have more than 100 training images, medium 20 to 100, "
        f"few below 20 ({facts['groups']['many']}, {facts['groups']['medium']} and {facts['groups']['few']} classes)."
        f"{took}"
    )


def to_dict(bench: ClassifierBench, command: str) -> dict[str, Any]:
    """Everything as plain values, for JSON; our metrics lie between 0 and 1, the paper's are in points."""
    content = {
        "table": NAME,
        "command": command,
        "data": bench.problem.name,
        "model": bench.problem.model,
        "seeds": list(bench.seeds),
        "settings": dict(bench.facts),
        "sections": [
            {"title": section.title, "rows": [_row_dict(section, found) for found in section.rows]}
            for section in bench.sections
        ],
        "findings": findings(bench),
        "failures": bench.failures,
        "paper": {"data": PAPER_DATA, "model": PAPER_MODEL},
    }
    plain: dict[str, Any] = plain_values(content)
    return plain


def _row_dict(section: ClassifierSectionResult, found: ClassifierRowResult) -> dict[str, Any]:
    changes = section.differences(found, "top-1")
    return {
        "method": found.row.label,
        "classifier": found.row.model.name,
        "correction": found.row.method,
        "chosen": found.choices,
        "metrics": found.metrics,
        "baseline": found.row.baseline,
        "change_of_top_1": {"mean": statistics.fmean(changes), "half_width": half_width(changes)} if changes else None,
        "training_seconds": found.seconds,
        "training_loss": found.losses,
        "failures": found.failures,
        "paper": asdict(found.row.paper) if found.row.paper else None,
    }


def write_pages(bench: ClassifierBench, folder: Path, command: str) -> dict[str, Path]:
    """Write `imagenet-lt.md` and `imagenet-lt.json` into a folder, which is made if it is not there."""
    return write_page(folder, NAME, to_markdown(bench, command), to_dict(bench, command))
