"""`logn fit`: statistics or class counts in, a correction out."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, command, count_of, print_json, print_note
from logn.cli.option_words import in_options
from logn.cli.options.choices import BACKGROUND_INDEX, Activation, Background
from logn.cli.paths import check_output
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.calibrators.class_affine import ClassAffine
    from logn.statistics.moments import ClassMoments

LOGN, COUNTS, OTHER = "Options of logn", "Options of loga, norcal, fracal, iif", "Options of tau-norm, temperature"


def _option(panel: str, help_line: str, *names: str) -> Any:
    return typer.Option(*names, help=help_line, rich_help_panel=panel)


StatisticsArgument = Annotated[
    Path | None, typer.Argument(help="What `logn collect` wrote; count-based methods can do without.")
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        "-m",
        help="logn:balanced (the default), logn (the paper's recipe), none, loga, norcal, fracal, iif, tau-norm, "
        "temperature.",
    ),
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
    method: MethodOption = None,
    background: BackgroundOption = None,
    activation: ActivationOption = None,
    margin: Annotated[str | None, _option(LOGN, "min, mean, max, background, balance or a number.")] = None,
    no_mean: Annotated[bool, _option(LOGN, "Keep the mean.", "--no-mean")] = False,
    no_std: Annotated[bool, _option(LOGN, "Keep the spread.", "--no-std")] = False,
    relative_std: Annotated[bool, _option(LOGN, "Keep the common scale.", "--relative-std")] = False,
    std_power: Annotated[float | None, _option(LOGN, "Power of the standard deviation; 2: squared form.")] = None,
    eps: Annotated[float | None, _option(LOGN, "Added to the variance; default 1e-5.")] = None,
    variance: Annotated[str | None, _option(LOGN, "pooled (default) or within-batch.")] = None,
    active: Annotated[Path | None, _option(LOGN, ".npy or JSON list: true for each live column.")] = None,
    counts: Annotated[Path | None, _option(COUNTS, "LVIS/COCO .json, .csv, .tsv, .npy or JSON list.")] = None,
    count_kind: Annotated[str | None, _option(COUNTS, "Count images or instances.")] = None,
    tau: Annotated[float | None, _option(COUNTS, "Strength of loga, power of tau-norm; default 1.")] = None,
    gamma: Annotated[float | None, _option(COUNTS, "Power of norcal; default 0.6.")] = None,
    dimensions: Annotated[Path | None, _option(COUNTS, "fracal: annotations, .csv column, .npy or list.")] = None,
    strength: Annotated[float | None, _option(COUNTS, "fracal: power of the dimension; default 2.")] = None,
    base: Annotated[float | None, _option(COUNTS, "fracal: base of the logarithm; default 10.")] = None,
    num_images: Annotated[float | None, _option(COUNTS, "fracal: images of the training set.")] = None,
    variant: Annotated[str | None, _option(COUNTS, "iif: smooth (default), raw, relative, base2, base10.")] = None,
    weights: Annotated[Path | None, _option(OTHER, "tau-norm: the weight, .npy or .safetensors.")] = None,
    key: Annotated[str | None, _option(OTHER, "Name of the weight in its file.")] = None,
    bias: Annotated[Path | None, _option(OTHER, "The bias, when it is not beside the weight.")] = None,
    temperature: Annotated[float | None, _option(OTHER, "The temperature.")] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Statistics of images a softmax classifier was not trained on: keep its mean confidence there."
        ),
    ] = None,
    threshold: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Your score threshold; fit warns when a map moves scores far from it."),
    ] = 0.05,
    json: JsonOption = False,
) -> None:
    """Turn statistics or class counts into a correction of the logits, one scale and one shift per class.

    Without --method it is the balanced form of LogN, which gained most on the detectors of docs/when-it-helps.md; the
    paper's exact recipe is `--method logn`, and so is the starting point when you give options of logn yourself. The
    options of a method can also stand behind its name: `--method logn:margin=0,use_std=false`.

    **Examples**

    `logn fit stats.safetensors -o affine.safetensors`

    `logn fit stats.safetensors --method logn -o paper.safetensors`

    `logn fit --method norcal --gamma 0.6 --counts lvis_v1_train.json --background last -o affine.safetensors`

    `logn fit stats.safetensors --method fracal --counts classes.csv --dimensions classes.csv --num-images 100170 -o
    affine.safetensors`
    """
    options = {
        "margin": margin,
        "use_mean": False if no_mean else None,
        "use_std": False if no_std else None,
        "relative_std": relative_std or None,
        "std_power": std_power,
        "eps": eps,
        "variance": variance,
        "counts": count_kind,
        "tau": tau,
        "gamma": gamma,
        "strength": strength,
        "base": base,
        "num_images": num_images,
        "variant": variant,
        "value": temperature,
    }
    files = {"counts": counts, "dimensions": dimensions, "weights": weights, "bias": bias, "active": active}
    check_output(output, statistics, held_out, *files.values(), holds="logn.affine")
    method = method or _default_method(options)
    spec = _with_options(method, options)
    _check_files(method.partition(":")[0], {name: path for name, path in files.items() if path is not None})
    inputs = _read_inputs(statistics, background, key, files)
    inputs["activation"] = _activation(activation, inputs["moments"], held_out)
    with _kept_warnings() as told:
        affine = _fit(spec, inputs)
    if held_out is not None:
        affine = _keeping_confidence(affine, held_out)
    affine.save(output)
    notes = [*_notes(spec, inputs), *_assumption(affine)]
    for note in notes:
        print_note(note)
    _report(affine, output, notes, _warnings(affine, inputs["moments"], threshold, told), as_json=json)


def _default_method(options: dict[str, Any]) -> str:
    """The balanced form, unless the user builds a form of LogN option by option."""
    return "logn:balanced" if all(value is None for value in options.values()) else "logn"


def _with_options(method: str, options: dict[str, Any]) -> str:
    """Append the options that were given to the method's own specification, which then checks them all."""
    given = ",".join(f"{name}={value}" for name, value in options.items() if value is not None)
    return f"{method}{',' if ':' in method else ':'}{given}" if given else method


