"""The detectors of the bench's tables: how each rival is trained on glyph scenes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from logn.errors import InputError
from logn_research.datasets.glyphs.settings import GlyphSettings
from logn_research.experiments.detector_spec import ITERATIONS, DetectionProblem, DetectorSpec
from logn_research.losses.loss_factory import DEFAULT_LOSS

# EQL spares classes below a share of the images: 0.0011 on LVIS v1, where 815 of 1,203 classes (68 %) are below it. On
# 2,400 glyph scenes hardly any class would be, so here it is the share that 68 of the 100 classes are below.
EQL_THRESHOLD = 0.024

#: Rivals that train a whole detector: their names in tables, and the loss.
TRAINED_LOSSES = {
    "EQL": f"eql:threshold={EQL_THRESHOLD}",
    "EQL v2": "eql-v2",
    "Seesaw": "seesaw",
    "focal": "focal",
    # In 800 iterations averages of a thousand would be 45 % start.
    "online LogN": "online-logn:margin=0,bias_corrected=true",
    "online LogN, margin min": "online-logn:margin=min,bias_corrected=true",
}


@dataclass(frozen=True)
class SecondStage:
    """What a second stage trains, on a detector that was trained with cross entropy.

    Args:
        stage: Short name, for folders.
        only: The part that is trained.
        loss: The loss.
        balanced: Whether its images are drawn class by class; otherwise as in the first stage.
        feature_memory: Whether LOCE's memory of features takes part.
    """

    stage: str
    only: str
    loss: str = DEFAULT_LOSS
    balanced: bool = False
    feature_memory: bool = False


# Runs whose memory added a value for each draw were called `loce-mfs`; they are not these.
SECOND_STAGES = {
    "BAGS": SecondStage("bags", "classifier", "bags"),
    "LOCE": SecondStage("loce", "heads", "loce"),
    "LOCE + MFS": SecondStage("loce-memory", "heads", "loce", feature_memory=True),
    "cRT": SecondStage("crt", "new-classifier", balanced=True),
    "LWS": SecondStage("lws", "scales", balanced=True),
}


@dataclass(frozen=True)
class BenchLength:
    """How large the problem is and how long detectors are trained.

    Args:
        scenes: Name of the data.
        glyphs: What is drawn.
        iterations: Of a whole training; a second stage has a quarter of them, as LOCE's 24 + 6 epochs. None for the
            epochs of `problem`.
        model: The detector.
        device: Where it is trained and run.
        problem: Data that is read in place of scenes.

    Example:
        >>> BenchLength().second("BAGS", "rfs", seed=0).name
        'families-linear-rfs-ce+bags-i200-s0'
    """

    scenes: str = "families"
    glyphs: GlyphSettings = field(default_factory=GlyphSettings)
    iterations: int | None = ITERATIONS
    model: str = "small"
    device: str = "auto"
    problem: DetectionProblem | None = None

    def __post_init__(self) -> None:
        if self.iterations is not None and self.iterations < 4:
            raise InputError(f"Expected `iterations` to be at least 4, but got {self.iterations}.")

    @property
    def data_name(self) -> str:
        """What the data is called in tables."""
        return "glyph scenes" if self.problem is None else self.problem.name

    def plain(self, sampler: str, *, seed: int, classifier: str = "linear") -> DetectorSpec:
        """The detector that is trained with cross entropy."""
        return DetectorSpec(
            self.scenes,
            self.glyphs,
            model=self.model,
            classifier=classifier,
            sampler=sampler,
            seed=seed,
            iterations=self.iterations,
            problem=self.problem,
            device=self.device,
        )

    def trained(self, rival: str, sampler: str, *, seed: int, classifier: str = "linear") -> DetectorSpec:
        """The detector that is trained with the loss of a rival."""
        # The threshold of EQL that fits glyph scenes is not that of LVIS, which is the loss's own.
        loss = "eql" if rival == "EQL" and self.problem is not None else TRAINED_LOSSES[rival]
        return replace(self.plain(sampler, seed=seed, classifier=classifier), loss=loss)

    def second(self, rival: str, sampler: str, *, seed: int) -> DetectorSpec:
        """The second stage of a rival on the detector that was trained with cross entropy under `sampler`."""
        chosen, first = SECOND_STAGES[rival], self.plain(sampler, seed=seed)
        return replace(
            first,
            sampler="balanced" if chosen.balanced else sampler,
            loss=chosen.loss,
            iterations=None if self.iterations is None else self.iterations // 4,
            start=first,
            only=chosen.only,
            feature_memory=chosen.feature_memory,
            stage=chosen.stage,
        )


BENCHMARK = BenchLength()
#: In minutes: does everything run? Too short to learn rare classes.
QUICK = BenchLength("quick", GlyphSettings(classes=40, train=600, dev=1, test=160), 250)
