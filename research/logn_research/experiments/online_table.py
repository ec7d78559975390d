"""The paper's figure on online LogN: normalise during training, or after it?"""

from __future__ import annotations

from collections.abc import Sequence

from logn_research.experiments.bench_detectors import BenchLength
from logn_research.experiments.experiment import BenchRow, BenchSection, Correction, Experiment, SectionResult
from logn_research.experiments.paper_tables import ONLINE

SAMPLERS = {"random": "Random sampling", "rfs": "Repeat factor sampling (as in the paper)"}
#: For each sentence of the paper: the row that should be higher, and the one that should be lower.
CLAIMS = tuple(
    zip(
        ONLINE,
        (("CE", "online LogN, margin min"), ("online LogN", "CE"), ("LogN", "online LogN")),
        strict=True,
    )
)


def sections(length: BenchLength, seed: int) -> list[BenchSection]:
    """The detectors of both samplers, with and without LogN in their training."""
    return [BenchSection(title, _rows(length, sampler, seed)) for sampler, title in SAMPLERS.items()]


def _rows(length: BenchLength, sampler: str, seed: int) -> tuple[BenchRow, ...]:
    # The paper's head is the normalised one, for all of them.
    plain = length.plain(sampler, seed=seed, classifier="cosine")
    online = ("online LogN", "online LogN, margin min")
    return (
        BenchRow("CE", plain),
        *(BenchRow(name, length.trained(name, sampler, seed=seed, classifier="cosine")) for name in online),
        BenchRow("LogN", plain, Correction("logn")),
        BenchRow("LogN, margin 0", plain, Correction("logn:margin=0")),
    )


def findings(results: Sequence[SectionResult]) -> list[str]:
    """Whether what the paper says of its figure holds here."""
    sentences = []
    for section in results:
        for claim, (higher, lower) in CLAIMS:
            difference = section[higher].mean("AP") - section[lower].mean("AP")
            if difference == difference:  # not NaN: both were measured
                verdict = "so it is here" if difference > 0 else "not so here"
                values = f"{higher} {section[higher].mean('AP'):.1f}, {lower} {section[lower].mean('AP'):.1f} box AP"
                sentences.append(f"{section.title}: the paper says that {claim}: {verdict} ({values}).")
    return sentences


EXPERIMENT = Experiment(
    name="online",
    title="Online LogN: normalise during training, or after it",
    reading=(
        "Online LogN trains against the inverse of the correction (the paper's equation 3), with a margin of 0 or "
        "of the smallest mean, and is used as it comes out of training; the other rows correct the CE detector "
        "after training. The paper shows this as a figure without numbers, so its sentences stand in place of a "
        "table. All detectors have the paper's normalised class layer. The paper does not say how its averages are "
        "taken either; ours weigh about the last thousand iterations, and their start is taken out again "
        "(bias-corrected), so that they hold logits only, however short the run is."
    ),
    sections=sections,
    findings=findings,
    costs=True,
)
