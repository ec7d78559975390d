"""`logn fit`: statistics or class counts in, a correction out."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, command, count_of, echo, print_json, print_note
from logn.cli.first_tries import refuse_model_as_statistics
from logn.cli.option_words import in_options
from logn.cli.options.choices import BACKGROUND_INDEX, Activation, Background
from logn.cli.options.methods import read_method, with_method_options
from logn.cli.paths import check_output
from logn.cli.statistics_summary import print_fold
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.calibrators.class_affine import ClassAffine
    from logn.calibrators.method import Options
    from logn.calibrators.method_spec import FitInputs
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


@with_method_options
def fit(
    output: Annotated[Path, typer.Option("--output", "-o", help="The correction to write.")],
    statistics: StatisticsArgument = None,
    method: str | None = None,
    background: BackgroundOption = None,
    activation: ActivationOption = None,
    key: Annotated[str | None, typer.Option(help="Name of the weight in the file of --weights.")] = None,
    json: JsonOption = False,
    **chosen: Any,
) -> None:
    """Turn statistics or class counts into a correction of the logits, one scale and one shift per class.

    Without --method it is what LogN recommends for the model, as `logn inspect` explains. The paper's equations are
    `--method logn`. Options of a method may also follow its name: `--method logn:margin=0,use_std=false`.

    **Examples**

    `logn fit stats.safetensors -o affine.safetensors`

    `logn fit stats.safetensors --method logn -o paper.safetensors`

    `logn fit --method norcal --gamma 0.6 --counts lvis_v1_train.json --background last -o affine.safetensors`

    `logn fit stats.safetensors --method fracal --counts classes.csv --dimensions classes.csv --num-images 100170 -o
    affine.safetensors`
    """
    if statistics is not None:
        refuse_model_as_statistics(statistics)
    name, options, files = read_method(method, chosen)
    _check_counts_are_used(name, options, files)
    check_output(output, statistics, *files.values(), holds="logn.affine")
    inputs = _read_inputs(statistics, background, key, files)
    inputs = replace(inputs, activation="recorded" if activation is None else activation.value)
    with _kept_warnings() as told:
        affine = _at_least_one(inputs).fit(name, options)
        notes = _notes(name, options, inputs, affine)
    affine.save(output)
    for note in notes:
        print_note(note)
    _report(affine, output, notes, _warnings(affine, inputs.moments, told), as_json=json)


def _check_counts_are_used(name: str, options: Options, files: Mapping[str, Path]) -> None:
    """Refuse counts that would change nothing: methods that are made from statistics only aim at them."""
    from logn.calibrators.all_methods import METHODS, method_named
    from logn.calibrators.target import COUNTS, TRAINING

    made_from_statistics = "moments" in method_named(name).needs
    if "counts" in files and made_from_statistics and options.get("target") not in (COUNTS, TRAINING):
        users = ", ".join(other.name for other in METHODS if "counts" in other.needs)
        raise InputError(f"Expected `--counts` only with the methods {users} or `--target counts`, but got `{name}`.")


def _read_inputs(
    statistics: Path | None, background: Background | None, key: str | None, files: Mapping[str, Path]
) -> FitInputs:
    from logn.calibrators.method_spec import FitInputs
    from logn.classes.counts import ClassCounts
    from logn.classes.dimensions import read_dimensions
    from logn.classes.tables import read_column
    from logn.statistics.moments import ClassMoments

    moments = ClassMoments.load(statistics) if statistics else None
    place = "recorded" if background is None else BACKGROUND_INDEX[background]
    names = _foreground_names(moments, place)
    weight, bias = read_classifier(files["weight"], key, files.get("bias")) if "weight" in files else (None, None)
    return FitInputs(
        moments=moments,
        counts=ClassCounts.load(files["counts"]) if "counts" in files else None,
        dimensions=read_dimensions(files["dimensions"], names) if "dimensions" in files else None,
        weight=weight,
        bias=bias,
        active=read_column(files["active"], "active") != 0 if "active" in files else None,
        background=place,
    )


def _foreground_names(moments: ClassMoments | None, background: int | str | None) -> tuple[str, ...] | None:
    """The names by which counts and dimensions are put in the order of the statistics."""
    from logn.logits.arrays import check_background, foreground_columns

    if moments is None or moments.metadata.class_names is None:
        return None
    place = check_background(moments.metadata.background if background == "recorded" else background)
    return moments.metadata.class_names[foreground_columns(moments.num_columns, place)]


def _at_least_one(inputs: FitInputs) -> FitInputs:
    """The same with classes that were never seen counted once: they have no logarithm otherwise."""
    from logn.classes.counts import ClassCounts

    return replace(inputs, counts=inputs.counts.at_least(1)) if isinstance(inputs.counts, ClassCounts) else inputs


def read_classifier(path: Path, key: str | None, bias: Path | None) -> tuple[Any, Any]:
    """Read a weight and, from the same safetensors file or one of its own, its bias."""
    from logn.logits.dumped import array_names, read_array

    weight = read_array(path, key)
    if bias is not None:
        return weight, read_array(bias)
    beside = key.removesuffix("weight") + "bias" if key and key.endswith("weight") else ""
    return weight, read_array(path, beside) if beside in array_names(path) else None


def _notes(name: str, options: Options, inputs: FitInputs, affine: ClassAffine) -> list[str]:
    """What was done with the inputs that one may not expect."""
    from logn.calibrators.all_methods import method_named
    from logn.classes.counts import ClassCounts

    unseen = int((inputs.counts.image_counts < 1).sum()) if isinstance(inputs.counts, ClassCounts) else 0
    notes = [f"{count_of(unseen, 'class')} without a training image, counted as 1."] if unseen else []
    further = method_named(name).notes
    return notes if further is None else [*notes, *further(_at_least_one(inputs).checked(name), options, affine)]


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
                "num_classes": affine.num_classes,
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
    columns = count_of(affine.num_classes, "column")
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
