"""`logn collect`: dumped logits in, statistics out."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, count_of, print_json, print_note, progress
from logn.cli.options.choices import (
    BACKGROUND_INDEX,
    Activation,
    Background,
    BackgroundOption,
    ClassNamesOption,
    MeanProbabilityOption,
    Nonfinite,
    NonfiniteOption,
    PopulationOption,
    SampleRowsOption,
    StatisticsFileOption,
)
from logn.cli.paths import check_output
from logn.cli.verbs.statistics_summary import print_next, print_statistics, warn_of_doubts
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.logits.array_files import StoredArray
    from logn.statistics.metadata import StatisticsMetadata
    from logn.statistics.moments import ClassMoments


class Estimator(StrEnum):
    """How the statistics are computed."""

    exact = "exact"
    moving_average = "moving-average"


def collect(
    shards: Annotated[list[str], typer.Argument(help="Files, folders or quoted globs: .npy, .npz, .safetensors.")],
    output: StatisticsFileOption,
    background: BackgroundOption = Background.none,
    activation: Annotated[Activation | None, typer.Option(help="What the model applies to the logits.")] = None,
    class_names: ClassNamesOption = None,
    population: PopulationOption = None,
    layer: Annotated[str | None, typer.Option(help="The layer that gave the logits.")] = None,
    key: Annotated[str | None, typer.Option(help="Name of the array in .npz and .safetensors files.")] = None,
    estimator: Annotated[Estimator, typer.Option(help="Exact, or the paper's average.")] = Estimator.exact,
    momentum: Annotated[float | None, typer.Option(help="Of the moving average; default 5e-5.")] = None,
    bias_correction: Annotated[bool, typer.Option("--bias-correction", help="Of the moving average.")] = False,
    sample_rows: SampleRowsOption = None,
    mean_probability: MeanProbabilityOption = None,
    nonfinite: NonfiniteOption = Nonfinite.error,
    batch_rows: Annotated[int, typer.Option(help="Rows of a batch in (rows, classes) files.")] = 512,
    threads: Annotated[int | None, typer.Option(help="Default: one per core, at most 8.")] = None,
    journal_seconds: Annotated[float, typer.Option(hidden=True)] = 5.0,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Read logits once and write their count, mean and variance per class.

    Files are (rows, classes) or (images, proposals, classes), read in bounded memory by several threads; the result is
    the same, bit by bit, for any number of them. A killed run goes on where it stopped when the same command is given
    again: its progress is in OUTPUT.partial until the end.

    **Examples**

    `logn collect 'shards/*.npy' -o stats.safetensors`

    `logn collect dumps/ --background last --activation softmax --population 'test proposals' -o stats.safetensors`

    `logn collect big.npz --key cls_score --class-names names.txt -o stats.safetensors --json`

    `logn collect model.onnx --images train/ -o stats.safetensors` (its options: `logn collect model.onnx --help`)

    `logn collect runs/a --data train.json -o stats.safetensors` (its options: `logn collect --data x --help`)
    """
    # One thread per block is faster than many per product, and keeps the bits equal; NumPy reads this when it loads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from logn.logits.shards import find_shards, open_shards
    from logn.statistics.shard_collection import collect_shards

    found = find_shards(shards)
    check_output(output, *found, holds="logn.statistics")
    opened = open_shards(found, key)
    metadata = _metadata(opened[0].num_classes, background, activation, class_names, population, layer)
    settings = {"momentum": momentum, "bias_correction": bias_correction or None}
    kept = {"sample_rows": sample_rows, "mean_probability": mean_probability}
    statistics = _statistics(estimator, opened[0], metadata, nonfinite.value, kept, settings)
    with progress("Collecting", sum(shard.rows for shard in opened), shown=show_progress) as advance:
        journal = collect_shards(
            opened,
            statistics,
            batch_rows=batch_rows,
            threads=threads,
            journal=output.with_name(output.name + ".partial"),
            journal_seconds=journal_seconds,
            advance=advance,
        )
    moments = statistics.moments()
    moments.save(output)
    journal.remove()
    _report(moments, opened, output, as_json=json)


def _metadata(
    num_classes: int,
    background: Background,
    activation: Activation | None,
    class_names: Path | None,
    population: str | None,
    layer: str | None,
) -> StatisticsMetadata:
    from logn.classes.names import read_class_names
    from logn.statistics.metadata import StatisticsMetadata

    place = BACKGROUND_INDEX[background]
    return StatisticsMetadata(
        class_names=read_class_names(class_names, num_classes, place) if class_names else None,
        background=place,
        activation=activation.value if activation else None,
        layer=layer,
        population=population,
    )


def _statistics(
    estimator: Estimator,
    first: StoredArray,
    metadata: StatisticsMetadata,
    nonfinite: Any,
    kept: dict[str, Any],
    average: dict[str, Any],
) -> Any:
    from logn.statistics.shard_collection import DEFAULT_SAMPLE_ROWS, ExactStatistics

    given = {name: value for name, value in average.items() if value is not None}
    if estimator is Estimator.exact:
        if given:
            option = next(iter(given)).replace("_", "-")
            raise InputError(f"Expected `--{option}` only with `--estimator moving-average`, but it is exact.")
        default = {"sample_rows": DEFAULT_SAMPLE_ROWS, "mean_probability": True}
        kept = default | {name: value for name, value in kept.items() if value is not None}
        return ExactStatistics(first.num_classes, metadata=metadata, nonfinite=nonfinite, **kept)
    if any(kept.values()) or nonfinite == "skip":
        option = next((f"--{name.replace('_', '-')}" for name, value in kept.items() if value), "--nonfinite skip")
        raise InputError(f"Expected `{option}` only with `--estimator exact`, but it is moving-average.")
    from logn.statistics.moving_average import MovingAverageStatistics

    return MovingAverageStatistics(first.num_classes, metadata=metadata, **given)


def _report(moments: ClassMoments, shards: list[StoredArray], output: Path, *, as_json: bool) -> None:
    rows, skipped = sum(shard.rows for shard in shards), int(moments.skipped.sum())
    warnings = warn_of_doubts(moments)
    if as_json:
        print_json(
            {
                "output": output,
                "files": len(shards),
                "rows": rows,
                "num_classes": moments.num_classes,
                "skipped": skipped,
                "sample_rows": len(moments.sample),
                "estimator": moments.metadata.estimator,
                "background": moments.metadata.background,
                "warnings": warnings,
            }
        )
        return
    print_statistics(output, moments, rows, count_of(len(shards), "file"))
    if skipped:
        print_note(f"Skipped {skipped:,} values that are not finite, of {int((moments.skipped > 0).sum())} classes.")
    print_next(output)
