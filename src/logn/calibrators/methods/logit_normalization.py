"""Logit Normalization (Zhao, Teng, Wang; IJCV 2024) and the forms around it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.calibrators.balanced_margin import margin_that_balances, needed_sample
from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.class_frequencies import checked_number
from logn.calibrators.known_activation import known_activation
from logn.calibrators.match_confidence import keep_confidence as with_kept_confidence
from logn.calibrators.method import Method, MethodInputs, Option, Options
from logn.calibrators.target import STRENGTH_OPTION, TARGET_OPTION, Aim, target_shares
from logn.errors import InputError, LogNWarning
from logn.logits.arrays import FloatArray, check_background, foreground_columns
from logn.statistics.active_classes import active_classes as active_classes
from logn.statistics.metadata import ACTIVATIONS
from logn.statistics.moments import ClassMoments
from logn.statistics.sanity_checks import refuse_probabilities, value_checks

MarginName = Literal["min", "mean", "max", "background", "balance"]
Margin = MarginName | float | Literal["form"] | None
VarianceName = Literal["pooled", "within-batch"]
MARGIN_NAMES = ("min", "mean", "max", "background", "balance")
VARIANCE_NAMES = ("pooled", "within-batch")


class FormSettings(NamedTuple):
    """What a named form of LogN sets; a margin of None is the paper's."""

    margin: MarginName | float | None
    relative_std: bool


FORMS: Mapping[str, FormSettings] = {
    "balanced": FormSettings(margin="balance", relative_std=True),
    "paper": FormSettings(margin=None, relative_std=False),
}
# The form that we recommend: what Python, the command line, the advice and the documentation do by default.
DEFAULT_FORM = "balanced"
# The same as a specification of a method; `logn` alone is the paper's form.
DEFAULT_METHOD = f"logn:{DEFAULT_FORM}"


def form_settings(form: str | None = None, margin: Margin = "form", relative_std: bool | None = None) -> FormSettings:
    """The settings of a form, single ones of them changed.

    Without `form` it is the recommended one; but a margin that is given says itself which form is meant: "balance" is
    the balanced form's, and any other, None included, that of the paper's equation.

    Args:
        form: "balanced", "paper", or None; "logn:balanced" and "logn" (the paper's), as specifications have it, too.
        margin: The margin, or "form" for the form's own.
        relative_std: Whether the common scale stays, or None for what the form says.

    Example:
        >>> form_settings()
        FormSettings(margin='balance', relative_std=True)
        >>> form_settings(margin="min"), form_settings("balanced", margin="min")
        (FormSettings(margin='min', relative_std=False), FormSettings(margin='min', relative_std=True))
    """
    if form is None:
        form = DEFAULT_FORM if margin == "form" else "balanced" if margin == "balance" else "paper"
    name = "paper" if form == "logn" else str(form).removeprefix("logn:")
    if name not in FORMS:
        raise InputError(
            f"Expected `form` to be one of {', '.join(FORMS)}, but got {form!r}; other methods are fitted by "
            "logn.fit_method."
        )
    preset = FORMS[name]
    return FormSettings(
        preset.margin if margin == "form" else margin,
        preset.relative_std if relative_std is None else relative_std,
    )


