"""How corrections go together with samplers: the paper's claim that LogN follows whatever the sampler did."""

from __future__ import annotations

from collections.abc import Sequence

from logn_research.experiments.bench_detectors import BenchLength
from logn_research.experiments.experiment import BenchRow, BenchSection, Correction, Experiment, SectionResult
from logn_research.experiments.formatting import best_row, signed
from logn_research.experiments.paper_tables import TABLE1, paper_row

SAMPLERS = {"random": "Random sampling", "rfs": "Repeat factor sampling (RFS)", "balanced": "Class-balanced sampling"}
CORRECTIONS = {
    "CE": Correction(),
    "LogA": Correction("loga:priors=false"),
    "LogA with priors": Correction("loga"),
    "NorCal": Correction("norcal"),
    "LogN": Correction("logn"),
    "LogN, margin 0": Correction("logn:margin=0"),
    "recommended": Correction("recommended"),
}
PAPER = tuple(row for row in TABLE1 if row.method in CORRECTIONS)


def sections(length: BenchLength, seed: int) -> list[BenchSection]:
    """The plain detector under each sampler, with every correction."""
    return [
        BenchSection(
            title,
            tuple(
                BenchRow(label, length.plain(sampler, seed=seed), correction, paper_row(PAPER, label, sampler))
                for label, correction in CORRECTIONS.items()
            ),
        )
        for sampler, title in SAMPLERS.items()
    ]


def findings(results: Sequence[SectionResult]) -> list[str]:
    """What each correction adds under each sampler."""
    sentences = []
    for section in results:
        if not section.rows[0].metrics:
            continue
        changes = ", ".join(
            f"{row.row.label} {signed(section.change(row.row.label, 'AP'))}" for row in section.rows[1:]
        )
        sentences.append(
            f"{section.title}: CE has box AP {section.rows[0].mean('AP'):.1f}; changed by {changes}. "
            f"The highest is {best_row(section, 'AP').row.label}."
        )
    sentences.append(
        "The paper, on LVIS (Mask-R101): under random sampling LogA +6.2 and LogN +6.7 box AP, under RFS +2.4 and +3.2."
    )
    return sentences


EXPERIMENT = Experiment(
    name="samplers",
    title="Samplers: what is left to correct after resampling",
    reading=(
        "The same detector, trained with images at random, with repeat factor sampling (stochastic, threshold "
        "0.04) and with class-balanced sampling; every row below CE corrects it after training. LogA is the form that "
        "keeps the score of the background (raw counts), as the paper's does. LogA and NorCal "
        "take the counts of the training set, which no longer fit what a sampler has shown; LogN and what we recommend "
        "(half of the prior) take what the detector says."
    ),
    sections=sections,
    findings=findings,
    paper=PAPER,
    paper_title="The rows of table 1 of the paper that take part here",
)
