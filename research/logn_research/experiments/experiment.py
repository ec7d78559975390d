"""What a table of the bench consists of: rows, each a trained detector and what is done to its logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logn_research.experiments.bench_detectors import BenchLength
from logn_research.experiments.detector_spec import DetectorSpec
from logn_research.experiments.paper_tables import PaperRow

#: Which proposals the statistics of a correction are taken from.
ALL, POSITIVES, CORRECT_POSITIVES = "all", "positives", "positives-correct"


@dataclass(frozen=True)
class Correction:
    """What is done to the logits after training.

    Args:
        method: Specification such as `logn:margin=0`; `none` for nothing. `{min}` in it stands for the smallest class
            mean, the margin of the paper's equation, as a number.
        statistics: `all` proposals, those of each class only (`positives`), or those that are also recognised
            (`positives-correct`).

    Example:
        >>> Correction("logn", "positives").key
        'logn of positives'
        >>> Correction("logn:strength=0,margin={min}").filled(-5.35)
        'logn:strength=0,margin=-5.35'
    """

    method: str = "none"
    statistics: str = ALL

    @property
    def key(self) -> str:
        """Name of the correction in files."""
        return self.method if self.statistics == ALL else f"{self.method} of {self.statistics}"

    def filled(self, smallest: float) -> str:
        """The specification with the smallest class mean in place of `{min}`."""
        return self.method.format(min=smallest)


NOTHING = Correction()
NOT_TRAINED = "The detector is not trained yet, and training was not asked for."


@dataclass(frozen=True)
class BenchRow:
    """A row: its name, the detector, the correction, and the same row of the paper where it has one."""

    label: str
    detector: DetectorSpec
    correction: Correction = NOTHING
    paper: PaperRow | None = None


@dataclass(frozen=True)
class BenchSection:
    """Rows that are compared with each other; the first is the baseline."""

    title: str
    rows: tuple[BenchRow, ...]


@dataclass(frozen=True)
class RowResult:
    """What was measured for a row.

    Args:
        row: The row, with the detector of the first seed.
        metrics: By seed: AP, APr, … between 0 and 1, boxes plain and masks with `-mask`.
        failures: By seed: why there is no measurement.
        errors: By seed: what mending each kind of error would add to AP50; empty where it was not asked for.
        margins: By seed: the value of the margin; empty where there is none.
        logged_seconds: By seed: time of the detector's own training as its log has it, on a machine that may be busy.
        training_seconds: By seed: processor time of the detector's own training.
        total_seconds: By seed: with the training it starts from.
        relative_cost: By seed: time of the detector's proposals over that of the plain detector.
    """

    row: BenchRow
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    errors: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    margins: Mapping[int, float] = field(default_factory=dict)
    logged_seconds: Mapping[int, float] = field(default_factory=dict)
    training_seconds: Mapping[int, float] = field(default_factory=dict)
    total_seconds: Mapping[int, float] = field(default_factory=dict)
    relative_cost: Mapping[int, float] = field(default_factory=dict)

    def values(self, metric: str) -> list[float]:
        """A metric in points, one number per seed."""
        return [100 * found[metric] for found in self.metrics.values() if metric in found]

    def mean(self, metric: str) -> float:
        """The mean of a metric over the seeds, in points; NaN without any.

        Example:
            >>> row = BenchRow("CE", DetectorSpec())
            >>> RowResult(row, {0: {"AP": 0.25}, 1: {"AP": 0.75}}).mean("AP")
            50.0
        """
        values = self.values(metric)
        return sum(values) / len(values) if values else float("nan")


@dataclass(frozen=True)
class SectionResult:
    """The rows of a section with what was measured."""

    title: str
    rows: tuple[RowResult, ...]

    def __getitem__(self, label: str) -> RowResult:
        return next(row for row in self.rows if row.row.label == label)

    def measured(self) -> tuple[RowResult, ...]:
        """The rows that have numbers."""
        return tuple(row for row in self.rows if row.metrics)

    def change(self, label: str, metric: str, against: str | None = None) -> float:
        """By how much a row differs from another one (by default the first) in a metric, in points."""
        other = self.rows[0] if against is None else self[against]
        return self[label].mean(metric) - other.mean(metric)


@dataclass(frozen=True)
class Experiment:
    """A table of the bench.

    Args:
        name: Of the command and of the files.
        title: Of the page.
        reading: What the table asks, and how to read it.
        sections: From the length and a seed to the rows.
        findings: From the results to sentences; nothing in them is known before the run.
        paper: All rows of the paper's table.
        paper_title: What that table is.
        errors: Whether kinds of error are measured.
        costs: Whether training time and inference cost are shown.
        margins: Whether the value of the margin is shown.
    """

    name: str
    title: str
    reading: str
    sections: Callable[[BenchLength, int], Sequence[BenchSection]]
    findings: Callable[[Sequence[SectionResult]], Sequence[str]]
    paper: tuple[PaperRow, ...] = ()
    paper_title: str = ""
    errors: bool = False
    costs: bool = False
    margins: bool = False


@dataclass(frozen=True)
class BenchResult:
    """A table of the bench, measured.

    Args:
        experiment: The table.
        sections: What was measured.
        seeds: The seeds.
        length: Size of the problem and length of the training.
        settings: What else one must know to repeat it.
    """

    experiment: Experiment
    sections: tuple[SectionResult, ...]
    seeds: tuple[int, ...]
    length: BenchLength
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failures(self) -> list[str]:
        """Why rows have no number: a sentence for each reason, with the rows it stands for."""
        reasons: dict[tuple[str, int, str], list[str]] = {}
        for section in self.sections:
            for found in section.rows:
                for seed, sentence in found.failures.items():
                    reasons.setdefault((section.title, seed, sentence), []).append(found.row.label)
        return [
            f"{title}, seed {seed} ({', '.join(labels)}): {sentence}"
            for (title, seed, sentence), labels in reasons.items()
        ]