def logit_normalization(
    moments: ClassMoments,
    form: str | None = None,
    *,
    background: int | str | None = "recorded",
    margin: Margin = "form",
    use_mean: bool = True,
    use_std: bool = True,
    relative_std: bool | None = None,
    std_power: float = 1.0,
    eps: float = 1e-5,
    active: npt.ArrayLike | None = None,
    variance: VarianceName = "pooled",
    activation: str | None = "recorded",
    keep_confidence: bool = False,
    target: npt.ArrayLike | None = None,
    strength: float = 1.0,
) -> ClassAffine:
    """Normalise the logit of every foreground class by its own mean and standard deviation.

    The balanced form, the default, keeps the detector's own scale and foreground mass: `(x_c - mean_c) / (std_c / mean
    std) + margin`, with the margin solved on the recorded sample so that the mean foreground probability stays as it
    was. `form="paper"` is the paper's: with a background equation 2, `(x_c - mean_c + margin) / std_c`, the background
    left alone; for a softmax without one equation 1, where the margin is 0. For a softmax without a background the
    margin changes nothing, and the common scale is a temperature, which `keep_confidence` can set.

    Sigmoids start from logits far below 0, and centring them there would make half of everything a detection. So
    without a background the margin keeps their expected number, the sum of all scores, unless the activation is known
    to be a softmax. Where it is not known at all, every class gets that same shift, dead ones too, and a softmax
    ignores it.

    Args:
        moments: Statistics of the logits over training images.
        form: "balanced" (`margin="balance"`, `relative_std=True`) or "paper" (`margin=None`, `relative_std=False`);
            these two arguments change it where they are given. By default the recommended form, "balanced"; but a
            `margin` of your own says itself which form you mean: "balance" the balanced one, any other the paper's
            equation with that margin. All other arguments leave the form as it is.
        background: Place of the background column: None, 0, -1, or "recorded" to take it from the statistics.
        margin: The margin of the foreground against the background: "min" (the paper's), "mean" or "max" of the
            foreground means, "background" for the background's mean, "balance", or a number; None is the paper's:
            "min" with a background, without one 0 for a softmax and else "balance". By default ("form") that of the
            form. Balancing sigmoids does without a row sample too, unless you name the margin yourself: it takes each
            class to be normal (`settings["margin_from"]` is "moments" instead of "sample").
        use_mean: Subtract the mean.
        use_std: Divide by the standard deviation.
        relative_std: Divide by the standard deviation over its average, so that the common scale stays; by default as
            the form says.
        std_power: Power of the standard deviation; 2 is the paper's squared variant.
        eps: Added to the variance.
        active: Which columns are alive, one boolean per column (the background's does not matter). Dead ones are left
            alone and do not set the margin. By default those never seen, or with hardly any variance, are dead.
        variance: "pooled" over everything, or the mean of the variances "within-batch".
        activation: "softmax", "sigmoid", or "recorded" to take it from the statistics.
        keep_confidence: For a softmax without a background: scale all classes, the dead ones too, by the one factor for
            which the mean highest probability over the recorded sample stays as it was. Right where the sample is of
            images that the model was not trained on; else use `logn.keep_confidence` with logits of such images. Who
            asks for it has a softmax, so an activation that is not recorded is taken for one.
        target: Share of each foreground class where the model will be used, of any sum: `log(target_c)` comes on top.
            None is the same for all.
        strength: How much of the correction: power of the scales, factor on the shifts; 0 changes nothing. A margin
            that balances is solved after it.

    Example:
        >>> moments = ClassMoments(4)
        >>> moments.update(np.array([[2, 0.5, -1, 3], [0, 1.5, -2, 4], [1, -0.5, 0.5, 2], [-1, 0, -3, 5.0]]))
        >>> affine = logit_normalization(moments, form="paper", background=-1)
        >>> affine(np.array([1.0, 0.8, 0.2, 1.5])).round(6)
        array([-0.67777 , -1.112518,  0.133955,  1.5     ])
    """
    _check_moments(moments)
    chosen = form_settings(form, margin, relative_std)
    place = check_background(moments.metadata.background if background == "recorded" else background)
    _check_values(moments, place)
    foreground = foreground_columns(moments.num_classes, place)
    alive = active_classes(moments, place) if active is None else _checked_mask(active, moments.num_classes)
    alive = alive[foreground]
    if not alive.any():
        raise InputError("Expected `moments` to have at least one active foreground class, but got none.")
    mean = np.where(alive, moments.mean[foreground], 0.0)
    std = _divisor(moments, foreground, alive, use_std, chosen.relative_std, std_power, eps, variance)
    scale, centre = 1.0 / std, mean if use_mean else np.zeros_like(mean)
    known = known_activation(moments.metadata.activation, place, activation)
    known = "softmax" if known is None and keep_confidence else known
    if keep_confidence and (place is not None or known != "softmax"):
        got = "a background" if place is not None else "sigmoids"
        raise InputError(f"Expected `keep_confidence` only for a softmax without a background, but got {got}.")
    aim = Aim(target, strength, len(mean))
    margin_name = chosen.margin if chosen.margin is not None else _paper_margin(place, known)
    settings: dict[str, Any] = {
        "margin": margin_name,
        "use_mean": use_mean,
        "use_std": use_std,
        "relative_std": chosen.relative_std,
        "std_power": std_power,
        "eps": eps,
        "variance": variance,
        "activation": known,
        "inactive": int((~alive).sum()),
        **aim.to_settings(),
    }
    common_shift = 0.0  # of the dead classes too
    if margin_name == "balance":
        scale, shift = aim(scale, -centre * scale, alive=alive)
        unbalanced = ClassAffine.over_foreground(
            np.where(alive, scale, 1.0), np.where(alive, shift, 0.0), place, method="logn"
        )
        way_out = (
            'the paper\'s form, form="paper" (`--form paper`)'
            if known
            else 'another margin, or say activation="softmax" (`--activation softmax`) if it is one'
        )
        solution = margin_that_balances(
            moments, unbalanced, alive, known, way_out=way_out, needs_sample=margin == "balance"
        )
        settings |= solution.to_settings()
        shift = shift + solution.value
        common_shift = solution.value if known is None else 0.0
    else:
        value = _margin_value(margin_name, mean[alive], moments, place)
        settings["margin_value"] = value
        scale, shift = aim(scale, (value - centre) * scale, alive=alive)
    affine = ClassAffine.over_foreground(
        np.where(alive, scale, 1.0),
        np.where(alive, shift, common_shift),
        place,
        method="logn",
        settings=settings,
        source=moments.metadata.with_changes(background=place, activation=known),
    )
    if not keep_confidence:
        return affine
    return with_kept_confidence(affine, needed_sample(moments, "to keep the mean confidence", "keep_confidence=False"))


