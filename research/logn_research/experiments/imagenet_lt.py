"""The rows of the paper's ImageNet-LT table and of its components: a classifier, a correction, the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from logn_research.experiments.classifier_spec import GLYPH_CLASSES, ClassifierProblem, ClassifierSpec

PAPER_DATA, PAPER_MODEL = "ImageNet-LT", "ResNeXt-50"
#: tau of tau-norm, in steps of 0.05 as far as the weights are normalised; chosen on dev, as its authors choose it.
TAU_NORM = "tau-norm"
TAU_SWEEP = "tau-norm:tau=0:1:0.05"
MAIN, COMPONENTS, MORE = "ImageNet-LT's rows", "Components of LogN", "What the classifier and the correction do each"


@dataclass(frozen=True)
class PaperAccuracy:
    """Accuracies of the paper, in points."""

    many: float
    medium: float
    few: float
    overall: float


@dataclass(frozen=True)
class ClassifierRow:
    """A row of a table.

    Args:
        label: Name of the row.
        model: The classifier.
        method: What is done to its logits, as `logn compare` takes it; `none` for nothing, `tau-norm` for the tau
            that is best on dev.
        paper: The paper's numbers.
        baseline: Label of the row of the same section that it is compared with.
    """

    label: str
    model: ClassifierSpec
    method: str = "none"
    paper: PaperAccuracy | None = None
    baseline: str = "Softmax"


@dataclass(frozen=True)
class ClassifierSection:
    """Rows that stand in one table."""

    title: str
    rows: tuple[ClassifierRow, ...]


def sections(seed: int, problem: ClassifierProblem = GLYPH_CLASSES) -> list[ClassifierSection]:
    """All rows for a seed; rows share classifiers.

    Args:
        seed: Of data and training.
        problem: The data and the length of training.

    Example:
        >>> [row.label for row in sections(0)[0].rows]
        ['Softmax', 'Focal loss', 'cRT', 'tau-norm', 'LWS', 'EQL', 'B-Softmax', 'Seesaw', 'LogA', 'LogN']
        >>> len({row.model.name for section in sections(0) for row in section.rows})
        8
    """
    trained = partial(ClassifierSpec, seed=seed, problem=problem)
    softmax, cosine = trained(), trained("cosine")
    rows = (
        ClassifierRow("Softmax", softmax, paper=PaperAccuracy(65.9, 37.5, 7.7, 44.4)),
        ClassifierRow("Focal loss", trained(loss="focal-softmax"), paper=PaperAccuracy(64.5, 36.3, 7.8, 43.3)),
        ClassifierRow("cRT", trained(stage="crt"), paper=PaperAccuracy(61.8, 46.2, 27.4, 49.6)),
        ClassifierRow("tau-norm", softmax, TAU_NORM, PaperAccuracy(59.1, 46.9, 30.7, 49.4)),
        ClassifierRow("LWS", trained(stage="lws"), paper=PaperAccuracy(60.2, 47.2, 30.3, 49.9)),
        ClassifierRow("EQL", trained(loss=problem.eql), paper=PaperAccuracy(61.7, 42.5, 13.8, 46.0)),
        ClassifierRow("B-Softmax", trained(loss="balanced-softmax"), paper=PaperAccuracy(62.2, 48.8, 29.8, 51.4)),
        ClassifierRow("Seesaw", trained("cosine", "seesaw"), paper=PaperAccuracy(67.1, 45.2, 21.4, 50.4)),
        ClassifierRow("LogA", cosine, "loga", PaperAccuracy(63.4, 47.9, 31.5, 51.6)),
        ClassifierRow("LogN", cosine, "logn", PaperAccuracy(59.1, 50.3, 35.0, 51.6)),
    )
    return [
        ClassifierSection(MAIN, rows),
        ClassifierSection(COMPONENTS, _components(cosine)),
        ClassifierSection(MORE, _more(softmax, cosine)),
    ]


def _components(cosine: ClassifierSpec) -> tuple[ClassifierRow, ...]:
    plain = "Normalised classifier"
    return (
        ClassifierRow(plain, cosine, baseline=plain),
        ClassifierRow("mean", cosine, "logn:use_std=false", PaperAccuracy(65.8, 45.0, 22.8, 50.0), plain),
        ClassifierRow("std", cosine, "logn:strength=0", PaperAccuracy(63.0, 48.4, 25.9, 50.9), plain),
        ClassifierRow("mean and std", cosine, "logn", PaperAccuracy(59.1, 50.3, 35.0, 51.6), plain),
    )


def _more(softmax: ClassifierSpec, cosine: ClassifierSpec) -> tuple[ClassifierRow, ...]:
    return (
        ClassifierRow("Softmax", softmax),
        ClassifierRow("LogA, linear classifier", softmax, "loga"),
        ClassifierRow("LogN, linear classifier", softmax, "logn"),
        ClassifierRow("mean, linear classifier", softmax, "logn:use_std=false"),
        ClassifierRow("std, linear classifier", softmax, "logn:strength=0"),
        ClassifierRow("Normalised classifier", cosine),
        ClassifierRow("LogA, normalised classifier", cosine, "loga", baseline="Normalised classifier"),
        ClassifierRow("LogN, normalised classifier", cosine, "logn", baseline="Normalised classifier"),
    )
