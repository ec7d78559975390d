"""What each form of LogN would do to the scores of a model, seen on the recorded row sample: no labels are needed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.known_activation import assumed_activation, known_activation
from logn.calibrators.method_spec import fit_method
from logn.calibrators.methods.logit_normalization import DEFAULT_METHOD
from logn.errors import InputError, LogNWarning
from logn.logits.arrays import FloatArray, check_background, foreground_columns, sigmoid, softmax
from logn.statistics.moments import ClassMoments

# The score threshold that most detectors are used with.
DEFAULT_THRESHOLD = 0.05

# Scores above a threshold that a sample must have to say where they went.
FEWEST_ABOVE = 20

FOREGROUND_MASS, CONFIDENCE, EXPECTED_DETECTIONS = "foreground mass", "confidence", "expected detections"

NO_SAMPLE = (
    "The statistics hold no row sample: nobody can say what a form would do to the scores, and no margin can be "
    "balanced against a background; collect them again with rows (`logn collect --sample-rows 4096`, or "
    "sample_rows=4096 in Python)."
)

NOT_RECORDED = (
    "The activation is not recorded: the scores are taken for those of sigmoids, whose expected number the forms keep "
    "by a shift that all classes have in common and that a softmax ignores; if you know it, say --activation softmax "
    'or --activation sigmoid (in Python activation="softmax").'
)

# Parts of a correction that are looked at.
STRENGTHS = (0.25, 0.5, 0.75, 1.0)

_RELATIVE_STD = "logn:use_mean=false,relative_std=true,margin=0"
_MARGINS = {
    "logn:margin=min": "paper (margin min)",
    "logn:margin=mean": "margin mean",
    "logn:margin=max": "margin max",
    "logn:margin=background": "margin background",
    "logn:margin=0": "margin 0",
}
_KEEPING_SCALE = {_RELATIVE_STD: "relative std alone", "logn:balanced": "balanced"}
# By the mean probability; recommended ones among them (`logn.calibrators.advice`).
_BY_PRIOR = {
    "p2p": "p2p, mass kept",
    "p2p:extra_margin=-1": "p2p, margin -1",
    "p2p:extra_margin=-2": "p2p, margin -2",
}
_BY_PRIOR_WITHOUT_BACKGROUND = {"p2p": "p2p", "p2p:strength=0.5": "p2p, half of it"}
# Without a background the paper has no margin, and only the mean, the std, or both can be taken out.
_WITHOUT_BACKGROUND = {"logn": "paper (mean and std)", "logn:use_std=false": "mean alone"}


@dataclass(frozen=True)
class FormEffect:
    """Scores of the sampled rows after one form.

    Attributes:
        form: The form as a method specification, such as "logn:balanced"; "none" for the model as it is.
        label: The same in words.
        mass: Mean over the rows of what `FormEffects.quantity` names.
        detections: (row, class) pairs with a score above the threshold, per 1,000 rows; before suppression and limits.
        winners_changed: Share of the rows, weighted by their foreground mass, whose best foreground class is another
            one than before.
        margin: The margin as a number, where the form has one.
    """

    form: str
    label: str
    mass: float
    detections: float
    winners_changed: float
    margin: float | None = None


@dataclass(frozen=True)
class FormEffects:
    """What every form would do.

    Attributes:
        quantity: What `mass` is: "foreground mass" (mean probability of being no background), "expected detections"
            (sigmoid heads: mean sum of the scores of a row) or "confidence" (softmax without a background: mean
            highest probability).
        threshold: The score threshold.
        rows: Rows of the sample; 0 when there is none, and then nothing else is known.
        before: The model as it is.
        forms: Each form that suits the model.
        note: What cannot be told and why, else empty.
        assumption: What had to be assumed of the model, and how to say otherwise, else empty.
    """

    quantity: str
    threshold: float
    rows: int
    before: FormEffect | None = None
    forms: tuple[FormEffect, ...] = ()
    note: str = ""
    assumption: str = ""

    def __getitem__(self, form: str) -> FormEffect:
        """The effect of the form with this specification."""
        for effect in self.forms:
            if effect.form == form:
                return effect
        raise KeyError(form)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def form_effects(
    moments: ClassMoments,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    background: int | str | None = "recorded",
    activation: str | None = "recorded",
) -> FormEffects:
    """Try every form of LogN on the recorded row sample.

    Args:
        moments: The statistics, with their row sample.
        threshold: The score above which the user counts a detection.
        background: Place of the background column: None, 0, -1, or "recorded" to take it from the statistics.
        activation: "softmax", "sigmoid", or "recorded"; one that nobody knows is taken for a sigmoid.

    Example:
        >>> from logn.statistics.metadata import StatisticsMetadata
        >>> moments = ClassMoments(3, sample_rows=1000, metadata=StatisticsMetadata(background=0))
        >>> moments.update(np.random.default_rng(0).standard_normal((1000, 3)) + [4.0, 0.0, -3.0])
        >>> effects = form_effects(moments)
        >>> [round(mass, 3) for mass in (effects.before.mass, effects["logn:margin=min"].mass)]
        [0.047, 0.005]
        >>> round(effects["logn:balanced"].mass, 3)
        0.047
    """
    place = check_background(moments.metadata.background if background == "recorded" else background)
    known = known_activation(moments.metadata.activation, place, activation)
    return _effects(moments, _suitable_forms(place, known), threshold, place, known)


def strength_effects(
    moments: ClassMoments,
    method: str = DEFAULT_METHOD,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    background: int | str | None = "recorded",
    activation: str | None = "recorded",
) -> FormEffects:
    """Try a quarter, half, three quarters and all of a correction on the recorded row sample.

    Args:
        moments: The statistics, with their row sample.
        method: The specification of a method that has a strength.
        threshold: The score above which the user counts a detection.
        background: Place of the background column: None, 0, -1, or "recorded" to take it from the statistics.
        activation: "softmax", "sigmoid", or "recorded"; one that nobody knows is taken for a sigmoid.

    Example:
        >>> moments = ClassMoments(3, sample_rows=1000)
        >>> moments.update(np.random.default_rng(0).standard_normal((1000, 3)) + [2.0, 0.0, -1.0])
        >>> found = strength_effects(moments, activation="softmax")
        >>> [(effect.label, round(effect.winners_changed, 2)) for effect in found.forms]
        [('strength 0.25', 0.09), ('strength 0.5', 0.25), ('strength 0.75', 0.4), ('strength 1', 0.57)]
    """
    place = check_background(moments.metadata.background if background == "recorded" else background)
    known = known_activation(moments.metadata.activation, place, activation)
    begin = method + ("," if ":" in method else ":")
    labels = {f"{begin}strength={part:g}": f"strength {part:g}" for part in STRENGTHS}
    return _effects(moments, labels, threshold, place, known)


def _effects(
    moments: ClassMoments, labels: Mapping[str, str], threshold: float, place: int | None, known: str | None
) -> FormEffects:
    """What the specifications do to the sampled rows; `labels` are their words."""
    judged = assumed_activation(known)
    assumption = NOT_RECORDED if known is None else ""
    nothing = FormEffects(quantity_of(place, judged), check_threshold(threshold), 0, assumption=assumption)
    rows = moments.sample.astype(np.float64)
    if len(rows) == 0:
        return replace(nothing, note=NO_SAMPLE)
    try:
        maps = {
            spec: fit_method(spec, moments=moments, background=place, activation=known)
            for spec in labels
            if not spec.startswith("p2p")
        }
    except InputError as error:  # such as no class that is alive
        return replace(nothing, note=str(error))
    maps |= _by_prior([spec for spec in labels if spec.startswith("p2p")], moments, place, known)
    if not maps:
        return replace(nothing, note="Some class has no probability to speak of, so that its prior has no logarithm.")
    before, forms = map_effects(rows, maps, threshold, judged)
    forms = tuple(replace(effect, label=labels[effect.form]) for effect in forms)
    return replace(nothing, rows=len(rows), before=before, forms=forms)


def _by_prior(
    specs: Sequence[str], moments: ClassMoments, background: int | None, activation: str | None
) -> dict[str, ClassAffine]:
    """The maps of Prior2Posterior; none where a class has no probability to speak of."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LogNWarning)  # of a sampled prior, said where one is fitted
            return {
                spec: fit_method(spec, moments=moments, background=background, activation=activation) for spec in specs
            }
    except InputError:
        return {}


