"""Which form of LogN to use, from the statistics alone, and why.

The rule knows no labels. Its thresholds were set on development images of small detectors trained on glyph scenes;
docs/diagnosis.md says what they mean and how often the advice was right.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.form_preview import (
    CONFIDENCE,
    DEFAULT_THRESHOLD,
    EXPECTED_DETECTIONS,
    FormEffects,
    form_effects,
)
from logn.calibrators.known_activation import known_activation
from logn.calibrators.method_spec import fit_method
from logn.calibrators.methods import no_correction
from logn.calibrators.methods.logit_normalization import DEFAULT_METHOD
from logn.calibrators.score_shift_warning import change_in_words
from logn.classes.counts import ClassCounts
from logn.errors import InputError
from logn.logits.arrays import check_background
from logn.statistics.diagnosis import Diagnosis, TailBias, chance_correlation, diagnose, tail_bias
from logn.statistics.moments import ClassMoments
from logn.statistics.sanity_checks import sanity_checks as doubts_about

# With fewer classes a spread of means or a correlation says nothing about a tail.
FEWEST_CLASSES = 5
# Spread of the means (in standard deviations of a class) and relative spread of the standard deviations below which
# there is little to gain. Detectors that had been corrected in part and were corrected for good gained at most 0.4 AP
# below both, and more where the means spread further.
LITTLE_MEAN_SPREAD = 0.4
LITTLE_STD_SPREAD = 0.2
# From one standard deviation on, a class below the average needs a deviation that is rare for it, merely to draw level.
STRONG_MEAN_SPREAD = 1.0
# Rank correlation of the means with the training counts that leaves no doubt what the spread comes from.
CLEAR_CORRELATION = 0.6
# Statistics of labelled positives say how well classes are known, not where they start from.
OTHER_STATISTICS = ("positives", "positives-correct")

NONE = no_correction.METHOD.name
FEDERATED, EXHAUSTIVE = "federated", "exhaustive"
# For classifiers: it costs next to no accuracy over all images, and a class that the recorded images happen to lack, of
# which the mean probability then says too little, is not raised above all others.
HALF_PRIOR = "p2p:strength=0.5"
# By what the labels verify: how far a detector's foreground goes below the margin that keeps its mass. Chosen on the
# development images of photographs and drawn scenes by a rule that was fixed before (docs/real-images.md).
EXTRA_MARGINS: Mapping[str | None, int] = {FEDERATED: -2, EXHAUSTIVE: -1, None: -1}
HIGH, MODERATE, LOW = "high", "moderate", "low"
STRONG, LITTLE, UNCLEAR = "strong", "little", "unclear"


def recommended_method(background: int | None, activation: str | None, labels: str | None = None) -> str:
    """The correction that we recommend for a model of this kind, where there is something to correct.

    Args:
        background: Place of the background column; None for a model without one.
        activation: "softmax", "sigmoid", or None where nobody knows.
        labels: What the labels that matter to the user verify: "federated" (LVIS: a class was looked for in some images
            only) or "exhaustive" (COCO, YOLO, VOC: in all); None where it is not known. It decides the margin.

    Example:
        >>> recommended_method(0, "softmax", "federated"), recommended_method(None, "softmax")
        ('p2p:extra_margin=-2', 'p2p:strength=0.5')
        >>> recommended_method(None, "sigmoid"), recommended_method(None, None)
        ('logn:balanced', 'logn:balanced')
    """
    if labels not in EXTRA_MARGINS:
        raise InputError(f'Expected `labels` to be "{FEDERATED}" or "{EXHAUSTIVE}", but got {labels!r}.')
    if activation != "softmax":
        return DEFAULT_METHOD
    return HALF_PRIOR if background is None else f"p2p:extra_margin={EXTRA_MARGINS[labels]}"


def recommended_for(
    moments: ClassMoments,
    *,
    background: int | str | None = "recorded",
    activation: str | None = "recorded",
    labels: str | None = None,
) -> str:
    """The same for the model that statistics are of; where they hold no prior, what can do without.

    Args:
        moments: The statistics.
        background: Place of the background column: None, 0, -1, or "recorded" to take it from the statistics.
        activation: "softmax", "sigmoid", or "recorded".
        labels: As `recommended_method` takes it.

    Example:
        >>> from logn.statistics.metadata import StatisticsMetadata
        >>> recommended_for(ClassMoments(3, mean_probability=True, metadata=StatisticsMetadata(background=0)))
        'p2p:extra_margin=-1'
        >>> recommended_for(ClassMoments(3, metadata=StatisticsMetadata(background=0)))
        'logn:balanced'
    """
    place = moments.metadata.background if background == "recorded" else check_background(background)
    known = known_activation(moments.metadata.activation, place, activation)
    found = recommended_method(place, known, labels)
    return found if _has_prior(moments, known) else DEFAULT_METHOD


def _has_prior(moments: ClassMoments, activation: str | None) -> bool:
    """Whether the mean probability was recorded; a row sample knows too little of rare classes to recommend it."""
    try:
        return activation is not None and moments.mean_probability_of(activation) is not None
    except InputError:  # it was recorded by another activation
        return False


@dataclass(frozen=True)
class Advice:
    """The form we recommend.

    Attributes:
        form: A method specification for `logn fit --method` or `logn.fit_method`: that of `recommended_method`, or
            "none" when there is little to gain.
        confidence: "high", "moderate" or "low".
        strength: How strong the bias against the tail looks: "strong", "moderate", "little" or "unclear".
        reason: Why, in plain sentences.
        indicators: The numbers behind it.
        cautions: What else to mind, a sentence each; often what the paper's own margin would do.
    """

    form: str
    confidence: str
    strength: str
    reason: str
    indicators: Mapping[str, float]
    cautions: tuple[str, ...] = ()

    def fit(self, moments: ClassMoments, *, activation: str | None = "recorded") -> ClassAffine:
        """Do as advised: the map of `form`, which changes nothing where that is "none".

        Args:
            moments: The statistics that were judged.
            activation: As it was said to `advise`.
        """
        return fit_method(self.form, moments=moments, activation=activation)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def advise(
    moments: ClassMoments,
    counts: ClassCounts | npt.ArrayLike | None = None,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    activation: str | None = "recorded",
    labels: str | None = None,
) -> Advice:
    """Recommend a correction from statistics; no labels are needed, and counts only if there are some.

    Args:
        moments: Statistics of the logits, best with a row sample.
        counts: Training images per foreground class; they make the advice surer.
        threshold: The score above which the user counts a detection.
        activation: "softmax", "sigmoid", or "recorded"; one that nobody knows is taken for a sigmoid.
        labels: "federated" or "exhaustive", as `recommended_method` takes it: the kind of labels that the user will be
            measured by.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).standard_normal((2000, 6))
        >>> level, tail = (ClassMoments(6, sample_rows=500, mean_probability=True) for _ in range(2))
        >>> level.update(rows); tail.update(rows * [3, 2.5, 2, 1.5, 1, 1] - [0, 2, 4, 5, 6, 7])
        >>> advise(level).form, advise(tail).form, advise(tail, activation="softmax").form
        ('none', 'logn:balanced', 'p2p:strength=0.5')
        >>> advise(tail).fit(tail).settings["margin"]
        'balance'
    """
    bias = tail_bias(moments)
    diagnosis = diagnose(moments, counts)
    effects = form_effects(moments, threshold=threshold, activation=activation)
    return advice_from(
        bias,
        diagnosis,
        effects,
        estimator=moments.metadata.estimator,
        doubts=doubts_about(moments),
        method=recommended_for(moments, activation=activation, labels=labels),
        labels=labels,
    )


def advice_from(
    bias: TailBias,
    diagnosis: Diagnosis,
    effects: FormEffects,
    *,
    estimator: str = "exact",
    doubts: tuple[str, ...] = (),
    method: str = DEFAULT_METHOD,
    labels: str | None = None,
) -> Advice:
    """The same from what was already computed; `method` is what to recommend where there is something to correct."""
    if effects.before is not None and method not in {effect.form for effect in effects.forms}:
        method = DEFAULT_METHOD  # a class without any probability has no prior to take out
    form, strength, reason = _judgement(bias, diagnosis, method)
    if form == method and effects.rows == 0:
        reason += f" {effects.note}"
    return Advice(
        form=form,
        confidence=LOW if doubts else _confidence(form, strength, bias, diagnosis, effects, estimator),
        strength=strength,
        reason=reason,
        indicators=_indicators(bias, diagnosis, effects),
        cautions=(
            *doubts,
            *_cautions(effects, estimator),
            *((effects.assumption,) if effects.assumption else ()),
            *(() if form == NONE else _choices(effects, labels)),
        ),
    )


def _judgement(bias: TailBias, diagnosis: Diagnosis, method: str) -> tuple[str, str, str]:
    """Form, strength and reason."""
    if bias.classes < FEWEST_CLASSES:
        few = {0: "No class is", 1: "Only 1 class is"}.get(bias.classes, f"Only {bias.classes} classes are")
        return NONE, UNCLEAR, f"{few} alive, too few to speak of a tail: correct nothing."
    chance = chance_correlation(bias.classes)
    follows = diagnosis.mean_with_count.spearman if diagnosis.mean_with_count is not None else None
    link = "" if follows is None else f"rank correlation of mean and log count {follows:+.2f}"
    if follows is not None and follows < -chance:
        reverse = f"The mean logits fall with the training counts ({link}), the reverse of the long-tail bias: "
        return NONE, UNCLEAR, reverse + "check the order of the counts before you correct anything."
    spread = (
        f"the mean logits of the classes spread by {bias.mean_spread:.2f} of a class's standard deviation, "
        f"the standard deviations by {100 * bias.std_spread:.0f} %"
    )
    if bias.mean_spread < LITTLE_MEAN_SPREAD and bias.std_spread < LITTLE_STD_SPREAD:
        return NONE, LITTLE, f"All classes start about level: {spread}, so there is little to gain."
    if follows is not None and not follows > chance:
        unlike = f"The classes differ ({spread}), but not as the training counts do ({link}): "
        return NONE, LITTLE, unlike + "that is no bias against the tail, and there is little to gain."
    strength = STRONG if bias.mean_spread >= STRONG_MEAN_SPREAD else MODERATE
    looks = f"The bias against the tail looks {strength}: {spread}{_starved_in_words(bias)}. "
    return method, strength, f"{looks}{_remedy(method)}"


def _remedy(method: str) -> str:
    if method == DEFAULT_METHOD:
        return (
            "The balanced form takes out what differs between the classes and keeps the model's own common scale and "
            "overall level of scores."
        )
    what = "Prior2Posterior takes out the prior that the model has of each class"
    half = f"Half of it: {what}."
    return half if method == HALF_PRIOR else f"{what}, and shifts the foreground down against the background."


def _choices(effects: FormEffects, labels: str | None) -> tuple[str, ...]:
    """What the user knows and the statistics do not."""
    if effects.quantity == CONFIDENCE:
        return (
            "Where all classes weigh the same and the recorded images hold every class, all of it (`p2p`) gains more; "
            "it costs the frequent ones.",
        )
    if effects.quantity == EXPECTED_DETECTIONS:
        return (
            "A map per class leaves the ranking within each class of a sigmoid as it is, so AP hardly moves: what it "
            "moves are scores, and a threshold per class (`logn thresholds`) does that by a target of yours.",
        )
    if labels is None:
        return (
            f"What the labels verify decides the margin: say --labels federated (LVIS: {EXTRA_MARGINS[FEDERATED]}) or "
            f'exhaustive (COCO, YOLO, VOC: {EXTRA_MARGINS[EXHAUSTIVE]}), in Python labels="federated".',
        )
    return ()


def _starved_in_words(bias: TailBias) -> str:
    if not bias.starved_share > bias.starved_by_chance:  # also when there is no row sample
        return ""
    return f", and {100 * bias.starved_share:.0f} % of the classes hardly ever score highest"


def _confidence(
    form: str, strength: str, bias: TailBias, diagnosis: Diagnosis, effects: FormEffects, estimator: str
) -> str:
    if strength == UNCLEAR or estimator in OTHER_STATISTICS:
        return LOW
    link = diagnosis.mean_with_count
    if form == NONE:
        return MODERATE
    chance = chance_correlation(bias.classes)
    clear_counts = link is not None and link.spearman >= CLEAR_CORRELATION
    together = bias.mean_std_correlation > chance
    if not clear_counts and not together:
        return LOW  # means that differ without the spreads can come from anything, such as classes that are hard
    # The rule was checked on detectors with a softmax over classes and background only.
    tested = effects.quantity not in (CONFIDENCE, EXPECTED_DETECTIONS) and effects.rows > 0
    return HIGH if strength == STRONG and tested else MODERATE


def _indicators(bias: TailBias, diagnosis: Diagnosis, effects: FormEffects) -> dict[str, float]:
    indicators: dict[str, float] = dict(bias.to_dict())
    if effects.before is not None:
        mass = max(effects.before.mass, sys.float_info.min)
        for name, form in (("paper", effects.forms[0]), ("balanced", effects["logn:balanced"])):
            indicators[f"{name}_mass_factor"] = form.mass / mass
            indicators[f"{name}_winners_changed"] = form.winners_changed
    for name, link in (("mean", diagnosis.mean_with_count), ("std", diagnosis.std_with_count)):
        if link is not None:
            indicators[f"{name}_count_correlation"] = link.spearman
    return indicators


def _cautions(effects: FormEffects, estimator: str) -> tuple[str, ...]:
    cautions = []
    if estimator in OTHER_STATISTICS:
        cautions.append("The statistics are of labelled positives only: record all samples, as the paper does.")
    if effects.before is not None:
        change = change_in_words(effects.before, effects.forms[0], effects.quantity, effects.threshold)
        if change:
            cautions.append(f"The paper's own form ({effects.forms[0].form}) {change}")
    return tuple(cautions)