def _paper_margin(background: int | None, activation: str | None) -> MarginName | float:
    if background is not None:
        return "min"
    return 0.0 if activation == "softmax" else "balance"


def _check_moments(moments: ClassMoments) -> None:
    if not isinstance(moments, ClassMoments):
        raise InputError(
            f"Expected `moments` to be a logn.ClassMoments, but got {type(moments).__name__}; logits are added by its "
            "update(logits), a file is read by its load(path)."
        )
    if moments.count.max() == 1 and np.isnan(moments.variance).all():
        raise InputError("Expected `moments` to hold at least two rows of logits, but got 1.")


def _check_values(moments: ClassMoments, background: int | None) -> None:
    """Refuse statistics of probabilities, and warn of what may be some, or of a class that stands alone."""
    refuse_probabilities(moments)
    for sentence in value_checks(moments, background=background):
        warnings.warn(sentence, LogNWarning, stacklevel=3)


def _divisor(
    moments: ClassMoments,
    foreground: slice,
    alive: npt.NDArray[np.bool_],
    use_std: bool,
    relative_std: bool,
    std_power: float,
    eps: float,
    variance: str,
) -> FloatArray:
    """What each foreground logit is divided by."""
    if variance not in VARIANCE_NAMES:
        raise InputError(f"Expected `variance` to be one of {VARIANCE_NAMES}, but got {variance!r}.")
    if eps < 0 or not np.isfinite(eps):
        raise InputError(f"Expected `eps` to be at least 0, but got {eps!r}.")
    if not use_std:
        return np.ones(len(alive))
    spread = (moments.variance if variance == "pooled" else moments.within_batch_variance)[foreground]
    if variance == "within-batch" and not np.isfinite(spread).any():
        raise InputError("Expected `moments` to hold variances within batches, but got none.")
    std = np.sqrt(spread + eps) ** checked_number("std_power", std_power)
    std = np.where(alive & np.isfinite(std), std, 1.0)
    if (std == 0).any():
        raise InputError("Expected `eps` to be above 0 where a class does not vary, but got 0.")
    return std / std[alive].mean() if relative_std else std


