"""The plain detectors on which the corrections of the ablations are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from logn_research.experiments.bench_detectors import BenchLength
from logn_research.experiments.experiment import BenchRow, BenchSection, Correction
from logn_research.experiments.paper_tables import PaperRow, paper_row

#: Classifier and sampler of each section. The last is the paper's: a normalised classifier under RFS.
DETECTORS = {
    ("linear", "random"): "Linear classifier, random sampling",
    ("linear", "rfs"): "Linear classifier, RFS",
    ("cosine", "random"): "Normalised classifier, random sampling",
    ("cosine", "rfs"): "Normalised classifier, RFS (as in the paper)",
}
PAPERS_OWN = DETECTORS["cosine", "rfs"]


def ablation(
    corrections: Mapping[str, Correction], paper: Sequence[PaperRow]
) -> Callable[[BenchLength, int], list[BenchSection]]:
    """One section per detector with a row per correction; the paper's numbers stand next to the detector like its own.

    Args:
        corrections: By the name of the row.
        paper: The rows of the paper's table.

    Example:
        >>> build = ablation({"none": Correction()}, ())
        >>> [section.title for section in build(BenchLength(), 0)][0]
        'Linear classifier, random sampling'
    """

    def sections(length: BenchLength, seed: int) -> list[BenchSection]:
        return [
            BenchSection(
                title,
                tuple(
                    BenchRow(
                        label,
                        length.plain(sampler, seed=seed, classifier=classifier),
                        correction,
                        paper_row(paper, label) if title == PAPERS_OWN else None,
                    )
                    for label, correction in corrections.items()
                ),
            )
            for (classifier, sampler), title in DETECTORS.items()
        ]

    return sections