_TAKES_FILES = {
    "logn": ("active",),
    "loga": ("counts",),
    "norcal": ("counts",),
    "fracal": ("counts", "dimensions"),
    "iif": ("counts",),
    "tau-norm": ("weights", "bias"),
    "temperature": ("counts",),
    "none": ("counts",),
}


def _check_files(method: str, given: dict[str, Path]) -> None:
    for name in given:
        if name not in _TAKES_FILES.get(method, given):
            fitting = [other for other, names in _TAKES_FILES.items() if name in names]
            raise InputError(f"Expected `--{name}` only with the methods {', '.join(fitting)}, but got `{method}`.")


def _read_inputs(
    statistics: Path | None, background: Background | None, key: str | None, files: dict[str, Path | None]
) -> dict[str, Any]:
    from logn.classes.counts import ClassCounts
    from logn.classes.dimensions import read_dimensions
    from logn.classes.tables import read_column
    from logn.statistics.moments import ClassMoments

    inputs: dict[str, Any] = {"moments": ClassMoments.load(statistics) if statistics else None}
    if background is not None:
        inputs["background"] = BACKGROUND_INDEX[background]
    if files["counts"]:
        inputs["counts"] = ClassCounts.load(files["counts"])
    if files["dimensions"]:
        inputs["dimensions"] = read_dimensions(files["dimensions"], _foreground_names(inputs))
    if files["active"]:
        inputs["active"] = read_column(files["active"], "active") != 0
    if files["weights"]:
        inputs["weight"], inputs["bias"] = read_classifier(files["weights"], key, files["bias"])
    return inputs


def _foreground_names(inputs: dict[str, Any]) -> tuple[str, ...] | None:
    """The names by which counts and dimensions are put in the order of the statistics."""
    from logn.logits.arrays import foreground_columns

    moments = inputs["moments"]
    if moments is None or moments.metadata.class_names is None:
        return None
    background = inputs.get("background", moments.metadata.background)
    names: tuple[str, ...] = moments.metadata.class_names[foreground_columns(moments.num_classes, background)]
    return names


