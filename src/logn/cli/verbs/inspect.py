"""`logn inspect`: what the statistics show, as a table, a recommendation and a figure."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.base.arrays import DEFAULT_AT
from logn.base.commands import free_name
from logn.cli import options
from logn.cli.console import command, count_of, echo, print_json, print_note, print_tables, print_text
from logn.errors import InputError, LogNWarning

if TYPE_CHECKING:
    from logn.methods.recommend import Recommendation
    from logn.methods.sampled_scores import NewThreshold
    from logn.statistics.head import Head
    from logn.statistics.moments import ClassMoments
    from logn.statistics.summary import Diagnosis

METADATA_FIELDS = ("background", "activation", "layer", "population", "source")
# Classes shown from either end, without --verbose.
SHOWN = 10


def inspect(
    statistics: Annotated[Path, typer.Argument(metavar="STATISTICS", help="File from logn collect.")],
    counts: options.Counts = None,
    at: options.At = DEFAULT_AT,
    deployment: options.Deployment = None,
    activation: options.ActivationOption = None,
    plot: Annotated[
        Path | None, options.option("--plot", metavar="FILE", help="Draw mean and std per class, as an .svg file.")
    ] = None,
    overwrite: options.Overwrite = False,
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> None:
    """Show count, mean and standard deviation of every class's logit, and what they mean.

    Prints what LogN recommends and which score threshold to use with it. With
    --counts it also prints how strongly mean and spread follow the counts.

    Examples:
      logn inspect stats.safetensors
      logn inspect stats.safetensors --counts lvis_v1_train.json --plot statistics.svg
    """
    options.refuse_model(statistics, "statistics", "collect", "--images", "train/", "-o", "stats.safetensors")
    from logn.data.class_counts import ClassCounts
    from logn.statistics.moments import ClassMoments
    from logn.statistics.summary import diagnose

    if plot is not None:
        options.check_output(plot, statistics, counts, deployment, overwrite=overwrite)
    moments = ClassMoments.load(statistics)
    diagnosis = diagnose(moments, ClassCounts.load(counts) if counts else None)
    there = None if deployment is None else ClassMoments.load(deployment)
    recommendation, threshold = _recommend(moments, at, activation, there)
    if plot is not None:
        from logn.report.statistics_plot import plot_statistics

        options.save(plot, partial(plot_statistics, diagnosis), overwrite)
    if json:
        advice = None if recommendation is None else recommendation.to_dict()
        advised = {"recommendation": advice, "threshold": None if threshold is None else asdict(threshold)}
        values = {**_as_mapping(diagnosis, moments.head), **advised}
        print_json({**values, "plot": plot} if plot else values)
        return
    _print_table(diagnosis, 0 if verbose else SHOWN)
    _print_summary(diagnosis, moments.head)
    if recommendation is not None:
        known = {"--activation": activation, "--at": None if at == DEFAULT_AT else at, "--deployment": deployment}
        _print_recommendation(recommendation, threshold, statistics, known)


def _recommend(
    moments: ClassMoments, at: float, activation: str | None, deployment: ClassMoments | None
) -> tuple[Recommendation | None, NewThreshold | None]:
    """The recommendation and the threshold that then gives as many detections; warnings go to stderr."""
    from logn.methods.recommend import recommend
    from logn.methods.sampled_scores import basis_of, threshold_after
    from logn.statistics.doubts import sanity_checks

    basis_of(moments, deployment)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LogNWarning)
        try:
            recommendation = recommend(moments, threshold=at, activation=activation)
            affine = recommendation.fit(moments, deployment=deployment)
            threshold = threshold_after(
                affine, moments, at, deployment=deployment, activation=recommendation.head.activation
            )
        except InputError as error:  # such as statistics of probabilities: the table is of use all the same
            recommendation, threshold = None, None
            print_note(f"No recommendation: {error}")
    for note in dict.fromkeys((*(str(item.message) for item in caught), *sanity_checks(moments))):
        print_note(f"Warning: {note}")
    return recommendation, threshold


def _print_recommendation(
    recommendation: Recommendation, threshold: NewThreshold | None, statistics: Path, known: Mapping[str, Any]
) -> None:
    print_text(f"\n{recommendation.finding} {recommendation.expect}")
    if recommendation.method == "none":
        return
    for sentence in (recommendation.trade, "" if threshold is None else threshold.describe()):
        if sentence:
            print_text(sentence)
    words = [word for name, value in known.items() if value is not None for word in (name, str(value))]
    # Not broken where the terminal ends: it is to be pasted.
    echo(f"To correct it: {command('logn', 'fit', statistics, *words, '-o', free_name('affine.safetensors'))}")


def _as_mapping(diagnosis: Diagnosis, head: Head) -> dict[str, Any]:
    fields = ("seen", "mean", "std", "dead", "skipped", "image_counts", "groups", "conclusion")
    return {
        "head": asdict(head),
        "classes": diagnosis.names,
        **{name: getattr(diagnosis, name) for name in fields},
        "rank_correlation_with_count": {"mean": diagnosis.mean_with_count, "std": diagnosis.std_with_count},
    }


def _print_table(diagnosis: Diagnosis, top: int) -> None:
    """The classes by their mean, highest first; `top` from either end, 0 for all."""
    from logn.base.text_table import write_table

    counted = diagnosis.image_counts is not None
    header = ("class", *(("group", "images") if counted else ()), "logits", "mean", "std")
    order = [int(index) for index in diagnosis.order()]
    rows = [_row(diagnosis, index) for index in order]
    if top and len(rows) > 2 * top + 1:
        gap = (f"… {len(rows) - 2 * top} more", *[""] * (len(header) - 1))
        rows = [*rows[:top], gap, *rows[-top:]]
    print_tables(lambda style: write_table(header, rows, style, keys=2 if counted else 1))


def _row(diagnosis: Diagnosis, index: int) -> tuple[str, ...]:
    name = diagnosis.names[index] + ("" if diagnosis.alive[index] else " (dead)")
    counted: tuple[str, ...] = ()
    if diagnosis.image_counts is not None and diagnosis.groups is not None:
        counted = (str(diagnosis.groups[index]), f"{diagnosis.image_counts[index]:,.0f}")
    seen = f"{diagnosis.seen[index]:,.0f}"
    return name, *counted, seen, f"{diagnosis.mean[index]:.3f}", f"{diagnosis.std[index]:.3f}"


def _print_summary(diagnosis: Diagnosis, head: Head) -> None:
    recorded = {name: getattr(head, name) for name in METADATA_FIELDS}
    recorded["background"] = {0: "first", -1: "last", None: "none"}[head.background]
    known = ", ".join(f"{name} {value}" for name, value in recorded.items() if value is not None)
    print_text(f"\nRecorded: {known}.")
    if dead := diagnosis.dead:
        names = ", ".join(dead[:5]) + (" …" if len(dead) > 5 else "")
        print_text(f"Dead: {len(dead)} of {len(diagnosis.names)} classes, never seen or without spread ({names}).")
    if diagnosis.skipped:
        print_text(f"Skipped: {count_of(diagnosis.skipped, 'value')}, NaN or infinite.")
    print_text(diagnosis.conclusion)
