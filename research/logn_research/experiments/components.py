"""Table 2 of the paper: which part of LogN does what; with the squared deviation and statistics of positives."""

from __future__ import annotations

from collections.abc import Sequence

from logn_research.experiments.corrected_detectors import ablation
from logn_research.experiments.experiment import (
    CORRECT_POSITIVES,
    POSITIVES,
    Correction,
    Experiment,
    RowResult,
    SectionResult,
)
from logn_research.experiments.formatting import best_row, signed
from logn_research.experiments.paper_tables import COMPONENTS, ERRORS

WHOLE = "mean, std and margin: LogN"
CORRECTIONS = {
    "none": Correction(),
    "mean": Correction("logn:use_std=false,margin=0"),
    "std": Correction("logn:strength=0,margin=0"),
    # The minimum is that of the means, which a strength of 0 would make 0.
    "margin": Correction("logn:strength=0,use_std=false,margin={min}"),
    "mean and std": Correction("logn:margin=0"),
    "mean and margin": Correction("logn:use_std=false"),
    "std and margin": Correction("logn:strength=0,margin={min}"),
    WHOLE: Correction("logn"),
    "LogN, squared std": Correction("logn:std_power=2"),
    "LogN, positives only": Correction("logn", POSITIVES),
    "LogN, recognised positives only": Correction("logn", CORRECT_POSITIVES),
}


def findings(results: Sequence[SectionResult]) -> list[str]:
    """What each part adds to box AP, and which row is best."""
    sentences = []
    for section in results:
        if not section.rows[0].metrics:
            continue
        parts = ", ".join(f"{label} {signed(section.change(label, 'AP'))}" for label in ("mean", "std", "margin"))
        best = best_row(section, "AP")
        sentences.append(
            f"{section.title}: alone, the parts change box AP by: {parts}; together, as LogN, by "
            f"{signed(section.change(WHOLE, 'AP'))}. The best row is {best.row.label} "
            f"({signed(section.change(best.row.label, 'AP'))})."
        )
        sentences += _error_sentence(section)
    sentences.append("The paper, on LVIS: mean +1.2, std +1.6, margin +1.5, together +2.3.")
    classes = ", ".join(f"{label} {gains['Cls']:.1f}" for label, gains in ERRORS.items())
    sentences.append(f"The paper, on LVIS: mending classification errors would add to AP50: {classes}.")
    return sentences


def _error_sentence(section: SectionResult) -> list[str]:
    labels = [label for label in ("none", "mean", "std", "margin", WHOLE) if section[label].errors]
    costs = {label: mean_error(section[label], "Cls") for label in labels}
    if not costs:
        return []
    listed = ", ".join(f"{label} {cost:.1f}" for label, cost in costs.items())
    return [f"{section.title}: mending classification errors would add to AP50: {listed}."]


def mean_error(found: RowResult, kind: str) -> float:
    """What mending a kind of error would add to AP50, in points, averaged over the seeds.

    Example:
        >>> from logn_research.experiments.experiment import BenchRow
        >>> from logn_research.experiments.detector_spec import DetectorSpec
        >>> mean_error(RowResult(BenchRow("none", DetectorSpec()), errors={0: {"Cls": 0.25}}), "Cls")
        25.0
    """
    return 100 * sum(gains[kind] for gains in found.errors.values()) / len(found.errors)


EXPERIMENT = Experiment(
    name="components",
    title="Components: mean, standard deviation, margin",
    reading=(
        "Every row corrects the same trained detector; `none` is the detector as it is. Mean, std and margin are "
        "the parts of the paper's equation 2, alone and together; then the variants that the paper's appendix "
        "tells of: the squared deviation, and statistics of positives only, which need labels. A positive is a "
        "proposal that overlaps a box of its class by one half or more; recognised ones also have their highest "
        "logit at that class; a class without any is left alone. Cls, Miss, FP and FN are what mending these errors "
        "would add to box AP50 (TIDE)."
    ),
    sections=ablation(CORRECTIONS, COMPONENTS),
    findings=findings,
    paper=COMPONENTS,
    paper_title="Table 2 of the paper, and the squared std of its appendix (Mask-R101, RFS, normalised classifier)",
    errors=True,
)
