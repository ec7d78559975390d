"""`logn inspect`: what the statistics say, as tables, a recommendation and a figure."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, command, print_fitting, print_json, print_note, print_text
from logn.cli.first_tries import refuse_model_as_statistics
from logn.cli.option_words import in_options
from logn.cli.options.choices import Activation
from logn.cli.options.evaluation import CountsOption
from logn.cli.paths import OverwriteOption, check_output
from logn.errors import InputError, LogNWarning

if TYPE_CHECKING:
    from rich.table import Table

    from logn.calibrators.recommend import Recommendation
    from logn.statistics.diagnosis import Diagnosis
    from logn.statistics.moments import StatisticsMetadata


BAR_WIDTH = 7


def inspect(
    statistics: Annotated[Path, typer.Argument(help="The statistics file that `logn collect` wrote.")],
    counts: CountsOption = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Your score threshold; default 0.25 for sigmoids, 0.05 for a softmax."),
    ] = None,
    activation: Annotated[
        Activation | None, typer.Option(help="What the model applies to the logits; default: as recorded.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw mean and std per class: .png, .svg or .pdf.")] = None,
    overwrite: OverwriteOption = False,
    top: Annotated[int, typer.Option(min=0, help="Classes shown from either end; 0 shows all.")] = 10,
    json: JsonOption = False,
) -> None:
    """Show count, mean and standard deviation of every class's logit, and what they mean.

    It also prints what LogN recommends for the model and which score threshold to use then. With the training counts it
    prints how strongly mean and spread follow them.

    **Examples**

    `logn inspect stats.safetensors`

    `logn inspect stats.safetensors --counts lvis_v1_train.json --plot statistics.png`

    `logn inspect stats.safetensors --threshold 0.3`

    `logn inspect stats.safetensors --counts classes.csv --json`
    """
    refuse_model_as_statistics(statistics)
    from logn.calibrators.recommend import matching_threshold, recommend
    from logn.classes.counts import ClassCounts
    from logn.statistics.diagnosis import diagnose, sanity_checks
    from logn.statistics.moments import ClassMoments

    if plot is not None:
        check_output(plot, statistics, counts, overwrite=overwrite)
    moments = ClassMoments.load(statistics)
    table = ClassCounts.load(counts) if counts else None
    diagnosis = diagnose(moments, table)
    said = "recorded" if activation is None else activation.value
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LogNWarning)
        try:
            recommendation = recommend(moments, threshold=threshold, activation=said)
            affine = recommendation.fit(moments)
            matching = matching_threshold(moments, affine, recommendation.threshold, recommendation.activation)
        except InputError as error:  # such as statistics of probabilities: the table is of use all the same
            recommendation, matching = None, None
            print_note(f"No recommendation: {in_options(str(error))}")
    told = None if recommendation is None else recommendation.to_dict() | {"matching_threshold": matching}
    judged = {"recommendation": told}
    for note in dict.fromkeys((*(str(item.message) for item in caught), *sanity_checks(moments))):
        print_note(f"Warning: {in_options(note)}")
    if plot is not None:
        from logn.report.statistics_plot import plot_statistics

        plot_statistics(diagnosis, plot)
    if json:
        print_json(_as_mapping(diagnosis, moments.metadata) | judged | ({"plot": plot} if plot else {}))
    else:
        _print_table(diagnosis, top)
        _print_summary(diagnosis, moments.metadata)
        if recommendation is not None:
            _print_recommendation(recommendation, matching, statistics, activation)


def _print_recommendation(
    recommendation: Recommendation, matching: float | None, statistics: Path, activation: Activation | None
) -> None:
    print_text(f"\n{recommendation.finding} {recommendation.expect}")
    if recommendation.method == "none":
        return
    if matching is not None and recommendation.head == "softmax detector":
        print_text(f"Use a threshold of {matching:.2g} where you used {recommendation.threshold:g}.")
    said = () if activation is None else ("--activation", activation.value)
    print_text(f"To correct it: {command('logn', 'fit', statistics, *said, '-o', 'affine.safetensors')}")


def _as_mapping(diagnosis: Diagnosis, metadata: StatisticsMetadata) -> dict[str, Any]:
    links = {"mean": diagnosis.mean_with_count, "std": diagnosis.std_with_count}
    return {
        "metadata": {name: getattr(metadata, name) for name in _METADATA_FIELDS},
        "classes": diagnosis.names,
        "seen": diagnosis.seen,
        "mean": diagnosis.mean,
        "std": diagnosis.std,
        "dead": diagnosis.dead,
        "margins": diagnosis.margins,
        "skipped": diagnosis.skipped,
        "image_counts": diagnosis.image_counts,
        "groups": diagnosis.groups,
        "correlation_with_log_count": {name: link._asdict() if link else None for name, link in links.items()},
        "conclusion": diagnosis.conclusion,
    }


_METADATA_FIELDS = ("background", "activation", "layer", "population", "fingerprint")


def _print_table(diagnosis: Diagnosis, top: int) -> None:
    print_fitting(_table(diagnosis, top, bars=True), _table(diagnosis, top, bars=False))


def _table(diagnosis: Diagnosis, top: int, *, bars: bool) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("class", no_wrap=True, max_width=24)
    if diagnosis.image_counts is not None:
        table.add_column("group", no_wrap=True)
        table.add_column("images", justify="right", no_wrap=True)
    for title in ("logits", "mean", "", "std", "") if bars else ("logits", "mean", "std"):
        table.add_column(title, justify="left" if title == "" else "right", no_wrap=True)
    order = [int(index) for index in diagnosis.order()]
    shown = order if top == 0 or len(order) <= 2 * top + 1 else order[:top] + order[-top:]
    for position, index in enumerate(shown):
        if len(shown) < len(order) and position == top:
            table.add_row(f"… {len(order) - len(shown)} more")
        table.add_row(*_row(diagnosis, index, bars=bars))
    return table


def _row(diagnosis: Diagnosis, index: int, *, bars: bool) -> list[str]:
    from rich.markup import escape

    name = escape(diagnosis.names[index]) + ("" if diagnosis.alive[index] else " (dead)")
    cells = [name]
    if diagnosis.image_counts is not None and diagnosis.groups is not None:
        cells += [str(diagnosis.groups[index]), f"{diagnosis.image_counts[index]:,.0f}"]
    cells.append(f"{diagnosis.seen[index]:,.0f}")
    for values in (diagnosis.mean, diagnosis.std):
        cells += [f"{values[index]:.3f}", *([_bar(values, index)] if bars else [])]
    return cells


def _bar(values: Any, index: int) -> str:
    """A bar that grows from the smallest to the largest value."""
    import numpy as np

    if not np.isfinite(values[index]):
        return ""
    low, high = np.nanmin(values), np.nanmax(values)
    share = (values[index] - low) / (high - low) if high > low else 1.0
    return "▏" + "█" * round(float(share) * BAR_WIDTH)


def _print_summary(diagnosis: Diagnosis, metadata: StatisticsMetadata) -> None:
    known = {name: getattr(metadata, name) for name in _METADATA_FIELDS}
    known["background"] = {0: "first", -1: "last", None: "none"}[metadata.background]  # in the words of --background
    print_text(
        "\nRecorded: " + ", ".join(f"{name} {value}" for name, value in known.items() if value is not None) + "."
    )
    margins = ", ".join(f"{name} {value:.3f}" for name, value in diagnosis.margins.items())
    print_text(f"Margins of LogN would be: {margins or 'none, since no class is alive'}.")
    dead = diagnosis.dead
    if dead:
        names = ", ".join(dead[:5]) + (" …" if len(dead) > 5 else "")
        print_text(f"Dead: {len(dead)} of {len(diagnosis.names)} classes, never seen or without spread ({names}).")
    if diagnosis.skipped:
        print_text(f"Skipped: {diagnosis.skipped:,} values that are not finite.")
    for label, link in (("mean", diagnosis.mean_with_count), ("std", diagnosis.std_with_count)):
        if link is not None:
            print_text(
                f"Correlation of {label} with log count: Pearson {link.pearson:+.3f}, rank {link.spearman:+.3f}."
            )
    print_text(diagnosis.conclusion)
