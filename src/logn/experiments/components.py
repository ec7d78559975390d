"""Table 2 of the paper: which part of LogN does what; with the squared deviation and statistics of positives."""

from __future__ import annotations

from collections.abc import Sequence

from logn.experiments.corrected_detectors import ablation
from logn.experiments.experiment import CORRECT_POSITIVES, POSITIVES, Correction, Experiment, SectionResult
from logn.experiments.paper_tables import COMPONENTS
from logn.experiments.sentences import best_row, signed

WHOLE = "mean, std and margin: LogN"
CORRECTIONS = {
    "none": Correction(),
    "mean": Correction("logn:use_std=false,margin=0"),
    "std": Correction("logn:use_mean=false,margin=0"),
    "margin": Correction("logn:use_mean=false,use_std=false,margin=min"),
    "mean and std": Correction("logn:margin=0"),
    "mean and margin": Correction("logn:use_std=false"),
    "std and margin": Correction("logn:use_mean=false"),
    WHOLE: Correction("logn"),
    "LogN, squared std": Correction("logn:std_power=2"),
    "LogN, positives only": Correction("logn", POSITIVES),
    "LogN, recognised positives only": Correction("logn", CORRECT_POSITIVES),
    "mean and relative std": Correction("logn:relative_std=true,margin=0"),
    "mean, foreground mass kept": Correction("logn:use_std=false,margin=balance"),
    "LogN balanced": Correction("logn:balanced"),
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
    sentences.append("The paper, on LVIS: mean +1.2, std +1.6, margin +1.5, together +2.3.")
    return sentences


EXPERIMENT = Experiment(
    name="components",
    title="Components: mean, standard deviation, margin",
    reading=(
        "Every row corrects the same trained detector; `none` is the detector as it is. Mean, std and margin are "
        "the parts of the paper's equation 2, alone and together; then the variants that the paper's appendix "
        "tells of: the squared deviation, and statistics of positives only, which need labels. A positive is a "
        "proposal that overlaps a box of its class by one half or more; recognised ones also have their highest "
        "logit at that class; a class without any is left alone. Last come the parts of the balanced form. Cls, "
        "Miss, FP and FN are what mending these errors would add to box AP50 (TIDE)."
    ),
    sections=ablation(CORRECTIONS, COMPONENTS),
    findings=findings,
    paper=COMPONENTS,
    paper_title="Table 2 of the paper, and the squared std of its appendix (Mask-R101, RFS, normalised classifier)",
    errors=True,
)
