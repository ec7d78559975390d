"""`logn figure`: the figures of the paper, from one's own run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from logn.cli import options
from logn.cli.console import echo, print_json


class Name(StrEnum):
    """The figures."""

    label_shift = "label-shift"
    background_ratio = "background-ratio"
    logit_statistics = "logit-statistics"
    online = "online"
    tide = "tide"
    tide_components = "tide-components"
    positive_statistics = "positive-statistics"
    margin_effect = "margin-effect"


def figure(
    name: Annotated[Name, typer.Argument(help="Which figure.")],
    run: Annotated[Path, typer.Argument(help="Folder of the run: what `logn compare -o` or `logn demo` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .svg, .png or .pdf file.")],
    method: options.Method = None,
    overwrite: options.Overwrite = False,
    online: Annotated[
        list[Path] | None,
        typer.Option("--online", help="online: run folder of a model trained with LogN; twice for two margins."),
    ] = None,
    resampled: Annotated[
        Path | None,
        typer.Option(help="logit-statistics: run folder of the same model trained with repeat factor sampling."),
    ] = None,
    repeat_threshold: Annotated[
        float,
        typer.Option(help="label-shift, logit-statistics: of repeat factor sampling."),
    ] = 0.001,
    predictions: Annotated[
        Path | None, typer.Option("--predictions", "-p", help="Where they are, if not in the run.")
    ] = None,
    statistics: options.Statistics = None,
    data: options.OptionalData = None,
    counts: options.Counts = None,
    json: options.Json = False,
) -> None:
    """Draw a figure of the paper from your own run, ready for a paper: vector or bitmap, colour-blind safe.

    `label-shift` (Fig. 1a) and `background-ratio` (1b): what samplers and the background do to the labels.
    `logit-statistics` (2) and `positive-statistics` (6): mean and variance per class, over all or positive samples.
    `online` (3): training with LogN beside LogN afterwards. `tide` (4), `tide-components` (5): kinds of error.
    `margin-effect` (appendix): how a negative margin raises the weight of the background.

    Examples:
      logn figure logit-statistics runs/demo/standard/seed-0 -o statistics.pdf
      logn figure tide run -m recommended -o tide.svg
      logn figure positive-statistics run -p store -a lvis_v1_val.json --counts lvis_v1_train.json -o positives.png
    """
    from logn.report.run_folder import open_run
    from logn_research.figures.figure_style import check_format
    from logn_research.figures.figures import FigureOptions, draw_figure

    check_format(output)
    options.check_output(output, overwrite=overwrite)
    places = {"predictions": predictions, "statistics": statistics, "annotations": data, "counts": counts}
    chosen = FigureOptions(method, online or None, repeat_threshold, resampled)
    draw_figure(name.value, open_run(run, places=places), output, chosen)
    if json:
        print_json({"figure": output, "name": name.value, "bytes": output.stat().st_size})
    else:
        echo(f"{name.value}: {output}")
