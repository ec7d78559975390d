"""DetectorSpec: one trained detector of an experiment, with a name that says what it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from logn.datasets.glyph_settings import GlyphSettings
from logn.errors import InputError
from logn.training.losses.by_name import DEFAULT_LOSS, parse_loss

#: On 2,400 glyph scenes this repeats rare classes as much as the paper's 0.001 does on the 100,000 images of LVIS.
GLYPH_REPEAT_THRESHOLD = 0.04
SAMPLERS = {"random": "random", "rfs": "repeat-factor-stochastic", "balanced": "class-balanced"}
#: The length of training of the experiments; other lengths are part of a detector's name.
ITERATIONS = 800


@dataclass(frozen=True)
class DetectorSpec:
    """A detector to train on glyph scenes.

    Args:
        scenes: Name of the data: `families` of look-alikes, `distinct` glyphs, or any name for other `glyphs`.
        glyphs: What is drawn; the seed is replaced by this specification's, and `distinct` drops the families.
        model: As `logn train --model` takes it.
        classifier: `linear` or `cosine`.
        temperature: Of the cosine classifier.
        sampler: `random`, `rfs` (repeat factor sampling) or `balanced` (class-balanced).
        loss: As `logn train --loss` takes it.
        seed: Of the data and of the training.
        iterations: Of the training.
        start: The detector that this one begins with, for second stages.
        only: The part that a second stage trains.
        feature_memory: Whether LOCE's memory of features takes part.
        stage: Short name of the second stage, such as `bags`.

    Example:
        >>> spec = DetectorSpec(classifier="cosine", sampler="rfs", seed=1)
        >>> spec.name
        'families-cosine20-rfs-ce-s1'
        >>> DetectorSpec(start=spec, stage="bags", loss="bags", only="classifier", iterations=200, seed=1).name
        'families-cosine20-rfs-ce+bags-i200-s1'
    """

    scenes: str = "families"
    glyphs: GlyphSettings = field(default_factory=GlyphSettings)
    model: str = "small"
    classifier: str = "linear"
    temperature: float = 20.0
    sampler: str = "random"
    loss: str = DEFAULT_LOSS
    seed: int = 0
    iterations: int = ITERATIONS
    start: DetectorSpec | None = None
    only: str | None = None
    feature_memory: bool = False
    stage: str = ""

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise InputError(f"Expected `sampler` to be one of {tuple(SAMPLERS)}, but got {self.sampler!r}.")
        if (self.start is None) != (not self.stage):
            raise InputError("Expected `stage` to name a second stage where there is a `start`, and nowhere else.")
        parse_loss(self.loss)

    @property
    def scene_settings(self) -> GlyphSettings:
        """What is drawn, with this detector's seed."""
        similarity = None if self.scenes == "distinct" else self.glyphs.similarity
        return replace(self.glyphs, seed=self.seed, similarity=similarity)

    @property
    def data_name(self) -> str:
        """Folder of the data."""
        return f"{self.scenes}-s{self.seed}"

    @property
    def name(self) -> str:
        """Folder of the run: data, head, sampler, loss, second stage, length where it is not the usual one, seed."""
        length = "" if self.iterations == ITERATIONS else f"-i{self.iterations}"
        return f"{self._stem}{length}-s{self.seed}"

    @property
    def _stem(self) -> str:
        if self.start is not None:
            return f"{self.start._stem}+{self.stage}"
        head = self.classifier if self.classifier == "linear" else f"{self.classifier}{self.temperature:g}"
        head = head if self.model == "small" else self.model
        loss = "ce" if self.loss == DEFAULT_LOSS else self.loss.replace(":", "-").replace("=", "").replace(",", "-")
        return f"{self.scenes}-{head}-{self.sampler}-{loss}"

    def training_arguments(self) -> list[str]:
        """What `logn train` is told, but for the folders."""
        arguments = ["--iterations", str(self.iterations), "--seed", str(self.seed), "--model", self.model]
        arguments += ["--sampler", SAMPLERS[self.sampler], "--loss", self.loss]
        if self.sampler == "rfs":
            arguments += ["--repeat-threshold", str(GLYPH_REPEAT_THRESHOLD)]
        if self.classifier != "linear":
            arguments += ["--classifier", self.classifier, "--temperature", f"{self.temperature:g}"]
        if self.only is not None:
            arguments += ["--only", self.only]
        if self.feature_memory:
            arguments.append("--feature-memory")
        return arguments
