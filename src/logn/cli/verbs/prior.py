"""`logn prior`: the class mix of a deployment from its logits, without labels."""

from __future__ import annotations

import warnings
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, command, print_fitting, print_json, print_note, print_text
from logn.cli.option_words import in_options
from logn.cli.options.choices import BACKGROUND_INDEX, Activation, Background
from logn.cli.paths import OverwriteOption, check_output
from logn.cli.verbs.fit import labelled_rows
from logn.errors import InputError, LogNWarning

if TYPE_CHECKING:
    from rich.table import Table

    from logn.calibrators.class_mix.prior_estimate import PriorEstimate


class Estimator(StrEnum):
    """How the mix is found."""

    em = "em"
    bbse = "bbse"


SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        help="Deployed logits: files, folders, globs; a store of `logn predict`; or statistics with a row sample."
    ),
]


def prior(
    sources: SourcesArgument,
    statistics: Annotated[
        Path | None,
        typer.Option("--statistics", "-s", help="Statistics of training images, as `logn collect` wrote them."),
    ] = None,
    counts: Annotated[Path | None, typer.Option(help="Training counts, where the statistics do not serve.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the mix: .json, or .csv; fits --target.")
    ] = None,
    method: Annotated[Estimator, typer.Option(help="em: most likely; bbse: by labelled rows.")] = Estimator.em,
    dev: Annotated[Path | None, typer.Option(help="Logits of labelled rows that were not trained on.")] = None,
    dev_labels: Annotated[Path | None, typer.Option(help="Their labels: .npy, .json, .csv or .txt.")] = None,
    background: Annotated[Background | None, typer.Option(help="Default: as recorded, else none.")] = None,
    activation: Annotated[Activation | None, typer.Option(help="Default: as recorded.")] = None,
    key: Annotated[str | None, typer.Option(help="Name of the array in .npz and .safetensors files.")] = None,
    bootstrap: Annotated[int, typer.Option(min=2, help="Draws for intervals and test.")] = 200,
    confidence: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    top: Annotated[int, typer.Option(min=0, help="Classes shown, largest change first; 0 shows all.")] = 10,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Estimate how frequent each class is where the model is used, from its logits without labels.

    It assumes that classes look as in training and are only more or less frequent. EM relies on the calibration of the
    model: labelled rows (`--dev`, `--dev-labels`) give it a temperature, and show whether it can be trusted.

    **Examples**

    `logn prior 'deployed/*.npy' -s stats.safetensors -o mix.json`

    `logn prior deployed.npy -s stats.safetensors --dev dev.npy --dev-labels dev_labels.npy -o mix.csv`

    `logn fit stats.safetensors --target mix.json -o affine.safetensors` (then aim at it)
    """
    from logn.calibrators.class_mix.estimate import estimate_prior
    from logn.classes.counts import ClassCounts
    from logn.statistics.moments import ClassMoments

    if output is not None:
        check_output(output, statistics, counts, dev, dev_labels, overwrite=overwrite)
        if output.suffix not in (".json", ".csv"):
            raise InputError(f"Expected `--output` to end in .json or .csv, but got `{output}`.")
    moments = None if statistics is None else ClassMoments.load(statistics)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)  # the doubts are printed with the result
        found = estimate_prior(
            _opened(sources),
            moments,
            method=method.value,
            counts=None if counts is None else ClassCounts.load(counts),
            dev=_labelled(dev, dev_labels),
            background="recorded" if background is None else BACKGROUND_INDEX[background],
            activation="recorded" if activation is None else activation.value,
            num_bootstrap=bootstrap,
            confidence=confidence,
            seed=seed,
            key=key,
        )
    if output is not None:
        found.save(output)
    doubts = [in_options(doubt) for doubt in found.doubts]
    for doubt in doubts:
        print_note(f"Warning: {doubt}")
    if json:
        print_json({**found.to_dict(), "doubts": doubts, "output": output})
        return
    _print(found, top)
    if output is not None:
        print_text(f"Written to {output}.")
        known = statistics or "stats.safetensors"
        print_note(f"To aim at it: {command('logn', 'fit', known, '--target', output, '-o', 'affine.safetensors')}")


def _opened(sources: list[str]) -> Any:
    """The store, the statistics or the files that the arguments name."""
    from logn.files import format_of

    first = Path(sources[0])
    if len(sources) == 1 and any(first.glob("part-*")):
        from logn.evaluate.store.store import PredictionStore

        return PredictionStore(first)
    is_tensors = len(sources) == 1 and first.suffix == ".safetensors" and first.is_file()
    if is_tensors and format_of(first) == "logn.statistics":
        from logn.statistics.moments import ClassMoments

        return ClassMoments.load(first)
    return sources


def _labelled(dev: Path | None, labels: Path | None) -> Any:
    if (dev is None) != (labels is None):
        raise InputError("Expected `--dev` and `--dev-labels` together, but got one of them.")
    if dev is None or labels is None:
        return None
    return labelled_rows(dev, labels)


def _print(found: PriorEstimate, top: int) -> None:
    of = "" if found.rows == found.of_rows else f" of {found.of_rows:,}, drawn"
    tempered = "" if found.temperature == 1.0 else f", temperature {found.temperature:.3g}"
    together = f" of {found.units:,} images" if found.units < found.rows else ""
    print_text(f"{found.rows:,}{of} rows{together}, method {found.method}{tempered}; largest change first.")
    print_fitting(_table(found, top, wide=True), _table(found, top, wide=False))
    print_text(f"\n{found.conclusion}")
    if found.method == "em" and not found.labelled_rows:
        print_text("Nobody checked the calibration, on which EM relies: --dev and --dev-labels would.")


def _table(found: PriorEstimate, top: int, *, wide: bool) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("class", no_wrap=True, max_width=24)
    for title in ("training", "deployed", *((f"{found.confidence:.0%} interval",) if wide else ())):
        table.add_column(title, justify="right", no_wrap=True)
    names = found.names or tuple(f"column {column}" for column in range(len(found.shares)))
    shown = found.order[: top or None]
    for column in shown:
        cells = [escape(names[column]), f"{found.training[column]:.2%}", f"{found.shares[column]:.2%}"]
        if wide:
            cells.append(f"{found.lower[column]:.2%} – {found.upper[column]:.2%}")
        table.add_row(*cells)
    if len(shown) < len(names):
        table.add_row(f"… {len(names) - len(shown)} more")
    return table
