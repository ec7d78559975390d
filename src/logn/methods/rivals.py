"""The methods that LogN is compared with: each a function to a `ClassAffine`, with the defaults of its paper."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from logn.base.arrays import is_torch_tensor
from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.methods.checks import CountKind, checked_counts, checked_number, checked_target
from logn.statistics.head import Head, foreground_columns

Weights = Literal["power", "effective-number"]
Variant = Literal["smooth", "raw", "relative", "base2", "base10"]


def logit_adjustment(
    counts: ClassCounts | npt.ArrayLike,
    tau: float = 1.0,
    *,
    priors: bool = True,
    count_kind: CountKind = "instances",
    target: npt.ArrayLike | None = None,
    background: int | None = None,
) -> ClassAffine:
    """Logit adjustment (Menon et al., ICLR 2021): map `x_c` to `x_c - tau * log(prior_c)`.

    `prior_c` is the share of class c among the training samples. Half of it (`tau=0.5`) is for deployments that are as
    long-tailed as the training images were: it helps rare classes at little cost to the others.

    With a background column the difference between priors and raw counts matters: it moves every foreground logit by
    `tau * log(sum of counts)` against the background. Without one it does not.

    Args:
        counts: Training samples of each foreground class.
        tau: The power of the prior; 1 is the reference default, 0 changes nothing.
        priors: Divide the counts by their sum (the paper's form); False uses the raw counts, as NorCal does.
        count_kind: Which counts of a `ClassCounts` to take: "images" or "instances".
        target: Share of each foreground class where the model will be used, of any sum: `log(target_c)` comes on top.
            None leaves the term out.
        background: Index of the background column, which is left alone: None, 0 or -1.

    Example:
        >>> adjusted = logit_adjustment([100, 10, 1])
        >>> adjusted(np.array([1.0, 0.8, 0.2])).round(6)
        array([1.10436 , 3.206945, 4.90953 ])
    """
    frequencies = checked_counts("counts", counts, count_kind)
    power = checked_number("tau", tau)
    if priors:
        frequencies = frequencies / frequencies.sum()
    towards = 0.0 if target is None else np.log(checked_target(target, len(frequencies)))
    settings: dict[str, Any] = {"tau": power, "priors": priors}
    if target is not None:
        settings["target"] = np.exp(towards).tolist()
    shift = towards - power * np.log(frequencies)
    return ClassAffine.over_foreground(
        np.ones_like(frequencies), shift, Head(background=background), method="loga", settings=settings
    )


def norcal(
    counts: ClassCounts | npt.ArrayLike,
    gamma: float = 0.6,
    *,
    weights: Weights = "power",
    on_logits: bool = False,
    count_kind: CountKind = "images",
    target: npt.ArrayLike | None = None,
    background: int | None = None,
) -> ClassAffine:
    """NorCal (Pan et al., NeurIPS 2021): weigh the exponentials of the foreground, `softmax(x_c + log w_c)`.

    Dividing the exponentials (or the probabilities) and renormalising is a shift of the logits, so nothing overflows.
    The counts are raw image counts: dividing them by their sum would raise the whole foreground against the
    background.

    Args:
        counts: Training images of each foreground class.
        gamma: The power, 0 to change nothing; for effective-number weights the base, 0 < gamma < 1.
        weights: "power" for `N^-gamma`, "effective-number" for `(1 - gamma) / (1 - gamma^N)`.
        on_logits: Multiply the logits by the weight instead: another method, kept for comparison.
        count_kind: Which counts of a `ClassCounts` to take: "images" or "instances".
        target: Share of each foreground class where the model will be used, of any sum; None is the same for all. It
            enters with the power gamma, as the counts do: aiming at the counts moves no class against another.
        background: Index of the background column, which is left alone: None, 0 or -1.

    Example:
        >>> calibrated = norcal([100, 10, 1], gamma=0.6, background=-1)
        >>> calibrated.shift.round(6)
        array([-2.763102, -1.381551, -0.      ,  0.      ])
    """
    numbers = checked_counts("counts", counts, count_kind)
    power = checked_number("gamma", gamma)
    if weights == "power":
        log_weights = -power * np.log(numbers)
    elif weights == "effective-number":
        if not 0.0 < power < 1.0:
            raise InputError(f"Expected `gamma` to be between 0 and 1 for effective-number weights, but got {gamma!r}.")
        log_weights = np.log1p(-power) - np.log1p(-(power**numbers))
    else:
        raise InputError(f"Expected `weights` to be one of ('power', 'effective-number'), but got {weights!r}.")
    scale, shift = (np.exp(log_weights), 0.0 * numbers) if on_logits else (np.ones_like(numbers), log_weights)
    if target is not None and (on_logits or weights != "power"):
        raise InputError(
            'Expected `target` only with weights="power" and without `on_logits`, but got it with '
            f"{'on_logits' if on_logits else weights}."
        )
    settings: dict[str, Any] = {"gamma": power, "weights": weights, "on_logits": on_logits}
    if target is not None:
        shares = checked_target(target, len(numbers))
        shift = shift + power * np.log(shares / shares.mean())
        settings["target"] = shares.tolist()
    return ClassAffine.over_foreground(scale, shift, Head(background=background), method="norcal", settings=settings)


def inverse_image_frequency(
    counts: ClassCounts | npt.ArrayLike,
    variant: Variant = "smooth",
    *,
    count_kind: CountKind = "images",
    background: int | None = None,
) -> ClassAffine:
    """Inverse image frequency (IIF, TIP 2023): map `x_c` to `x_c * I_c`.

    A logit of 0 stays 0, and a negative logit of a rare class gets more negative: the method helps only where the
    logits that matter are positive.

    Args:
        counts: Training samples of each foreground class.
        variant: "smooth" is `log((N + 1) / (n + 1)) + 1`, the post-hoc default; "raw" `log(N / n)`; "relative"
            `log((N - n) / n)`; "base2" and "base10" are "raw" in that base.
        count_kind: Which counts of a `ClassCounts` to take: "images" or "instances".
        background: Index of the background column, which is left alone: None, 0 or -1.

    Example:
        >>> inverse_image_frequency([100, 10, 1]).scale.round(6)
        array([1.103378, 3.320604, 5.025352])
    """
    numbers = checked_counts("counts", counts, count_kind)
    total = numbers.sum()
    if len(numbers) < 2:
        raise InputError("Expected `counts` to have at least two classes, but got one.")
    factors = {
        "smooth": lambda: np.log((total + 1) / (numbers + 1)) + 1,
        "raw": lambda: np.log(total / numbers),
        "relative": lambda: np.log((total - numbers) / numbers),
        "base2": lambda: np.log2(total / numbers),
        "base10": lambda: np.log10(total / numbers),
    }
    if variant not in factors:
        raise InputError(f"Expected `variant` to be one of {tuple(factors)}, but got {variant!r}.")
    return ClassAffine.over_foreground(
        factors[variant](), 0.0 * numbers, Head(background=background), method="iif", settings={"variant": variant}
    )


def tau_norm(weight: Any, tau: float = 1.0, bias: Any = None, *, background: int | None = None) -> ClassAffine:
    """tau-norm (Kang et al., ICLR 2020): map `x_c = w_c · f + b_c` to `w_c · f / |w_c|^tau`; the bias is dropped.

    Every weight of a normalised (cosine) classifier has the same effective length, so tau-norm cannot change one.

    Args:
        weight: Weight of the classifier, one row per column of the logits: `(C, D)`, or a convolution's
            `(C, in, k, k)`; a NumPy array or a torch tensor.
        tau: The power, 0 to keep the weights (the bias is dropped even then).
        bias: Bias of the classifier, if it has one.
        background: Index of the background column, which is left alone: None, 0 or -1.

    Example:
        >>> weight, feature = np.array([[3.0, 4.0], [0.6, 0.8], [0.0, 0.5]]), np.array([1.0, 2.0])
        >>> tau_norm(weight, 0.7)(weight @ feature).round(6)
        array([3.565445, 2.2     , 1.624505])
    """
    power = checked_number("tau", tau)
    rows = _as_array("weight", weight)
    if rows.ndim < 2:
        raise InputError(f"Expected `weight` to have one row per class, but got shape {rows.shape}.")
    lengths = np.sqrt((rows.reshape(len(rows), -1) ** 2).sum(axis=1))
    if (lengths == 0).any():
        row = int(np.flatnonzero(lengths == 0)[0])
        raise InputError(f"Expected `weight` to have no row of zeros, but row {row} is one.")
    offsets = np.zeros(len(rows)) if bias is None else _as_array("bias", bias)
    if offsets.shape != (len(rows),):
        raise InputError(f"Expected `bias` to have shape ({len(rows)},), but got {offsets.shape}.")
    head = Head(len(rows), background=background)
    foreground = foreground_columns(len(rows), head.background)
    scale = lengths[foreground] ** -power
    return ClassAffine.over_foreground(
        scale, -scale * offsets[foreground], head, method="tau-norm", settings={"tau": power}
    )


def temperature(num_columns: int, value: float, *, background: int | None = None) -> ClassAffine:
    """Temperature scaling: divide every logit, the background's too, by `value`; no ranking within a row changes.

    Args:
        num_columns: Columns of the logits, the background included.
        value: The temperature, above 0; more than 1 makes the scores less certain.
        background: Index of the background column, for the record: None, 0 or -1.

    Example:
        >>> temperature(2, 4.0)(np.array([2.0, -8.0]))
        array([ 0.5, -2. ])
    """
    divisor = checked_number("value", value, above=0.0)
    scale = np.full(num_columns, 1.0 / divisor)
    return ClassAffine(
        scale,
        np.zeros(num_columns),
        Head(background=background),
        method="temperature",
        settings={"value": divisor},
    )


def _as_array(name: str, values: Any) -> npt.NDArray[np.float64]:
    if is_torch_tensor(values):
        values = values.detach().double().cpu().numpy()
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise InputError(f"Expected `{name}` to be finite, but it has values that are not.")
    return array