def map_effects(
    rows: FloatArray, maps: Mapping[str, ClassAffine], threshold: float, activation: str
) -> tuple[FormEffect, tuple[FormEffect, ...]]:
    """What maps, given by name, do to the scores of `rows`: the rows as they are, then each map.

    Example:
        >>> raised = ClassAffine([1.0, 1.0], [0.0, 2.0], background=0)
        >>> before, (after,) = map_effects(np.array([[1.0, -1.0]]), {"raised": raised}, 0.3, "softmax")
        >>> before.detections, after.detections, round(after.mass, 6)
        (0.0, 1000.0, 0.5)
    """
    place = next(iter(maps.values())).background
    original = _scores(rows, place, activation)
    weight, winners = original.sum(axis=1), original.argmax(axis=1)
    certain = quantity_of(place, activation) == CONFIDENCE

    def effect(form: str, scores: FloatArray, margin: float | None) -> FormEffect:
        changed = scores.argmax(axis=1) != winners
        return FormEffect(
            form=form,
            label=form,
            mass=float((scores.max(axis=1) if certain else scores.sum(axis=1)).mean()),
            detections=1000.0 * float((scores > threshold).sum()) / len(rows),
            winners_changed=float(weight @ changed / max(float(weight.sum()), np.finfo(np.float64).tiny)),
            margin=margin,
        )

    after = [
        effect(name, _scores(affine(rows), place, activation), _margin_of(affine)) for name, affine in maps.items()
    ]
    return replace(effect("none", original, None), label="as it is"), tuple(after)


