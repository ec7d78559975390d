"""`logn collect`: dumped logits, or a model and images, in; statistics out."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption, command, count_of, print_json, print_note, progress
from logn.cli.first_tries import holds_pictures
from logn.cli.kinds import Kind, verb_of
from logn.cli.options.choices import (
    BACKGROUND_INDEX,
    Activation,
    ActivationOption,
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
from logn.cli.statistics_summary import print_next, print_statistics, warn_of_doubts
from logn.cli.verbs.collect_models import SourcesArgument, collect_onnx
from logn.cli.verbs.collect_runs import collect_run
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.logits.dumped import StoredArray
    from logn.statistics.moments import ClassMoments, StatisticsMetadata


def collect_logits(
    sources: SourcesArgument,
    output: StatisticsFileOption,
    background: BackgroundOption = Background.none,
    activation: ActivationOption = None,
    class_names: ClassNamesOption = None,
    population: PopulationOption = None,
    layer: Annotated[str | None, typer.Option(help="The layer that gave the logits.")] = None,
    key: Annotated[str | None, typer.Option(help="Name of the array in .npz and .safetensors files.")] = None,
    sample_rows: SampleRowsOption = None,
    mean_probability: MeanProbabilityOption = None,
    nonfinite: NonfiniteOption = Nonfinite.error,
    batch_rows: Annotated[int, typer.Option(help="Rows of a batch in (rows, classes) files.")] = 512,
    threads: Annotated[int | None, typer.Option(help="Default: one per core, at most 8.")] = None,
    journal_seconds: Annotated[float, typer.Option(hidden=True)] = 5.0,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Read files of (rows, classes) or (images, proposals, classes) in bounded memory, by several threads."""
    from logn.logits.dumped import find_shards, open_shards
    from logn.statistics.collect import collect_shards
    from logn.statistics.moments import ClassMoments
    from logn.statistics.record import SAMPLE_ROWS

    found = find_shards(sources)
    check_output(output, *found, holds="logn.statistics")
    opened = open_shards(found, key)
    metadata = _metadata(opened[0].num_classes, background, activation, class_names, population, layer)
    moments = ClassMoments(
        opened[0].num_classes,
        metadata=metadata,
        nonfinite=nonfinite.value,
        sample_rows=SAMPLE_ROWS if sample_rows is None else sample_rows,
        mean_probability=mean_probability is not False,
    )
    journal = output.with_name(output.name + ".partial")
    journal = output.with_name(output.name + ".partial")
    with progress("Collecting", sum(shard.rows for shard in opened), shown=show_progress) as advance:
        moments = collect_shards(
            opened,
            moments,
            batch_rows=batch_rows,
            threads=threads,
            journal=journal,
            journal_seconds=journal_seconds,
            progress=advance,
        )
    moments.save(output)
    journal.unlink(missing_ok=True)
    _report(moments, opened, output, as_json=json)


LOGITS = Kind("Dumped logits", "dumped logits", collect_logits)
ONNX = Kind("ONNX model", "an ONNX model", collect_onnx)
RUN = Kind("Other models", "a model", collect_run)


@verb_of(LOGITS, ONNX, RUN, common="Any source")
def collect(sources: SourcesArgument) -> Kind:
    """Read logits once and write their count, mean and variance per class. No label is read.

    What SOURCES are is seen from them: files of logits, an ONNX file, or another model as `logn correct` takes it.
    Models run over the images of a folder, `--images`, or of labels, `--data`, and their logits are read where
    `logn correct` folds: the statistics are those of `logn correct`.

    Files of logits are read in bounded memory; the result has the same bits for any number of threads. A killed run
    goes on where it stopped when the same command is given again: its progress is in OUTPUT.partial until the end.

    **Examples**

    `logn collect 'shards/*.npy' -o stats.safetensors`

    `logn collect dumps/ --background last --activation softmax --population 'test proposals' -o stats.safetensors`

    `logn collect big.npz --key cls_score --class-names names.txt -o stats.safetensors --json`

    `logn collect model.onnx --images train/ --size 224x224 --resize crop --mean 0.485,0.456,0.406 --std
    0.229,0.224,0.225 -o stats.safetensors`

    `logn collect my_models:build --data train.json --max-images 5000 -o stats.safetensors`
    """
    models = [source for source in sources if source.lower().endswith(".onnx") or _is_run(Path(source))]
    if not models:
        # One thread per block is faster than many per product, and keeps the bits equal; NumPy reads this when it
        # loads.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        _check_there(sources)
        return LOGITS
    if len(sources) > 1:
        raise InputError(f"Expected one model, or any number of files of logits, but got `{models[0]}` and others.")
    return RUN if _is_run(Path(models[0])) else ONNX


def _is_run(path: Path) -> bool:
    from logn.evaluate.models.open import FUNCTION

    is_function = FUNCTION.fullmatch(str(path)) is not None and not path.exists()
    return is_function or path.suffix.lower() in (".pt", ".pth") or (path / "config.json").is_file()


def _check_there(sources: list[str]) -> None:
    from logn.logits.dumped import SUFFIXES

    for source in sources:
        if holds_pictures(Path(source)) and not any(path.suffix in SUFFIXES for path in Path(source).iterdir()):
            raise InputError(
                f"Expected logits or a model, but `{source}` is a folder of images: name the model first, as in "
                f"`{command('logn', 'collect', 'model.onnx', '--images', source, '-o', 'stats.safetensors')}`."
            )
        if not glob.has_magic(source) and not Path(source).exists() and Path(source).suffix not in SUFFIXES:
            raise InputError(
                f"Expected `{source}` to be a file or folder of logits ({', '.join(SUFFIXES)}), an ONNX file or "
                "another model, but there is none."
            )


def _metadata(
    num_classes: int,
    background: Background,
    activation: Activation | None,
    class_names: Path | None,
    population: str | None,
    layer: str | None,
) -> StatisticsMetadata:
    from logn.classes.names import read_class_names
    from logn.statistics.moments import StatisticsMetadata

    place = BACKGROUND_INDEX[background]
    return StatisticsMetadata(
        class_names=read_class_names(class_names, num_classes, place) if class_names else None,
        background=place,
        activation=activation.value if activation else None,
        layer=layer,
        population=population,
    )


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
                "background": moments.metadata.background,
                "warnings": warnings,
            }
        )
        return
    print_statistics(output, moments, rows, count_of(len(shards), "file"))
    if skipped:
        print_note(f"Skipped {skipped:,} values that are not finite, of {int((moments.skipped > 0).sum())} classes.")
    print_next(output)
