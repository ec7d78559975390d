"""`logn bench`: the paper's tables on detectors that are trained here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption, verb_group
from logn.cli.steps import step_reporter
from logn.cli.verbs.bench_imagenet_lt import imagenet_lt
from logn.cli.verbs.bench_output import OutputOption, TrainOption, output_words, show_table
from logn.errors import InputError

bench = verb_group(
    "Run the paper's tables on detectors that are trained here; what is there already is not done again."
)

#: Tables of detectors by name: each is a module of `logn.experiments` with an `EXPERIMENT`.
TABLES = {
    "table1": "Every rival, with and without repeat factor sampling (the paper's table 1).",
    "components": "Mean, standard deviation and margin of LogN, alone and together (the paper's table 2).",
    "margins": "The margin of the foreground against the background (the paper's table 3).",
    "online": "LogN during training or after it (the paper's figure on online LogN).",
    "samplers": "Corrections after random, repeat factor and class-balanced sampling.",
}
EXAMPLES = """

Prints the table and writes it, with the paper's numbers beside ours, as Markdown and JSON. Trained models, statistics,
predictions and measurements stay in the folder of `--root`; a second call goes on where the first one stopped.

**Examples**

`logn bench {name} --quick`

`logn bench {name} --jobs 2 -o docs/results`

`logn bench {name} --seeds 3 --jobs 8`
"""

RootOption = Annotated[Path, typer.Option(help="Folder where trained models and all else is kept.")]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="40 classes and 250 iterations: does everything run? Not for numbers.")
]
SeedsOption = Annotated[int, typer.Option(help="How many seeds; the table then has mean and range.")]
JobsOption = Annotated[int, typer.Option(help="Detectors to train side by side, each with one thread.")]
IterationsOption = Annotated[
    int | None, typer.Option(help="Of a whole training, by default 800; a second stage has a quarter of them.")
]


def table_command(name: str) -> Callable[..., None]:
    """The command that runs the table of this name."""

    def command(
        root: RootOption = Path("runs/bench"),
        output: OutputOption = Path("bench-results"),
        quick: QuickOption = False,
        seeds: SeedsOption = 1,
        jobs: JobsOption = 2,
        iterations: IterationsOption = None,
        train: TrainOption = True,
        show_progress: ProgressOption = None,
        json: JsonOption = False,
    ) -> None:
        from logn.experiments.artifact_cache import ArtifactCache
        from logn.experiments.bench_detectors import BENCHMARK, QUICK
        from logn.experiments.bench_pages import to_dict, to_text, write_pages
        from logn.experiments.run_experiment import run_experiment

        if seeds < 1:
            raise InputError(f"Expected `--seeds` to be at least 1, but got {seeds}.")
        length = QUICK if quick else BENCHMARK
        length = length if iterations is None else replace(length, iterations=iterations)
        experiment = import_module(f"logn.experiments.{name}").EXPERIMENT
        cache = ArtifactCache(root, jobs=jobs, step=step_reporter(show_progress))
        result = run_experiment(experiment, cache, length=length, seeds=range(seeds), train=train)
        words = ["logn bench", name, *(["--quick"] if quick else []), "--seeds", str(seeds)]
        words += [] if iterations is None else ["--iterations", str(iterations)]
        text = " ".join([*words, *output_words(output)])
        show_table(
            to_text(result),
            to_dict(result, text),
            write_pages(result, output, text),
            failures=result.failures,
            folder=root,
            measured=any(section.measured() for section in result.sections),
            as_json=json,
        )

    command.__doc__ = TABLES[name] + EXAMPLES.format(name=name)
    return command


for _name, _help in TABLES.items():
    bench.command(_name, short_help=_help)(table_command(_name))
bench.command("imagenet-lt", short_help="Every row of the paper's ImageNet-LT table, and its components of LogN.")(
    imagenet_lt
)