def matching_threshold(rows: FloatArray, affine: ClassAffine, threshold: float, activation: str) -> float | None:
    """The threshold above which as many corrected scores of the rows stand as above `threshold` before.

    None where too few scores stand above the old one to tell: the rows are a sample.

    Args:
        rows: Logits `(rows, columns)`.
        affine: The correction.
        threshold: The old one.
        activation: What the model applies to the logits.

    Example:
        >>> rows = np.random.default_rng(0).standard_normal((1000, 2))
        >>> round(matching_threshold(rows, ClassAffine([1, 1], [1, 1]), 0.5, "sigmoid"), 2)
        0.73
    """
    kept = int((_scores(rows, affine.background, activation) > check_threshold(threshold)).sum())
    after = np.sort(_scores(affine(rows), affine.background, activation), axis=None)[::-1]
    if not FEWEST_ABOVE <= kept < len(after):
        return None
    return float((after[kept - 1] + after[kept]) / 2)


def _margin_of(affine: ClassAffine) -> float | None:
    """The common shift of the foreground, where a map has one."""
    margin = affine.settings.get("margin_value")
    return None if margin is None else float(margin) + float(affine.settings.get("extra_margin", 0.0))


def quantity_of(background: int | None, activation: str) -> str:
    """What of a model's scores a correction should not change by accident.

    Example:
        >>> quantity_of(0, "softmax"), quantity_of(None, "softmax"), quantity_of(None, "sigmoid")
        ('foreground mass', 'confidence', 'expected detections')
    """
    if activation == "sigmoid":
        return EXPECTED_DETECTIONS
    return CONFIDENCE if background is None else FOREGROUND_MASS


def check_threshold(threshold: float) -> float:
    """Accept a score between 0 and 1.

    Example:
        >>> check_threshold(5)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `threshold` to be between 0 and 1, but got 5.
    """
    if not 0.0 <= threshold <= 1.0:
        raise InputError(f"Expected `threshold` to be between 0 and 1, but got {threshold!r}.")
    return float(threshold)


def _suitable_forms(background: int | None, activation: str | None) -> dict[str, str]:
    """Forms by specification, with their labels; the paper's comes first."""
    if background is not None:
        return _MARGINS | _KEEPING_SCALE | _BY_PRIOR
    if activation != "sigmoid":
        further = _BY_PRIOR_WITHOUT_BACKGROUND if activation == "softmax" else {}
        return _WITHOUT_BACKGROUND | _KEEPING_SCALE | further
    margins = {spec: label for spec, label in _MARGINS.items() if spec != "logn:margin=background"}
    return _WITHOUT_BACKGROUND | margins | {"logn:margin=min": "margin min"} | _KEEPING_SCALE


def _scores(logits: FloatArray, background: int | None, activation: str) -> FloatArray:
    """Scores of the foreground classes."""
    foreground = foreground_columns(logits.shape[1], background)
    if activation == "sigmoid":
        return sigmoid(logits[:, foreground])
    return softmax(logits)[:, foreground]
