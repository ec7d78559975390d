"""Offsets: a shift per class by few labelled rows, shrunk towards a map that needs no labels (after REPAIR, 2026)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.class_frequencies import checked_number, checked_target
from logn.calibrators.known_activation import known_activation
from logn.calibrators.labelled_fit import fit_to_labels
from logn.calibrators.labelled_rows import LabelledRows
from logn.calibrators.method import Method, MethodInputs, Option, Options
from logn.calibrators.target import TARGET_OPTION, target_shares
from logn.errors import InputError
from logn.statistics.metadata import ACTIVATIONS, StatisticsMetadata

BASES = ("none", "p2p", "logn", "loga", "norcal")
LABELLED_OPTIONS = {
    "base": Option("name", "What it is shrunk towards; default p2p, or loga, or none, by what there is.", BASES),
    "rows": Option("number", "Labelled rows to use, drawn at random; default all."),
    "target": TARGET_OPTION,
    "activation": Option("name", "softmax or sigmoid; default: as recorded.", (*ACTIVATIONS, "recorded")),
}


def offsets(
    labelled: LabelledRows,
    base: ClassAffine | None = None,
    *,
    background: int | None = None,
    activation: str = "softmax",
    target: npt.ArrayLike | None = None,
) -> ClassAffine:
    """Shift each class by labelled rows: least log-loss, shrunk towards `base` as cross-validation says.

    Args:
        labelled: Rows of images that the model was not trained on, with their classes; some hundreds do.
        base: A map that needs no labels; by default no change.
        background: Place of the background column, which is left alone, where no base says it: None, 0 or -1.
        activation: "softmax" or "sigmoid".
        target: Share of each foreground class where the model will be used, of any sum; None is the same for all. The
            labelled rows may have any mix.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat([0, 1, 2], [300, 30, 10])
        >>> rows = 2 * np.eye(3)[labels] + rng.normal(size=(340, 3)) + [2.0, 0.0, 0.0]
        >>> found = offsets(LabelledRows(rows, labels))
        >>> bool(found.shift[0] < found.shift[1] - 1.0)
        True
    """
    return _of_labels("offsets", labelled, base, background, activation, target, with_scale=False)


def vector_scaling(
    labelled: LabelledRows,
    base: ClassAffine | None = None,
    *,
    background: int | None = None,
    activation: str = "softmax",
    target: npt.ArrayLike | None = None,
) -> ClassAffine:
    """Scale and shift each class by labelled rows (Guo et al. 2017), shrunk as in `offsets`; the arguments are its.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat([0, 1], 500)
        >>> rows = (2 * np.eye(2)[labels] + rng.normal(size=(1000, 2))) * [5.0, 1.0]
        >>> found = vector_scaling(LabelledRows(rows, labels))
        >>> bool(found.scale[0] < 0.7 * found.scale[1])
        True
    """
    return _of_labels("vector", labelled, base, background, activation, target, with_scale=True)


def _of_labels(
    name: str,
    labelled: LabelledRows,
    base: ClassAffine | None,
    background: int | None,
    activation: str,
    target: npt.ArrayLike | None,
    *,
    with_scale: bool,
) -> ClassAffine:
    base = ClassAffine.identity(labelled.num_columns, background) if base is None else base
    if activation not in ("softmax", "sigmoid"):
        raise InputError(f'Expected `activation` to be "softmax" or "sigmoid", but got {activation!r}.')
    classes = base.num_classes - (base.background is not None)
    shares = None if target is None else checked_target(target, classes)
    if activation == "softmax" and (labelled.labels < 0).any():
        row = int(np.flatnonzero(labelled.labels < 0)[0])
        raise InputError(f"Expected `labels` of a softmax to be columns, but got -1 for row {row}.")
    found = fit_to_labels(labelled, base, activation, target=shares, with_scale=with_scale)
    settings: dict[str, Any] = {
        "base": base.method or "none",
        "labelled_rows": len(labelled),
        "shrinkage": None if not np.isfinite(found.strength) else found.strength,
        "held_out_loss": min(found.losses),
        "base_loss": found.losses[-1],
        "unlabelled_classes": found.unlabelled_classes,
        "activation": activation,
    }
    if shares is not None:
        settings["target"] = shares.tolist()
    affine = found.affine
    return ClassAffine(affine.scale, affine.shift, base.background, name, settings, base.source)


def fit_labelled(inputs: MethodInputs, options: Options, *, with_scale: bool) -> ClassAffine:
    """Fit `offsets` or `vector` from the inputs of methods."""
    target = target_shares(inputs, options)
    rows = _chosen_rows(inputs.needed_labelled(), options.get("rows"))
    recorded = StatisticsMetadata() if inputs.moments is None else inputs.moments.metadata
    activation = known_activation(recorded, inputs.background, options.get("activation", inputs.activation))
    if activation is None:
        raise InputError(
            f"Expected `activation` to be known for the method `{inputs.method}`, but nothing says it; say "
            'activation="softmax" or activation="sigmoid" (`--activation`).'
        )
    base = _base(inputs, options.get("base"), target, rows.num_columns)
    make = vector_scaling if with_scale else offsets
    return make(rows, base, activation=activation, target=target)


def _chosen_rows(labelled: LabelledRows, number: float | None) -> LabelledRows:
    """So many of the rows, drawn at random by whole images."""
    if number is None:
        return labelled
    most = checked_number("rows", number, above=1.0)
    _, unit = np.unique(labelled.units, return_inverse=True)
    order = np.random.default_rng(0).permutation(int(unit.max()) + 1)
    size = np.bincount(unit)[order]
    kept = order[np.cumsum(size) <= max(most, size[0])]
    return labelled.part(np.isin(unit, kept))


def _base(inputs: MethodInputs, name: str | None, target: Any, columns: int) -> ClassAffine:
    from logn.calibrators.all_methods import method_named

    if name is None:
        has_prior = inputs.moments is not None and inputs.moments.mean_probability is not None
        name = "p2p" if has_prior else "none" if inputs.counts is None else "loga"
    if name == "none":
        return ClassAffine.identity(columns, inputs.background)
    return method_named(name).fit(inputs, {} if target is None else {"target": target})


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    return fit_labelled(inputs, options, with_scale=False)


METHOD = Method(
    "offsets",
    "a shift per class by labelled rows",
    _fit,
    LABELLED_OPTIONS,
    needs=("labelled",),
    takes=("moments", "counts"),
)
