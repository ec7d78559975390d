"""A table of the bench for people and for programs: text, a Markdown page, JSON; the paper's numbers next to ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from logn.evaluate.comparison.tables import Table
from logn.strict_json import plain_values
from logn.text_table import USUAL, TextStyle
from logn_research.experiments.detector_spec import STATISTICS_IMAGES
from logn_research.experiments.experiment import NOT_TRAINED, BenchResult, Experiment, RowResult, SectionResult
from logn_research.experiments.formatting import listed, write_page
from logn_research.experiments.paper_tables import DATA, MAIN_FRAMEWORK, PaperRow

METRICS = {
    **{f"box {name}": name for name in ("AP", "APr", "APc", "APf")},
    **{f"mask {name}": f"{name}-mask" for name in ("AP", "APr", "APc", "APf")},
}
ERROR_KINDS = ("Cls", "Miss", "FP", "FN")
PAPER_COLUMNS = ("box AP", "mask AP", "mask APr", "mask APc", "mask APf")
NONE = "-"


def section_table(result: BenchResult, section: SectionResult) -> Table:
    """The table of a section: what we measured, then the paper's numbers where any row has some."""
    experiment = result.experiment
    has_paper = any(found.row.paper for found in section.rows)
    header = ["method", *METRICS]
    header += ["margin"] if experiment.margins else []
    header += [f"{kind} error" for kind in ERROR_KINDS] if experiment.errors else []
    header += ["training s", "with its start s", "inference"] if experiment.costs else []
    header += [f"LVIS: {name}" for name in PAPER_COLUMNS] if has_paper else []
    rows = tuple(_line(experiment, found, has_paper=has_paper) for found in section.rows)
    last_columns = f"; the last columns: the paper's {MAIN_FRAMEWORK} on {DATA}" if has_paper else ""
    return Table(
        f"{section.title}. Points on {result.length.data_name}{_over_seeds(result)}{last_columns}.", tuple(header), rows
    )


def _over_seeds(result: BenchResult) -> str:
    count = len(result.seeds)
    return "" if count == 1 else f", mean of {count} seeds (lowest to highest)"


def _line(experiment: Experiment, found: RowResult, *, has_paper: bool) -> tuple[str, ...]:
    cells = [found.row.label]
    if found.metrics:
        cells += [spread(found.values(metric)) for metric in METRICS.values()]
    else:
        trained = NOT_TRAINED not in found.failures.values()
        cells += ["failed" if trained else "not trained", *[""] * (len(METRICS) - 1)]
    if experiment.margins:
        cells.append(spread(list(found.margins.values()), digits=2))
    if experiment.errors:
        cells += [spread([100 * gains[kind] for gains in found.errors.values()]) for kind in ERROR_KINDS]
    if experiment.costs:
        cells += _costs(found)
    return (*cells, *(paper_cells(found.row.paper) if has_paper else ()))


def _costs(found: RowResult) -> list[str]:
    """Time of training, and what inference costs; a correction is folded into the last layer and costs neither."""
    if found.row.correction.method != "none":
        return ["0", spread(list(found.total_seconds.values()), digits=0), "folds, none"]
    seconds = [spread(list(times.values()), digits=0) for times in (found.training_seconds, found.total_seconds)]
    return [*seconds, spread(list(found.relative_cost.values()), digits=2)]


def paper_cells(row: PaperRow | None) -> tuple[str, ...]:
    """The paper's numbers of a row.

    Example:
        >>> paper_cells(PaperRow("LogN", 29.8, 29.0, 22.9, 28.8, 31.8))
        ('29.8', '29.0', '22.9', '28.8', '31.8')
    """
    if row is None:
        return ("",) * len(PAPER_COLUMNS)
    numbers = (row.box_ap, row.ap, row.rare, row.common, row.frequent)
    return tuple(NONE if number is None else f"{number:.1f}" for number in numbers)


def spread(values: Sequence[float], *, digits: int = 1) -> str:
    """Write a number, or the mean and the range of several.

    Example:
        >>> spread([25.43]), spread([25.0, 26.0]), spread([])
        ('25.4', '25.5 (25.0 to 26.0)', '-')
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return NONE
    mean = f"{sum(known) / len(known):.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ({min(known):.{digits}f} to {max(known):.{digits}f})"


def paper_table(experiment: Experiment) -> Table:
    """All rows of the paper's table."""
    rows = tuple((row.method, row.framework, row.sampler, row.epochs, *paper_cells(row)) for row in experiment.paper)
    return Table(
        f"{experiment.paper_title}, on {DATA}.", ("method", "detector", "sampler", "epochs", *PAPER_COLUMNS), rows
    )


