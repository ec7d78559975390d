"""ClassifierSpec: one trained image classifier of an experiment, with a name that says what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from logn.errors import InputError
from logn.training.losses.by_name import DEFAULT_LOSS, parse_loss

#: Second stages: the part that is trained, with class-balanced sampling (Kang et al., ICLR 2020).
SECOND_STAGES = {"crt": "new-classifier", "lws": "scales"}


@dataclass(frozen=True)
class ClassifierSpec:
    """A classifier to train.

    Args:
        classifier: `linear` or `cosine` (normalised).
        loss: As `logn train-classifier --loss` takes it.
        seed: Of the training, and of the data where that is drawn.
        stage: Empty, or `crt` or `lws`: trained from the classifier that is this one without a stage.

    Example:
        >>> ClassifierSpec("cosine", "seesaw", seed=2).name, ClassifierSpec(stage="crt").name
        ('cosine-seesaw-s2', 'linear-ce+crt-s0')
    """

    classifier: str = "linear"
    loss: str = DEFAULT_LOSS
    seed: int = 0
    stage: str = ""

    def __post_init__(self) -> None:
        parse_loss(self.loss)
        if self.stage and self.stage not in SECOND_STAGES:
            raise InputError(f"Expected `stage` to be one of {tuple(SECOND_STAGES)}, but got {self.stage!r}.")

    @property
    def start(self) -> ClassifierSpec | None:
        """The classifier that a second stage begins with."""
        return ClassifierSpec(self.classifier, self.loss, self.seed) if self.stage else None

    @property
    def name(self) -> str:
        """Folder of the run."""
        loss = "ce" if self.loss == DEFAULT_LOSS else self.loss.replace(":", "-").replace("=", "").replace(",", "-")
        stage = f"+{self.stage}" if self.stage else ""
        return f"{self.classifier}-{loss}{stage}-s{self.seed}"

    def plan_options(self) -> dict[str, Any]:
        """What `ClassifierPlan` is told of it, but for the folders."""
        options: dict[str, Any] = {"classifier": self.classifier, "loss": self.loss, "seed": self.seed}
        if self.stage:
            options |= {"sampler": "class-balanced", "only": SECOND_STAGES[self.stage]}
        return options
