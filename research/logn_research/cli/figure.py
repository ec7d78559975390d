"""`logn figure`: the figures of the paper, from one's own run or table."""

from __future__ import annotations

import json as json_module
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.base.files import check_new
from logn.cli.console import echo, print_json, progress
from logn.cli.options import Json, Overwrite
from logn.errors import InputError
from logn_research.cli.shared import Images, Progress


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


FROM_TABLES = (Name.online, Name.tide, Name.tide_components)


def figure(
    name: Annotated[Name, typer.Argument(show_choices=False, help="Which figure: one of those above.")],
    source: Annotated[
        Path, typer.Argument(help="Run of `logn train`; for online, tide and tide-components the JSON of `logn bench`.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PATH", help="A .svg, .png or .pdf file.")],
    data: Annotated[
        Path | None, typer.Option("--data", "-d", metavar="PATH", help="The training annotations of the run.")
    ] = None,
    images: Images = None,
    resampled: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="logit-statistics: run of the same model trained with repeat factor sampling."
        ),
    ] = None,
    repeat_threshold: Annotated[
        float, typer.Option(metavar="N", help="Of repeat factor sampling; glyph scenes: 0.04.")
    ] = 0.001,
    section: Annotated[
        str | None, typer.Option(metavar="NAME", help="Title of the section of a table; by default the paper's.")
    ] = None,
    max_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Training images to look at, drawn at random.")
    ] = 600,
    overwrite: Overwrite = False,
    shown: Progress = None,
    json: Json = False,
) -> None:
    """Draw a figure of the paper, of the paper's LogN: vector or bitmap, colour-blind safe.

    From a run and its training images: label-shift (Fig. 1a) and background-ratio (1b), what samplers and background do
    to the labels; logit-statistics (2) and positive-statistics (6), mean and variance per class of all or positive
    proposals; margin-effect (appendix). From a table: online (3), tide (4) and tide-components (5), kinds of error.

    Examples: `logn figure label-shift runs/glyphs -d glyphs/train.json --repeat-threshold 0.04 -o shift.svg`;
    `logn figure tide bench-results/components.json -o tide.svg`.
    """
    from logn_research.figures import data as figure_data
    from logn_research.figures import draw

    draw.check_format(output)
    check_new(output, overwrite=overwrite)
    with draw.paper_style() as make:
        if name in FROM_TABLES:
            made = _from_table(name, source, section, make)
        else:
            training, seen = _training_pass(source, data, images, max_images, shown)
            if name is Name.label_shift:
                made = draw.draw_label_shift(figure_data.label_shift(training, seen, threshold=repeat_threshold), make)
            elif name is Name.background_ratio:
                made = draw.draw_background_ratio(figure_data.background_ratio(seen), make)
            elif name is Name.margin_effect:
                background = seen.moments.head.background
                means = [mean for column, mean in enumerate(seen.moments.mean) if column != background]
                made = draw.draw_margin_effect(figure_data.margin_effect(own=float(min(means))), make)
            else:
                of_positives = name is Name.positive_statistics
                moments = seen.positives if of_positives else seen.moments
                statistics = figure_data.logit_statistics(moments, training.instance_counts)
                other = None
                if resampled is not None:
                    _, again = _training_pass(resampled, data, images, max_images, shown)
                    shares = figure_data.resampled_shares(training, repeat_threshold)
                    other = figure_data.logit_statistics(again.moments, training.instance_counts, shares)
                samples = "positive samples only" if of_positives else "all samples"
                made = draw.draw_logit_statistics(statistics, make, samples, other)
        draw.save_figure(made, output)
    if json:
        print_json({"figure": output, "name": name.value, "bytes": output.stat().st_size})
    else:
        echo(f"{name.value}: {output}")


def _from_table(name: Name, source: Path, section: str | None, make: Any) -> Any:
    from logn_research.figures import data as figure_data
    from logn_research.figures import draw

    if source.suffix != ".json" or not source.is_file():
        raise InputError(f"`{source}` is not a JSON file: pass the one that `logn bench` writes.")
    table = json_module.loads(source.read_text(encoding="utf-8"))
    if name is Name.online:
        return draw.draw_online(figure_data.online_comparison(table, section), make)
    labels = list(figure_data.ERROR_ROWS)
    chosen = [labels[0], labels[-1]] if name is Name.tide else labels
    return draw.draw_errors(figure_data.error_panels(table, chosen, section), make)


def _training_pass(
    run: Path, data: Path | None, images: Path | None, max_images: int | None, shown: bool | None
) -> tuple[Any, Any]:
    """The training images, and what the detector of a run says of them."""
    from logn_research.datasets.sample_dataset import SampleDataset, find_annotations
    from logn_research.figures.data import training_pass
    from logn_research.training.train import load_detector

    if data is None:
        raise InputError("Pass the training annotations of the run: `--data FILE`.")
    training = SampleDataset(find_annotations(data), images)
    detector = load_detector(run, num_classes=training.num_classes)
    with progress("Training images", total=min(max_images or len(training), len(training)), shown=shown) as advance:
        return training, training_pass(detector, training, max_images=max_images, progress=advance)
