"""`logn fit`: statistics or class counts in, a correction out."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.base.arrays import DEFAULT_AT
from logn.cli import options
from logn.cli.console import command, count_of, echo, print_json, print_note, print_text
from logn.errors import InputError, LogNWarning

if TYPE_CHECKING:
    from logn.data.class_counts import ClassCounts
    from logn.methods.affine import ClassAffine
    from logn.methods.sampled_scores import NewThreshold
    from logn.statistics.moments import ClassMoments


def fit(
    output: options.Output,
    statistics: Annotated[
        Path | None, typer.Argument(metavar="STATISTICS", help="File from logn collect, if the method needs one.")
    ] = None,
    method: options.Method = None,
    counts: options.Counts = None,
    dimensions: Annotated[
        Path | None, options.option("--dimensions", metavar="FILE", help="fracal: annotations, .csv, .npy or .json.")
    ] = None,
    weights: Annotated[
        Path | None, options.option("--weights", metavar="FILE", help="tau-norm: the weight, .npy or .safetensors.")
    ] = None,
    key: options.Key = None,
    target: options.Target = None,
    strength: options.Strength = None,
    at: options.At = DEFAULT_AT,
    deployment: options.Deployment = None,
    background: options.BackgroundOption = None,
    activation: options.ActivationOption = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Turn statistics or class counts into a correction: one scale and one shift per class.

    The default method is the one that logn inspect recommends. Methods:
    recommended, logn (the paper's), p2p, loga, norcal, fracal, iif, tau-norm,
    temperature.

    Examples:
      logn fit stats.safetensors -o affine.safetensors
      logn fit stats.safetensors --method logn:margin=0,use_std=false -o affine.safetensors
      logn fit --method norcal:gamma=0.6 --counts train.json --background last -o affine.safetensors
    """
    from logn.methods import catalog
    from logn.methods.sampled_scores import threshold_after
    from logn.statistics.moments import ClassMoments

    if statistics is not None:
        options.refuse_model(statistics, "statistics", "collect", "--images", "train/", "-o", "stats.safetensors")
    spec = options.method_spec(method, strength)
    options.check_output(output, statistics, counts, dimensions, weights, target, deployment, overwrite=overwrite)
    _check_counts_are_used(spec, counts, target)
    moments = None if statistics is None else ClassMoments.load(statistics)
    if moments is not None and background == "none":
        moments.head = replace(moments.head, background=None)
    there = _read_deployment(deployment, moments)
    place = options.background_index(background)
    table, notes = _read_counts(counts)
    weight, bias = read_classifier(weights, key) if weights else (None, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LogNWarning)
        affine = catalog.fit(
            catalog.parse(spec).with_options(threshold=at),
            moments=moments,
            counts=table,
            dimensions=_read_dimensions(dimensions, moments, place),
            weight=weight,
            bias=bias,
            background=place,
            activation=activation,
            target=options.read_target(target),
            deployment=there,
        )
    new = None
    if moments is not None:
        new = threshold_after(affine, moments, at, deployment=there, activation=activation)
    options.save(output, affine.save, overwrite)
    doubts = _warn([str(item.message) for item in caught], affine, moments)
    if json:
        values = {**_values(affine), "threshold": None if new is None else asdict(new)}
        print_json({"output": output, **values, "notes": notes, "warnings": doubts})
        return
    for note in notes:
        print_note(note)
    _print(affine, output, new)


def _read_deployment(path: Path | None, moments: ClassMoments | None) -> ClassMoments | None:
    """Statistics of the deployment, which go with those of training."""
    from logn.methods.sampled_scores import basis_of
    from logn.statistics.moments import ClassMoments

    if path is None:
        return None
    if moments is None:
        raise InputError("`--deployment` goes with the statistics of training images: pass those as STATISTICS.")
    return basis_of(moments, ClassMoments.load(path))


def read_classifier(path: Path, key: str | None) -> tuple[Any, Any]:
    """Read a weight and, from the same safetensors file, its bias."""
    from logn.data.logit_files import array_names, read_array

    beside = key.removesuffix("weight") + "bias" if key and key.endswith("weight") else ""
    return read_array(path, key), read_array(path, beside) if beside in array_names(path) else None


def print_fold(affine: ClassAffine, path: Path) -> None:
    """Print on stderr how the correction in `path` gets into an ONNX file, unless it was made for a torch model."""
    if affine.head is None or affine.head.source_kind in (None, "onnx"):
        fold = command("logn", "fold", "model.onnx", path, "-o", "folded.onnx")
        print_note(f"To correct an ONNX file: {fold}")


def _check_counts_are_used(spec: str, counts: Path | None, target: str | None) -> None:
    """Refuse counts that would change nothing."""
    from logn.methods.catalog import METHODS, TRAINING, needs, parse

    name, chosen = parse(spec)
    users = [other for other in METHODS if "counts" in needs(other)]
    if counts is not None and name not in users and TRAINING not in (target, chosen.get("target")):
        raise InputError(
            f"The method `{name}` does not use `--counts`: leave it out, or pass `--target training` or one of the "
            f"methods {', '.join(users)}."
        )


def _read_counts(path: Path | None) -> tuple[ClassCounts | None, list[str]]:
    """Training counts; a class without a training image counts as one, since 0 has no logarithm."""
    from logn.data.class_counts import ClassCounts

    if path is None:
        return None, []
    table = ClassCounts.load(path)
    unseen = int((table.image_counts < 1).sum())
    notes = [f"{count_of(unseen, 'class')} without a training image: counted as 1 image."] if unseen else []
    return table.at_least(1), notes


def _read_dimensions(path: Path | None, moments: ClassMoments | None, place: Any) -> Any:
    from logn.data.fractal_dimensions import read_dimensions

    if path is None:
        return None
    return read_dimensions(path, None if moments is None else moments.head.settled(place).column_names)


def _warn(sentences: list[str], affine: ClassAffine, moments: ClassMoments | None) -> list[str]:
    """Print the warnings of the fit, and what looks wrong with the statistics, on stderr."""
    from logn.statistics.doubts import sanity_checks

    doubts = [] if moments is None else sanity_checks(moments, background=affine.background)
    unique = list(dict.fromkeys([*sentences, *doubts]))
    for sentence in unique:
        print_note(f"Warning: {sentence}")
    return unique


def _values(affine: ClassAffine) -> dict[str, Any]:
    return {
        "method": affine.method,
        "settings": dict(affine.settings),
        "num_columns": affine.num_columns,
        "scale": affine.scale,
        "shift": affine.shift,
        "head": None if affine.head is None else asdict(affine.head),
    }


def _print(affine: ClassAffine, output: Path, threshold: NewThreshold | None) -> None:
    low, high = affine.scale.min(), affine.scale.max()
    ranges = f"scale {low:.4g} to {high:.4g}, shift {affine.shift.min():.4g} to {affine.shift.max():.4g}"
    echo(f"{output}: {affine.method or 'none'} for {count_of(affine.num_columns, 'column')}, {ranges}.")
    if threshold is not None:
        print_text(threshold.describe())
    print_note(f"To correct logits: {command('logn', 'apply', output, 'logits.npy', '-o', 'corrected.npy')}")
    print_fold(affine, output)