def _margin_value(margin: str | float, means: FloatArray, moments: ClassMoments, background: int | None) -> float:
    """The margin as a number; `means` are those of the active foreground."""
    if not isinstance(margin, str):
        return checked_number("margin", margin)
    if margin == "background":
        if background is None:
            raise InputError('Expected `margin` to be other than "background" where there is none.')
        return float(moments.mean[background])
    named = {"min": float(means.min()), "mean": float(means.mean()), "max": float(means.max())}
    if margin not in named:
        raise InputError(f"Expected `margin` to be a number or one of {MARGIN_NAMES}, but got {margin!r}.")
    return named[margin]


def _checked_mask(active: npt.ArrayLike, num_classes: int) -> npt.NDArray[np.bool_]:
    mask = np.asarray(active)
    if mask.dtype != np.bool_ or mask.shape != (num_classes,):
        raise InputError(
            f"Expected `active` to be one boolean per column ({num_classes}), but got {mask.dtype} {mask.shape}."
        )
    return mask


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    given: Options = {
        "form": "paper",
        "background": inputs.background,
        "active": inputs.active,
        "activation": inputs.activation,
    }
    given["target"] = target_shares(inputs, options)
    return logit_normalization(inputs.needed_moments(), **(given | options))


def _notes(inputs: MethodInputs, options: Options, affine: ClassAffine) -> list[str]:
    """What was assumed of an activation that nobody knows, and how to say otherwise."""
    settings = affine.settings
    if settings["activation"] is not None or settings["margin"] != "balance":
        return []
    guessed = ", estimated from means and variances," if settings["margin_from"] == "moments" else ""
    return [
        f"The activation is not recorded, so all classes got a common shift of {settings['margin_value']:.4g}{guessed} "
        "that keeps the expected number of detections of sigmoids and that a softmax ignores; if you know it, say "
        "--activation softmax or --activation sigmoid."
    ]


METHOD = Method(
    "logn",
    f"the paper's recipe; {DEFAULT_METHOD} is the default",
    _fit,
    {
        "form": Option(
            "name", "balanced (default) or paper (default with --margin).", tuple(FORMS), "--form", bare=True
        ),
        "margin": Option("number or name", f"{', '.join(MARGIN_NAMES)} or a number.", MARGIN_NAMES, "--margin"),
        "use_mean": Option("flag", "Subtract the mean (default) or keep it.", flag="--mean/--no-mean"),
        "use_std": Option("flag", "Divide by the spread (default) or keep it.", flag="--std/--no-std"),
        "relative_std": Option(
            "flag", "Keep the common scale, or not; default: as the form.", flag="--relative-std/--no-relative-std"
        ),
        "std_power": Option("number", "Power of the standard deviation; 2: squared form.", flag="--std-power"),
        "eps": Option("number", "Added to the variance; default 1e-5.", flag="--eps"),
        "variance": Option("name", "pooled (default) or within-batch.", VARIANCE_NAMES, "--variance"),
        "activation": Option("name", "softmax or sigmoid; default: as recorded.", (*ACTIVATIONS, "recorded")),
        "keep_confidence": Option("flag", "Keep a softmax classifier's mean confidence on the recorded sample."),
        "strength": STRENGTH_OPTION,
        "target": TARGET_OPTION,
    },
    needs=("moments",),
    takes=("active", "counts"),
    notes=_notes,
)