def to_text(result: BenchResult, style: TextStyle = USUAL) -> str:
    """The tables and the findings, for a terminal."""
    parts = [section_table(result, section).to_text(style) for section in result.sections]
    parts.append("\n".join(map(style.wrap, _findings(result))))
    return "\n\n".join(part for part in parts if part)


def to_markdown(result: BenchResult, command: str) -> str:
    """The page.

    Args:
        result: What was measured.
        command: The command that makes it.
    """
    experiment = result.experiment
    parts = [
        f"# {experiment.title}",
        experiment.reading,
        f"Made by `{command}`. {describe_settings(result)}",
        *(f"## {section.title}\n\n{section_table(result, section).to_markdown()}" for section in result.sections),
    ]
    parts += [*listed("What it says", _findings(result)), *listed("Rows without numbers", result.failures)]
    if experiment.paper:
        parts.append(f"## The paper's rows, on {DATA}\n\n{paper_table(experiment).to_markdown()}")
    return "\n\n".join(parts) + "\n"


def _findings(result: BenchResult) -> list[str]:
    return list(result.experiment.findings(result.sections))


def describe_settings(result: BenchResult) -> str:
    """Say what the detectors were trained on, and how the time was taken."""
    glyphs, length = result.length.glyphs, result.length
    seeds = ", ".join(map(str, result.seeds))
    if length.problem is not None:
        amount = f"{length.iterations:,} iterations" if length.iterations else f"{length.problem.epochs or 24:g} epochs"
        return (
            f"{length.model} on {length.problem.train.name}, tested on {length.problem.test.name}; {amount}, second "
            f"stages a quarter of it; seed {seeds}. LogN's statistics are those of all training images."
        )
    iterations = length.iterations or 0
    text = (
        f"The detector `{length.model}` on {glyphs.classes} classes of glyph scenes (families of look-alikes; "
        f"{glyphs.train:,} training, {glyphs.test:,} test images), {iterations:,} iterations of 16 images, second "
        f"stages {iterations // 4:,}; seed {seeds}. LVIS's protocol: federated labels, 300 detections an image. LogN's "
        f"statistics are those of {min(STATISTICS_IMAGES, glyphs.train):,} training images."
    )
    if result.experiment.costs:
        text += (
            " Training is in processor seconds: those of an iteration on one thread, measured over eight, times the "
            "iterations; inference is the processor time of `propose` over that of CE under random sampling. CE under "
            "RFS has the same layers, so its distance from 1 shows how exact that is."
        )
    return text


def to_dict(result: BenchResult, command: str) -> dict[str, Any]:
    """Everything as plain values, for JSON; metrics lie between 0 and 1, the paper's are in points."""
    content = {
        "table": result.experiment.name,
        "command": command,
        "data": result.length.data_name,
        "settings": _settings_dict(result),
        "sections": [
            {"title": section.title, "rows": [_row_dict(found) for found in section.rows]}
            for section in result.sections
        ],
        "findings": _findings(result),
        "failures": result.failures,
        "paper": [row.to_dict() for row in result.experiment.paper],
    }
    plain: dict[str, Any] = plain_values(content)
    return plain


def _settings_dict(result: BenchResult) -> dict[str, Any]:
    length = result.length
    known: dict[str, Any] = {"iterations": length.iterations, "seeds": list(result.seeds), "model": length.model}
    if length.problem is not None:
        files = {"train": length.problem.train.name, "test": length.problem.test.name}
        return {**known, **files, "epochs": length.problem.epochs}
    return {
        **known,
        "scenes": length.scenes,
        "second_stage_iterations": (length.iterations or 0) // 4,
        "classes": length.glyphs.classes,
        "train": length.glyphs.train,
        "test": length.glyphs.test,
    }


def _row_dict(found: RowResult) -> dict[str, Any]:
    return {
        "method": found.row.label,
        "detector": found.row.detector.name,
        "correction": found.row.correction.key,
        "metrics": found.metrics,
        "failures": found.failures,
        "errors": found.errors,
        "margin": found.margins,
        "logged_seconds": found.logged_seconds,
        "training_seconds": found.training_seconds,
        "total_seconds": found.total_seconds,
        "relative_cost": found.relative_cost,
        "paper": found.row.paper.to_dict() if found.row.paper else None,
    }


def write_pages(result: BenchResult, folder: Path, command: str) -> Mapping[str, Path]:
    """Write `NAME.md` and `NAME.json` into a folder, which is made if it is not there."""
    return write_page(folder, result.experiment.name, to_markdown(result, command), to_dict(result, command))
