"""`logn bench`: the paper's tables on detectors and classifiers that are trained here."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli import options
from logn.cli.console import echo, print_json, print_note, text_style
from logn.errors import InputError
from logn_research.cli.shared import Progress, step_reporter, verb_group

if TYPE_CHECKING:
    from logn_research.experiments.bench_detectors import BenchLength
    from logn_research.experiments.classifier_spec import ClassifierProblem

bench = verb_group(
    "Run the paper's tables on detectors that are trained here; what is there already is not done again."
)

#: Tables of detectors by name: each is a module of `logn_research.experiments` with an `EXPERIMENT`.
TABLES = {
    "table1": "Every rival, with and without repeat factor sampling (the paper's table 1).",
    "components": "Mean, standard deviation and margin of LogN, alone and together (the paper's table 2).",
    "margins": "The margin of the foreground against the background (the paper's table 3).",
    "online": "LogN during training or after it (the paper's figure on online LogN).",
    "samplers": "Corrections after random, repeat factor and class-balanced sampling.",
}
#: The module of each table in `logn_research.experiments`.
MODULES = {name: name for name in TABLES} | {"online": "online_table", "samplers": "sampler_table"}
EXAMPLES = """

Prints the table and writes it, with the paper's numbers beside ours, as Markdown and JSON. Trained models, statistics,
predictions and measurements stay in the folder of `--root`; a second call goes on where the first one stopped.

Examples:
  logn bench {name} --quick
  logn bench {name} --jobs 2 -o docs/results
  logn bench {name} --seeds 3 --jobs 8
  logn bench {name} --data lvis_v1_train.json --test lvis_v1_val.json --images coco -m mask-rcnn-r101
