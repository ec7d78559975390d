"""`logn bench imagenet-lt`: the paper's ImageNet-LT table on classifiers that are trained here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption
from logn.cli.steps import step_reporter
from logn.cli.verbs.bench_output import OutputOption, TrainOption, output_words, show_table
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.experiments.classifier_spec import ClassifierProblem

GLYPHS, IMAGENET_LT = "glyphs", "imagenet-lt"
EQL_IMAGENET_LT = "eql-softmax:threshold=0.00043"
QUICK_EPOCHS = 3


def imagenet_lt(
    dataset: Annotated[str, typer.Option(help="`glyphs`, which are drawn, or `imagenet-lt`, with --data.")] = GLYPHS,
    data: Annotated[Path | None, typer.Option(help="`ImageNet_LT_train.txt`, the other lists beside it.")] = None,
    images: Annotated[Path | None, typer.Option(help="Folder that the paths of the lists start from.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Network; by default `small` for glyphs and `resnext50` for ImageNet-LT.")
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder where data, classifiers and logits are kept.")] = Path(
        "runs/bench"
    ),
    output: OutputOption = Path("bench-results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="20 classes and 3 epochs: does everything run? Not for numbers.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds; the table has mean and interval.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Classifiers to train side by side, each with one thread.")] = 2,
    epochs: Annotated[
        float | None, typer.Option(help="Of a whole training; by default 24 for glyphs, 90 for ImageNet-LT.")
    ] = None,
    train: TrainOption = True,
    show_progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every row of the paper's ImageNet-LT table and of its components, with the paper's numbers beside ours.

    Prints the tables and writes them as Markdown and JSON. Data, trained classifiers, logits and measurements stay in
    the folder of `--root`; a second call goes on where the first one stopped.

    **Examples**

        logn bench imagenet-lt --quick

        logn bench imagenet-lt --dataset glyphs --jobs 2 -o docs/results

        logn bench imagenet-lt --dataset imagenet-lt --data ImageNet_LT_train.txt --images imagenet --seeds 1
    """
    from logn.experiments.artifact_cache import ArtifactCache
    from logn.experiments.classifier_measurements import describe_data, run_sections
    from logn.experiments.classifier_pages import ClassifierBench, to_dict, to_text, write_pages
    from logn.experiments.classifier_spec import ClassifierSpec

    problem = _problem(dataset, data, images, model, epochs, quick=quick)
    length = "quick" if quick else "classification"
    folder = root / (f"{dataset}-{length}" if epochs is None else f"{dataset}-{length}-{epochs:g}-epochs")
    cache = ArtifactCache(folder, jobs=jobs, step=step_reporter(show_progress))
    cache.draw(ClassifierSpec(seed=seed, problem=problem) for seed in range(seeds))
    found = run_sections(cache, problem, range(seeds), train=train)
    bench = ClassifierBench(problem, tuple(range(seeds)), found, describe_data(cache, problem, 0))
    command = _command(dataset, quick, seeds, epochs, output)
    show_table(
        to_text(bench),
        to_dict(bench, command),
        write_pages(bench, output, command),
        failures=bench.failures,
        folder=folder,
        measured=bench.measured,
        as_json=as_json,
    )


def _problem(
    dataset: str, data: Path | None, images: Path | None, model: str | None, epochs: float | None, *, quick: bool
) -> ClassifierProblem:
    from logn.datasets.glyphs.settings import GlyphClassSettings
    from logn.experiments.classifier_spec import GLYPH_CLASSES, ClassifierProblem

    if dataset == GLYPHS:
        if data is not None or images is not None:
            raise InputError("Expected `--data` and `--images` with `--dataset imagenet-lt` only, but got one of them.")
        problem = replace(GLYPH_CLASSES, model=model or "small", epochs=epochs)
        if not quick:
            return problem
        glyphs = GlyphClassSettings(20, 120, 3, dev=5, test=10)
        return replace(problem, glyphs=glyphs, epochs=epochs or QUICK_EPOCHS, stage_epochs=2)
    if dataset != IMAGENET_LT:
        raise InputError(f"Expected `--dataset` to be one of ('{GLYPHS}', '{IMAGENET_LT}'), but got {dataset!r}.")
    if data is None:
        raise InputError("Expected `--data` to name ImageNet-LT's training list, but got none.")
    return ClassifierProblem(
        "ImageNet-LT", data=data, images=images, model=model or "resnext50", epochs=epochs, eql=EQL_IMAGENET_LT
    )


def _command(dataset: str, quick: bool, seeds: int, epochs: float | None, output: Path) -> str:
    """The command that makes the page, without paths that mean something on this machine only."""
    words = ["logn bench imagenet-lt", "--dataset", dataset, *(["--quick"] if quick else []), "--seeds", str(seeds)]
    words += [] if epochs is None else ["--epochs", f"{epochs:g}"]
    return " ".join([*words, *output_words(output)])
