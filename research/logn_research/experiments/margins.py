"""Table 3 of the paper: the margin of the foreground against the background."""

from __future__ import annotations

from collections.abc import Sequence

from logn_research.experiments.corrected_detectors import ablation
from logn_research.experiments.experiment import Correction, Experiment, SectionResult
from logn_research.experiments.formatting import best_row, signed
from logn_research.experiments.paper_tables import COMPONENTS, MARGINS

FIXED = ("-4", "-12", "background", "max", "mean", "min", "0")
CORRECTIONS = {"none": Correction(), **{margin: Correction(f"logn:margin={margin}") for margin in FIXED}}
#: The paper's baseline stands in its table of components.
PAPER = (COMPONENTS[0], *MARGINS)


def findings(results: Sequence[SectionResult]) -> list[str]:
    """Which margin is best and worst, and whether any margin beats the detector as it is."""
    sentences = []
    for section in results:
        if not section.rows[0].metrics:
            continue
        best = best_row(section, "AP", FIXED)
        worst = min((row for row in section.measured() if row.row.label in FIXED), key=lambda row: row.mean("AP"))
        sentences.append(
            f"{section.title}: of the margins, {best.row.label} has the highest box AP ({best.mean('AP'):.1f}, "
            f"{signed(section.change(best.row.label, 'AP'))} against no correction) and {worst.row.label} the lowest "
            f"({worst.mean('AP'):.1f}); the paper's min changes it by {signed(section.change('min', 'AP'))}."
        )
    sentences.append("The paper, on LVIS: min is best (29.8) and background worst (12.1).")
    return sentences


EXPERIMENT = Experiment(
    name="margins",
    title="Margins: how the foreground is weighed against the background",
    reading=(
        "Every row is LogN, with its mean and standard deviation, on the same trained detector, and differs in the "
        "margin only: a number, or the background's mean, or the largest, average or smallest mean of a class. "
        "`none` is the detector as it is. The column margin has the value, which is added before the division by the "
        "standard deviation. In the paper's detector the means were: background 13.44, max 3.11, mean -1.09, min -5.35."
    ),
    sections=ablation(CORRECTIONS, PAPER),
    findings=findings,
    paper=PAPER,
    paper_title="Table 3 of the paper, with the baseline of its table 2 (Mask-R101, RFS, normalised classifier)",
    margins=True,
)