"""

RootOption = Annotated[Path, typer.Option(help="Folder where trained models and all else is kept.")]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="40 classes and 250 iterations: does everything run? Not for numbers.")
]
SeedsOption = Annotated[int, typer.Option(help="How many seeds; the table then has mean and range.")]
JobsOption = Annotated[int, typer.Option(help="Detectors to train side by side, each with one thread.")]
IterationsOption = Annotated[
    int | None,
    typer.Option(help="Iterations of a whole training, by default 800; a second stage has a quarter of them."),
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Folder for the table, as Markdown and JSON.")]
TrainOption = Annotated[
    bool, typer.Option("--train/--measure-only", help="Train what is missing, or report those rows as not trained.")
]

DataOption = Annotated[
    Path | None, typer.Option(help="LVIS or COCO annotations to train on, in place of glyph scenes; with --test.")
]
TestOption = Annotated[Path | None, typer.Option(help="Annotations to test on, with --data.")]
ImagesOption = Annotated[Path | None, typer.Option(help="Folder that the image paths start from, with --data.")]
ModelOption = Annotated[str, typer.Option("--model", "-m", help="As `logn train --model`.")]
WeightsOption = Annotated[Path | None, typer.Option(help="Weights of the backbone, with --data.")]
EpochsOption = Annotated[
    float | None,
    typer.Option(help="Epochs of a whole training, with --data; default: the preset's. A second stage has a quarter."),
]

GLYPHS, IMAGENET_LT = "glyphs", "imagenet-lt"
EQL_IMAGENET_LT = "eql-softmax:threshold=0.00043"
QUICK_EPOCHS = 3


def table_command(name: str) -> Callable[..., None]:
    """The command that runs the table of this name."""

    def command(
        root: RootOption = Path("runs/bench"),
        output: OutputOption = Path("bench-results"),
        quick: QuickOption = False,
        seeds: SeedsOption = 1,
        jobs: JobsOption = 2,
        iterations: IterationsOption = None,
        data: DataOption = None,
        test: TestOption = None,
        images: ImagesOption = None,
        model: ModelOption = "small",
        weights: WeightsOption = None,
        epochs: EpochsOption = None,
        device: options.Device = "auto",
        train: TrainOption = True,
        show_progress: Progress = None,
        json: options.Json = False,
    ) -> None:
        from logn_research.experiments.artifact_cache import ArtifactCache
        from logn_research.experiments.bench_pages import to_dict, to_text, write_pages
        from logn_research.experiments.run_experiment import run_experiment

        if seeds < 1:
            raise InputError(f"Expected `--seeds` to be at least 1, but got {seeds}.")
        files: dict[str, Any] = {
            "--data": data,
            "--test": test,
            "--images": images,
            "--weights": weights,
            "--epochs": epochs,
        }
        length = replace(_length(files, iterations, quick=quick), model=model, device=device)
        experiment = import_module(f"logn_research.experiments.{MODULES[name]}").EXPERIMENT
        cache = ArtifactCache(root, jobs=jobs, step=step_reporter(show_progress))
        result = run_experiment(experiment, cache, length=length, seeds=range(seeds), train=train)
        words = ["logn bench", name, *(["--quick"] if quick else []), "--seeds", str(seeds)]
        words += [] if model == "small" else ["--model", model]
        words += [] if data is None or test is None else ["--data", data.name, "--test", test.name]
        words += [] if iterations is None else ["--iterations", str(iterations)]
        text = " ".join([*words, *output_words(output)])
        show_table(
            to_text(result, text_style()),
            to_dict(result, text),
            write_pages(result, output, text),
            failures=result.failures,
            folder=root,
            measured=any(section.measured() for section in result.sections),
            as_json=json,
        )

    command.__doc__ = TABLES[name] + EXAMPLES.format(name=name)
    return command


def _length(files: Mapping[str, Any], iterations: int | None, *, quick: bool) -> BenchLength:
    """Size of the problem and length of the training: drawn scenes, or data that is read."""
    from logn_research.experiments.bench_detectors import BENCHMARK, QUICK, BenchLength
    from logn_research.experiments.detector_spec import DetectionProblem

    data, test = files["--data"], files["--test"]
    if data is None:
        extra = next((option for option, value in files.items() if value is not None), None)
        if extra is not None:
            raise InputError(f"Expected `{extra}` only with `--data`, but got no `--data`.")
        length = QUICK if quick else BENCHMARK
        return length if iterations is None else replace(length, iterations=iterations)
    if test is None:
        raise InputError("Expected `--test` to name the annotations to test on, with `--data`, but got none.")
    if quick:
        raise InputError("Expected `--quick` only without `--data`, but got both; shorten it with `--epochs`.")
    if iterations is not None and files["--epochs"] is not None:
        raise InputError("Expected one of `--iterations` and `--epochs`, but got both.")
    for path in (data, test):
        if not path.is_file():
            raise InputError(f"Expected `{path}` to be an annotation file, but there is none.")
    names = ("--images", "--weights", "--epochs")
    problem = DetectionProblem(data, test, *(files[name] for name in names))
    return BenchLength(iterations=iterations, problem=problem)


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
        float | None, typer.Option(help="Epochs of a whole training; by default 24 for glyphs, 90 for ImageNet-LT.")
    ] = None,
    device: options.Device = "auto",
    train: TrainOption = True,
    show_progress: Progress = None,
    as_json: options.Json = False,
) -> None:
    """Every row of the paper's ImageNet-LT table and of its components, with the paper's numbers beside ours.

    Prints the tables and writes them as Markdown and JSON. Data, trained classifiers, logits and measurements stay in
    the folder of `--root`; a second call goes on where the first one stopped.

    Examples:
      logn bench imagenet-lt --quick
      logn bench imagenet-lt --dataset glyphs --jobs 2 -o docs/results
      logn bench imagenet-lt --dataset imagenet-lt --data ImageNet_LT_train.txt --images imagenet --seeds 1
    """
    from logn_research.experiments.artifact_cache import ArtifactCache
    from logn_research.experiments.classifier_measurements import describe_data, run_sections
    from logn_research.experiments.classifier_pages import ClassifierBench, to_dict, to_text, write_pages
    from logn_research.experiments.classifier_spec import ClassifierSpec

    problem = replace(_problem(dataset, data, images, model, epochs, quick=quick), device=device)
    length = "quick" if quick else "classification"
    folder = root / (f"{dataset}-{length}" if epochs is None else f"{dataset}-{length}-{epochs:g}-epochs")
    cache = ArtifactCache(folder, jobs=jobs, step=step_reporter(show_progress))
    cache.draw(ClassifierSpec(seed=seed, problem=problem) for seed in range(seeds))
    found = run_sections(cache, problem, range(seeds), train=train)
    bench = ClassifierBench(problem, tuple(range(seeds)), found, describe_data(cache, problem, 0))
    command = _command(dataset, quick, seeds, epochs, output)
    show_table(
        to_text(bench, text_style()),
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
    from logn_research.datasets.glyphs.settings import GlyphClassSettings
    from logn_research.experiments.classifier_spec import GLYPH_CLASSES, ClassifierProblem

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


def output_words(output: Path) -> list[str]:
    """The option for the folder, as a page tells it, where the path means the same on other machines.

    Example:
        >>> output_words(Path("docs/results")), output_words(Path("/home/me/results"))
        (['-o', 'docs/results'], [])
    """
    return [] if output.is_absolute() else ["-o", shlex.quote(output.as_posix())]


def show_table(
    text: str,
    result: Mapping[str, Any],
    files: Mapping[str, Any],
    *,
    failures: Sequence[str],
    folder: Path,
    measured: bool,
    as_json: bool,
) -> None:
    """Print a table, and leave with an error where nothing of it was measured.

    Args:
        text: The table.
        result: The same as plain values.
        files: The pages that were written, by their form.
        failures: What could not be trained, in sentences.
        folder: Where everything else is.
        measured: Whether any row has numbers.
        as_json: Print `result` in place of `text`.
    """
    for sentence in failures:
        print_note(f"Failed: {sentence}")
    if as_json:
        print_json({**result, "files": files})
    else:
        echo(text)
        echo(f"\nWritten to {files['markdown']} and {files['json']}; everything else is in {folder}.")
    if not measured:
        raise typer.Exit(1)


for _name, _help in TABLES.items():
    bench.command(_name, short_help=_help)(table_command(_name))
_help = "Every row of the paper's ImageNet-LT table, and its components of LogN."
bench.command("imagenet-lt", short_help=_help)(imagenet_lt)
