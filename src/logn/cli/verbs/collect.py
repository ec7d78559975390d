"""`logn collect`: files of logits, or a model and images, in; statistics out."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli import options
from logn.cli.console import command, count_of, echo, print_json, print_note, progress
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.statistics.moments import ClassMoments


@options.with_hints("layer")
def collect(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCES", help="Files of logits; or one model.")],
    output: options.Output,
    images: options.Images = None,
    data: options.OptionalData = None,
    key: options.Key = None,
    max_images: options.MaxImages = None,
    batch: options.Batch = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    *,
    hints: options.Hints,
) -> None:
    """Read logits once and write their count, mean and variance per class. No label is read.

    SOURCES are .npy, .npz or .safetensors files, folders or quoted globs of them. Or
    a model, as logn correct takes it, with --images or --data.

    Examples:
      logn collect 'shards/*.npy' --background last --activation softmax -o stats.safetensors
      logn collect yolox.onnx --like yolox --images train/ -o stats.safetensors
      logn collect my_models:build --data train.json --max-images 5000 -o stats.safetensors
    """
    models = [source for source in sources if _is_model(source)]
    if not models:
        _refuse(images=images, data=data, like=hints.like, size=hints.size, tensor=hints.tensor, max_images=max_images)
        _check_sources(sources)
        moments, facts = _read_files(sources, output, hints, key, overwrite=overwrite)
        _report([output], [moments], facts, count_of(int(facts["files"]), "file"), as_json=json)
        return
    if len(sources) > 1:
        raise InputError(f"`{models[0]}` is a model: pass it alone, or pass files of logits only.")
    from logn.models.images import ImageFiles, choose_images
    from logn.models.open import open_model

    (model,) = models
    chosen = choose_images(options.training_images(images, data), max_images)
    files_read = [item for item in chosen if isinstance(item, Path)]
    options.check_output(output, model, data, *hints.files, *files_read, overwrite=overwrite)
    source = open_model(model, hints)
    files = ImageFiles(chosen)
    with progress("Collecting", len(files.items)) as advance:
        stages = source.collect(files, batch=batch, progress=advance)
    unreadable = list(files.unreadable)
    count = len(files.items) - len(unreadable)
    facts = {"images": count, "unreadable": unreadable}
    _report(_save(output, stages, overwrite=overwrite), stages, facts, count_of(count, "image"), as_json=json)


def print_statistics(output: Path, moments: ClassMoments, source: str) -> None:
    """Print what the file holds; `source` says what it was read from, such as "3 files"."""
    columns = count_of(moments.num_classes, "class")
    if (place := moments.head.background) is not None:
        columns = f"{columns} and a background ({'first' if place == 0 else 'last'})"
    echo(f"{output}: {count_of(int(moments.count.max()), 'row')} of {columns} from {source}.")


def print_next(statistics: Path) -> None:
    """Print on stderr what to do with statistics."""
    print_note(f"Is there a bias to correct? {command('logn', 'inspect', statistics)}")
    print_note(f"To make the correction: {command('logn', 'fit', statistics, '-o', 'affine.safetensors')}")


def _is_model(source: str) -> bool:
    from logn.models.open import FUNCTION, is_hugging_face_folder

    path = Path(source)
    is_function = FUNCTION.fullmatch(source) is not None and not path.exists()
    return is_function or options.looks_like_model(path) or is_hugging_face_folder(path)


def _refuse(**given: object) -> None:
    """Refuse options that only a model takes."""
    for name, value in given.items():
        if value:
            raise InputError(f"`--{name.replace('_', '-')}` is for models, not for files of logits: leave it out.")


def _check_sources(sources: Sequence[str]) -> None:
    from logn.data.logit_files import SUFFIXES

    for source in sources:
        if not glob.has_magic(source) and not Path(source).exists() and Path(source).suffix not in SUFFIXES:
            raise InputError(f"There is no file of logits ({', '.join(SUFFIXES)}) and no model at `{source}`.")


def _read_files(
    sources: Sequence[str],
    output: Path,
    hints: options.Hints,
    key: str | None,
    *,
    overwrite: bool,
) -> tuple[ClassMoments, dict[str, Any]]:
    """Read files of logits in bounded memory, by several threads."""
    # One thread per block is faster than many per product, and keeps the bits equal; NumPy reads this when it loads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from logn.data.logit_files import find_shards, open_shards
    from logn.statistics.from_files import collect_shards
    from logn.statistics.head import Head
    from logn.statistics.moments import ClassMoments
    from logn.statistics.row_sample import SAMPLE_ROWS

    files = find_shards(sources)
    options.check_output(output, *files, *hints.files, overwrite=overwrite)
    shards = open_shards(files, key)
    columns = shards[0].num_columns
    names = hints.names(columns, hints.background)
    head = Head(columns, names, hints.background, activation=hints.activation)
    empty = ClassMoments(head, sample_rows=SAMPLE_ROWS, mean_probability=True)
    with progress("Collecting", sum(shard.rows for shard in shards)) as advance:
        moments = collect_shards(shards, empty, progress=advance)
    options.save(output, moments.save, overwrite)
    return moments, {"files": len(shards)}


def _save(output: Path, stages: Sequence[ClassMoments], *, overwrite: bool) -> list[Path]:
    """Write the statistics: one file per class layer of a model that has several, such as a cascade."""
    outputs = [output]
    if len(stages) > 1:
        outputs = [output.with_name(f"{output.stem}-{stage + 1}{output.suffix}") for stage in range(len(stages))]
        for path in outputs:
            options.check_output(path, overwrite=overwrite)
    for path, moments in zip(outputs, stages, strict=True):
        options.save(path, moments.save, overwrite)
    return outputs


def _report(
    outputs: Sequence[Path], stages: Sequence[ClassMoments], facts: dict[str, Any], source: str, *, as_json: bool
) -> None:
    from logn.statistics.doubts import row_checks, sanity_checks

    first, known = stages[0], stages[0].head
    doubts = [*sanity_checks(first), *row_checks(first)]
    for sentence in doubts:
        print_note(f"Warning: {sentence}")
    if as_json:
        named = {"output": outputs[0]} if len(stages) == 1 else {"outputs": outputs}
        fields = ("layer", "activation", "background", "population", "source")
        values = {"rows": int(first.count.max()), "num_columns": first.num_columns}
        values |= {name: getattr(known, name) for name in fields}
        print_json({**named, **facts, **values, "warnings": doubts})
        return
    for path, moments in zip(outputs, stages, strict=True):
        print_statistics(path, moments, source)
        if (layer := moments.head.layer) is not None:
            followed = f"before {known.activation}" if known.activation else "activation unknown"
            echo(f"Read at {options.listed(layer.split(', '), 1)}, {followed}.")
        print_next(path)
