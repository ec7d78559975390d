"""Table 1 of the paper: every rival, with and without repeat factor sampling."""

from __future__ import annotations

from collections.abc import Sequence

from logn_research.experiments.bench_detectors import SECOND_STAGES, BenchLength
from logn_research.experiments.experiment import BenchRow, BenchSection, Correction, Experiment, SectionResult
from logn_research.experiments.formatting import best_row, signed
from logn_research.experiments.paper_tables import COMPONENTS, MAIN_FRAMEWORK, TABLE1, PaperRow, paper_row

SAMPLERS = {"random": "Random sampling", "rfs": "Repeat factor sampling (RFS)"}
#: The CE detector with the normalised class layer, on which the paper has LogA and LogN; its own row is in table 2.
NORMALISED = "CE, normalised"
#: Rows that train a whole detector, with the class layer that the paper gives each.
TRAINED = {"EQL": "linear", "EQL v2": "linear", "Seesaw": "cosine", "focal": "linear", "online LogN": "cosine"}
#: Corrections of the normalised detector. The paper's LogA keeps the score of the background, as NorCal does with raw
#: counts; with priors every class gains the logarithm of the number of all objects on it.
CORRECTIONS = {"LogA": "loga:priors=false", "LogN": "logn", "recommended": "recommended"}
#: The same and others on the linear detector, each with its published default; these rows are ours.
LINEAR_CORRECTIONS = {
    "tau-norm": "tau-norm:tau=0.7",
    "LogA, linear": "loga:priors=false",
    "LogA with priors, linear": "loga",
    "NorCal, linear": "norcal",
    "FRACAL, linear": "fracal",
    "IIF, linear": "iif",
    "LogN, linear": "logn",
    "recommended, linear": "recommended",
}


def sections(length: BenchLength, seed: int) -> list[BenchSection]:
    """The rows of both samplers for a seed.

    Example:
        >>> [row.label for row in sections(BenchLength(), 0)[1].rows][:3]
        ['CE', 'CE, normalised', 'EQL']
    """
    return [BenchSection(title, tuple(_rows(length, sampler, seed))) for sampler, title in SAMPLERS.items()]


def _rows(length: BenchLength, sampler: str, seed: int) -> list[BenchRow]:
    plain, cosine = (length.plain(sampler, seed=seed, classifier=head) for head in ("linear", "cosine"))
    rows = [BenchRow("CE", plain), BenchRow(NORMALISED, cosine)]
    rows += [
        BenchRow(name, length.trained(name, sampler, seed=seed, classifier=head)) for name, head in TRAINED.items()
    ]
    rows.append(BenchRow("Seesaw, linear", length.trained("Seesaw", sampler, seed=seed)))
    rows += [BenchRow(name, length.second(name, sampler, seed=seed)) for name in SECOND_STAGES]
    rows += [BenchRow(name, cosine, Correction(method)) for name, method in CORRECTIONS.items()]
    rows += [BenchRow(name, plain, Correction(method)) for name, method in LINEAR_CORRECTIONS.items()]
    return [BenchRow(row.label, row.detector, row.correction, _of_the_paper(row.label, sampler)) for row in rows]


def _of_the_paper(label: str, sampler: str) -> PaperRow | None:
    if label == NORMALISED and sampler == "rfs":
        return COMPONENTS[0]
    # LOCE's memory is its sampler, and its images are random; the paper lists that row next to those of RFS.
    return paper_row(TABLE1, label, "mfs" if label == "LOCE + MFS" and sampler == "random" else sampler)


def findings(results: Sequence[SectionResult]) -> list[str]:
    """Who is best, and what LogN changes, here and in the paper."""
    sentences = []
    for sampler, section in zip(SAMPLERS, results, strict=True):
        if not section.rows[0].metrics:
            continue
        for metric, name in (("AP", "box AP"), ("APr", "box AP of rare classes")):
            best = best_row(section, metric)
            sentences.append(f"{section.title}: the highest {name} is {best.mean(metric):.1f}, by {best.row.label}.")
        free = best_row(section, "AP", (*CORRECTIONS, *LINEAR_CORRECTIONS))
        sentences.append(
            f"{section.title}: of the corrections, which need no training, {free.row.label} is highest "
            f"({free.mean('AP'):.1f})."
        )
        pairs = (("LogN", NORMALISED), ("LogN, linear", "CE"))
        changes = [
            f"{label} changes box AP of {base} by {signed(section.change(label, 'AP', base))} and that of rare classes "
            f"by {signed(section.change(label, 'APr', base))}"
            for label, base in pairs
            if section[label].metrics and section[base].metrics
        ]
        plain, ours = (paper_row(TABLE1, method, sampler) for method in ("CE", "LogN"))
        if plain and ours and plain.box_ap and ours.box_ap:
            changes.append(
                f"on LVIS the paper's LogN changes box AP of {MAIN_FRAMEWORK} by {ours.box_ap - plain.box_ap:+.1f} "
                "against the linear CE, under RFS by +2.3 against the normalised one"
            )
        sentences.append(f"{section.title}: {'; '.join(changes)}.")
    return sentences


EXPERIMENT = Experiment(
    name="table1",
    title="Table 1: every rival, with and without repeat factor sampling",
    reading=(
        "One row per method, all on the same data and length of training. CE has a linear class layer, as the paper's "
        "row has; Seesaw, online LogN, LogA and LogN have the normalised one, as in the paper, whose "
        "own baseline is `CE, normalised`. Rows that end in `linear`, and all that the paper has no numbers for, are "
        "ours. EQL, EQL v2, Seesaw, focal and online LogN train the whole detector; BAGS, LOCE, cRT and LWS train a "
        "part of the CE detector for a quarter of the iterations; LogA and the rows from it on correct a CE detector "
        "after training, with the default that their authors published. The paper's LogA keeps the score of the "
        "background, so it stands beside the form with raw counts. LogN is the paper's; recommended is what "
        "`logn correct` takes, half of the prior. The numbers of the paper stand next to ours: another detector "
        "on other data, so compare differences to CE, not heights."
    ),
    sections=sections,
    findings=findings,
    paper=TABLE1,
    paper_title="Table 1 of the paper",
    costs=True,
)
