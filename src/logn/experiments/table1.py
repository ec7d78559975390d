"""Table 1 of the paper: every rival, with and without repeat factor sampling."""

from __future__ import annotations

from collections.abc import Sequence

from logn.experiments.bench_detectors import SECOND_STAGES, BenchLength
from logn.experiments.experiment import BenchRow, BenchSection, Correction, Experiment, SectionResult
from logn.experiments.formatting import best_row, signed
from logn.experiments.paper_tables import MAIN_FRAMEWORK, TABLE1, paper_row

SAMPLERS = {"random": "Random sampling", "rfs": "Repeat factor sampling (RFS)"}
TRAINED = ("EQL", "EQL v2", "Seesaw", "focal", "online LogN")
#: Corrections of the plain detector, each with its published default.
CORRECTIONS = {
    "tau-norm": "tau-norm:tau=0.7",
    "LogA": "loga",
    "NorCal": "norcal",
    "FRACAL": "fracal",
    "IIF": "iif",
    "LogN": "logn",
    "LogN balanced": "logn:balanced",
}


def sections(length: BenchLength, seed: int) -> list[BenchSection]:
    """The rows of both samplers for a seed.

    Example:
        >>> [row.label for row in sections(BenchLength(), 0)[1].rows][:3]
        ['CE', 'EQL', 'EQL v2']
    """
    return [BenchSection(title, tuple(_rows(length, sampler, seed))) for sampler, title in SAMPLERS.items()]


def _rows(length: BenchLength, sampler: str, seed: int) -> list[BenchRow]:
    plain = length.plain(sampler, seed=seed)
    rows = [BenchRow("CE", plain)]
    rows += [BenchRow(name, length.trained(name, sampler, seed=seed)) for name in TRAINED]
    rows += [BenchRow(name, length.second(name, sampler, seed=seed)) for name in SECOND_STAGES]
    rows += [BenchRow(name, plain, Correction(method)) for name, method in CORRECTIONS.items()]
    return [
        BenchRow(
            row.label,
            row.detector,
            row.correction,
            # The paper lists LOCE with its memory next to the rows of RFS, under a sampler of its own.
            paper_row(TABLE1, row.label, "mfs" if row.label == "LOCE + MFS" and sampler == "rfs" else sampler),
        )
        for row in rows
    ]


def findings(results: Sequence[SectionResult]) -> list[str]:
    """Who is best, and what LogN changes, here and in the paper."""
    sentences = []
    for sampler, section in zip(SAMPLERS, results, strict=True):
        if not section.rows[0].metrics:
            continue
        for metric, name in (("AP", "box AP"), ("APr", "box AP of rare classes")):
            best = best_row(section, metric)
            sentences.append(f"{section.title}: the highest {name} is {best.mean(metric):.1f}, by {best.row.label}.")
        free = best_row(section, "AP", CORRECTIONS)
        sentences.append(
            f"{section.title}: of the corrections, which need no training, {free.row.label} is highest "
            f"({free.mean('AP'):.1f})."
        )
        changes = [
            f"{label} changes box AP by {signed(section.change(label, 'AP'))} and that of rare classes by "
            f"{signed(section.change(label, 'APr'))}"
            for label in ("LogN", "LogN balanced")
            if section[label].metrics
        ]
        plain, ours = (paper_row(TABLE1, method, sampler) for method in ("CE", "LogN"))
        if plain and ours and plain.box_ap and ours.box_ap:
            changes.append(
                f"on LVIS the paper's LogN changes box AP of {MAIN_FRAMEWORK} by {ours.box_ap - plain.box_ap:+.1f}"
            )
        sentences.append(f"{section.title}: {'; '.join(changes)}.")
    return sentences


EXPERIMENT = Experiment(
    name="table1",
    title="Table 1: every rival, with and without repeat factor sampling",
    reading=(
        "One row per method, all on the same detector, data and length of training. EQL, EQL v2, Seesaw, focal and "
        "online LogN train the whole detector; BAGS, LOCE, cRT and LWS train a part of the CE detector for a "
        "quarter of the iterations; the rows from tau-norm on correct the CE detector after training, with the "
        "default that their authors published. LogN is the paper's; LogN balanced keeps the detector's scale and "
        "its share of foreground. The numbers of the paper stand next to ours: another detector on other data, so "
        "compare differences to CE, not heights."
    ),
    sections=sections,
    findings=findings,
    paper=TABLE1,
    paper_title="Table 1 of the paper",
    costs=True,
)