def read_classifier(path: Path, key: str | None, bias: Path | None) -> tuple[Any, Any]:
    """Read a weight and, from the same safetensors file or one of its own, its bias."""
    from logn.logits.array_files import array_names, read_array

    weight = read_array(path, key)
    if bias is not None:
        return weight, read_array(bias)
    beside = key.removesuffix("weight") + "bias" if key and key.endswith("weight") else ""
    return weight, read_array(path, beside) if beside in array_names(path) else None


def _fit(spec: str, inputs: dict[str, Any]) -> ClassAffine:
    from logn.calibrators.method_spec import fit_method

    counts = inputs.get("counts")
    return fit_method(spec, **inputs | ({"counts": counts.at_least(1)} if counts is not None else {}))


def _notes(spec: str, inputs: dict[str, Any]) -> list[str]:
    """What was done with the inputs that one may not expect."""
    from logn.calibrators.method_spec import parse_method

    name, options = parse_method(spec)
    counts, notes = inputs.get("counts"), []
    unseen = int((counts.image_counts < 1).sum()) if counts is not None else 0
    if unseen:
        notes.append(f"{count_of(unseen, 'class')} without a training image, counted as 1.")
    if name == "fracal" and inputs.get("dimensions") is None and options.get("strength") != 0:
        notes.append("Without --dimensions only the frequency part of FRACAL is used.")
    return notes


def _activation(given: Activation | None, moments: ClassMoments | None, held_out: Path | None) -> str:
    """What the user says; who wants to keep the confidence has a softmax, where nothing else is recorded."""
    if given is not None:
        return given.value
    recorded = None if moments is None else moments.metadata.activation
    return "softmax" if held_out is not None and recorded is None else "recorded"


def _assumption(affine: ClassAffine) -> list[str]:
    """What was assumed of an activation that nobody knows, and how to say otherwise."""
    settings = affine.settings
    if affine.method != "logn" or settings["activation"] is not None or settings["margin"] != "balance":
        return []
    guessed = ", estimated from means and variances," if settings["margin_from"] == "moments" else ""
    return [
        f"The activation is not recorded, so all classes got a common shift of {settings['margin_value']:.4g}{guessed} "
        "that keeps the expected number of detections of sigmoids and that a softmax ignores; if you know it, say "
        "--activation softmax or --activation sigmoid."
    ]


def _keeping_confidence(affine: ClassAffine, held_out: Path) -> ClassAffine:
    from logn.calibrators.match_confidence import keep_confidence
    from logn.statistics.moments import ClassMoments

    rows = ClassMoments.load(held_out).sample
    if len(rows) == 0:
        raise InputError(
            f"Expected `{held_out}` to hold a row sample, but it holds none; collect it with --sample-rows."
        )
    return keep_confidence(affine, rows)


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


def _warnings(
    affine: ClassAffine, moments: ClassMoments | None, threshold: float, told: Sequence[str] = ()
) -> list[str]:
    """What was told when fitting, and what the row sample says against statistics and map; also printed on stderr."""
    from logn.calibrators.score_shift_warning import form_warning
    from logn.statistics.sanity_checks import sanity_checks

    found = list(told)
    if moments is not None:
        moved = form_warning(affine, moments, threshold=threshold)
        found += [*sanity_checks(moments, background=affine.background), *([moved] if moved else [])]
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
    typer.echo(f"{output}: {affine.method or 'none'} for {columns} ({settings or 'no settings'}).")
    low, high = affine.scale.min(), affine.scale.max()
    typer.echo(f"Scale {low:.4g} to {high:.4g}, shift {affine.shift.min():.4g} to {affine.shift.max():.4g}.")
    print_note(f"To correct logits: {command('logn', 'apply', output, 'logits.npy', '-o', 'corrected.npy')}")
    print_note(f"To correct an ONNX file: {command('logn', 'fold', 'model.onnx', output, '-o', 'corrected.onnx')}")


def _told(value: Any) -> Any:
    if value is None:
        return "unknown"
    return f"{value:g}" if isinstance(value, float) else value
