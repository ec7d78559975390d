"""`logn fit`: statistics or class counts in, a correction out."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, command, count_of, echo, print_json, print_note
from logn.cli.first_tries import refuse_model_as_statistics
from logn.cli.option_words import in_options
from logn.cli.options.choices import BACKGROUND_INDEX, Activation, Background, complete_methods
from logn.cli.paths import check_output
from logn.cli.statistics_summary import print_fold
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.calibrators.affine import ClassAffine
    from logn.statistics.moments import ClassMoments

StatisticsArgument = Annotated[
    Path | None, typer.Argument(help="What `logn collect` wrote; count-based methods can do without.")
]
BackgroundOption = Annotated[
    Background | None, typer.Option(help="Place of the background column; default: as recorded, else none.")
]
ActivationOption = Annotated[
    Activation | None, typer.Option(help="What the model applies to the logits; default: as recorded.")
]


def fit(
    output: Annotated[Path, typer.Option("--output", "-o", help="The correction to write.")],
    statistics: StatisticsArgument = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="recommended (default), logn (the paper's), p2p, loga, norcal, fracal, iif, tau-norm, temperature or "
            "none; options follow a colon: norcal:gamma=0.6.",
            autocompletion=complete_methods,
        ),
    ] = None,
    counts: Annotated[Path | None, typer.Option(help="Training counts: annotations, .csv, .tsv, .npy or JSON.")] = None,
    dimensions: Annotated[Path | None, typer.Option(help="fracal: annotations, .csv column, .npy or list.")] = None,
    weights: Annotated[Path | None, typer.Option(help="tau-norm: the weight, .npy or .safetensors.")] = None,
    key: Annotated[str | None, typer.Option(help="Name of the weight in its file; its bias is beside it.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Class mix to aim at: uniform (default), training, or a file of shares.")
    ] = None,
    strength: Annotated[float | None, typer.Option(help="How much of the correction, from 0 to 1.")] = None,
    background: BackgroundOption = None,
    activation: ActivationOption = None,
    json: JsonOption = False,
) -> None:
    """Turn statistics or class counts into a correction of the logits, one scale and one shift per class.

    Without --method it is what LogN recommends for the model, as `logn inspect` explains. The paper's equations are
    `--method logn`. Options of a method follow its name: `--method logn:margin=0,use_std=false`.

    **Examples**

    `logn fit stats.safetensors -o affine.safetensors`

    `logn fit stats.safetensors --method logn -o paper.safetensors`

    `logn fit --method norcal:gamma=0.6 --counts lvis_v1_train.json --background last -o affine.safetensors`

    `logn fit stats.safetensors --method fracal:num_images=100170 --counts classes.csv --dimensions classes.csv -o
    affine.safetensors`
    """
    from logn.calibrators import methods
    from logn.classes.counts import ClassCounts
    from logn.classes.dimensions import read_dimensions
    from logn.statistics.moments import ClassMoments

    if statistics is not None:
        refuse_model_as_statistics(statistics)
    spec = method or "recommended"
    given: dict[str, Any] = {} if strength is None else {"strength": strength}
    name, options = methods.parse(spec, given)
    aim = None if target is None else methods.read_target(target)
    _check_counts_are_used(name, counts, options.get("target", aim))
    check_output(output, statistics, counts, dimensions, weights, holds="logn.affine")
    moments = ClassMoments.load(statistics) if statistics else None
    index = "recorded" if background is None else BACKGROUND_INDEX[background]
    names = _foreground_names(moments, index)
    table = None if counts is None else ClassCounts.load(counts)
    unseen = 0 if table is None else int((table.image_counts < 1).sum())
    weight, bias = (None, None) if weights is None else read_classifier(weights, key, None)
    with _kept_warnings() as told:
        affine = methods.fit(
            spec,
            moments,
            None if table is None else table.at_least(1),  # a class that was never seen has no logarithm
            dimensions=None if dimensions is None else read_dimensions(dimensions, names),
            weight=weight,
            bias=bias,
            target=aim,
            background=index,
            activation="recorded" if activation is None else activation.value,
            **given,
        )
    affine.save(output)
    notes = [f"{count_of(unseen, 'class')} without a training image, counted as 1."] if unseen else []
    if name == "fracal" and dimensions is None and options.get("power") != 0:
        notes.append("Without --dimensions only the frequency part of FRACAL is used.")
    for note in notes:
        print_note(note)
    _report(affine, output, notes, _warnings(affine, moments, told), as_json=json)


def _check_counts_are_used(name: str, counts: Path | None, target: Any) -> None:
    """Refuse counts that would change nothing."""
    from logn.calibrators.methods import METHODS, TRAINING, needs

    aims = isinstance(target, str) and target == TRAINING
    if counts is not None and "moments" in needs(name) and not aims:
        users = ", ".join(other for other in METHODS if "counts" in needs(other))
        raise InputError(f"Expected `--counts` only with the methods {users} or `--target training`, but got `{name}`.")


def _foreground_names(moments: ClassMoments | None, background: int | str | None) -> tuple[str, ...] | None:
    """The names by which counts and dimensions are put in the order of the statistics."""
    from logn.logits.arrays import check_background, foreground_columns

    if moments is None or moments.metadata.class_names is None:
        return None
    place = check_background(moments.metadata.background if background == "recorded" else background)
    return moments.metadata.class_names[foreground_columns(moments.num_columns, place)]


def read_classifier(path: Path, key: str | None, bias: Path | None) -> tuple[Any, Any]:
    """Read a weight and, from the same safetensors file or one of its own, its bias."""
    from logn.logits.dumped import array_names, read_array

    weight = read_array(path, key)
    if bias is not None:
        return weight, read_array(bias)
    beside = key.removesuffix("weight") + "bias" if key and key.endswith("weight") else ""
    return weight, read_array(path, beside) if beside in array_names(path) else None


@contextlib.contextmanager
def _kept_warnings() -> Iterator[list[str]]:
    """The sentences that LogN warns with in the block, once it is over; what others warn of is shown at once."""
    from logn.errors import LogNWarning

    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LogNWarning)
        yield told
    for item in caught:
        if issubclass(item.category, LogNWarning):
            told.append(str(item.message))
        else:
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)


def _warnings(affine: ClassAffine, moments: ClassMoments | None, told: Sequence[str] = ()) -> list[str]:
    """Warnings of the fit, and what looks wrong with the statistics; also printed on stderr."""
    from logn.statistics.diagnosis import sanity_checks

    found = list(told)
    if moments is not None:
        found += sanity_checks(moments, background=affine.background)
    found = [in_options(sentence) for sentence in dict.fromkeys(found)]
    for warning in found:
        print_note(f"Warning: {warning}")
    return found


def _report(affine: ClassAffine, output: Path, notes: list[str], warnings: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "output": output,
                "method": affine.method,
                "settings": dict(affine.settings),
                "num_classes": affine.num_columns,
                "background": affine.background,
                "scale": affine.scale,
                "shift": affine.shift,
                "source": None if affine.source is None else asdict(affine.source),
                "notes": notes,
                "warnings": warnings,
            }
        )
        return
    settings = ", ".join(f"{name}={_told(value)}" for name, value in affine.settings.items())
    columns = count_of(affine.num_columns, "column")
    echo(f"{output}: {affine.method or 'none'} for {columns} ({settings or 'no settings'}).")
    low, high = affine.scale.min(), affine.scale.max()
    echo(f"Scale {low:.4g} to {high:.4g}, shift {affine.shift.min():.4g} to {affine.shift.max():.4g}.")
    print_note(f"To correct logits: {command('logn', 'apply', output, 'logits.npy', '-o', 'corrected.npy')}")
    print_fold(affine, output)


def _told(value: Any) -> Any:
    if value is None:
        return "unknown"
    if isinstance(value, list):
        return f"{len(value)} shares"
    return f"{value:g}" if isinstance(value, float) else value
