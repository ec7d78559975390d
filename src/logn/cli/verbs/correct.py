"""`logn correct`: a model and unlabelled images in, the corrected model out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from logn.base.arrays import DEFAULT_AT
from logn.base.commands import HOW_IT_RUNS, free_name
from logn.cli import options
from logn.cli.console import (
    COMMAND_LINE,
    command,
    count_of,
    echo,
    print_json,
    print_note,
    print_tables,
    print_text,
    progress,
    text_style,
)

if TYPE_CHECKING:
    from logn.correction.correct import Correction, ScoreChange
    from logn.thresholds.points import FoldedPoints

# The width of a line where there is no terminal.
WIDTH = 100


@options.with_hints()
def correct(
    model: options.Model,
    images: options.Images = None,
    data: options.OptionalData = None,
    output: options.OptionalOutput = None,
    method: options.Method = None,
    counts: options.Counts = None,
    thresholds: options.OptionalThresholds = None,
    at: options.At = DEFAULT_AT,
    deployment: options.Deployment = None,
    max_images: options.MaxImages = None,
    overwrite: options.Overwrite = False,
    verbose: options.Verbose = False,
    json: options.Json = False,
    *,
    hints: options.Hints,
) -> None:
    """Correct a model by one pass over unlabelled training images.

    Inputs, outputs and speed stay. It is written with -o only, once proven; with
    nothing to correct it is a copy. --thresholds adds one per class, by --data.

    Examples:
      logn correct yolox.onnx --like yolox --images train/ -o corrected.onnx
      logn correct best.pt --data data.yaml --thresholds f1 -o shipped.pt --trust
    """
    from logn.correction.correct import correct as run
    from logn.data.label_sources import with_split
    from logn.methods.recommend import RECOMMENDED
    from logn.models.images import choose_images
    from logn.models.write import check_target

    chosen = choose_images(options.training_images(images, data), max_images)
    deployed = None if deployment is None else choose_images(deployment)
    if output is not None:
        files = (item for item in [*chosen, *(deployed or [])] if isinstance(item, Path))
        inputs = (data, method, counts, thresholds, *hints.files, *files)
        check_target(model, output, *options.with_parts(inputs), overwrite=overwrite)
    with progress("Collecting", len(chosen) + len(deployed or [])) as advance:
        done = run(
            model,
            chosen,
            output,
            method=RECOMMENDED if method is None else options.read_method(method),
            counts=options.read_counts(counts),
            thresholds=thresholds,
            labels=None if data is None else with_split(data, "val"),
            label_images=images,
            at=at,
            deployment=deployed,
            overwrite=overwrite,
            progress=advance,
            **vars(hints),
        )
    shipped = done.thresholds
    for note in done.doubts:
        print_note(f"Warning: {note}")
    if json:
        print_json(done.to_dict() | ({} if shipped is None else {"thresholds": shipped.points.to_dict()}))
        return
    for label, text in _lines(done, asked=method is not None, verbose=verbose, shipped=shipped):
        _print(label, text)
    if shipped is None:
        _print_next(done, data, images)
    else:
        _print_thresholds(done, shipped)


def _print_thresholds(done: Correction, shipped: FoldedPoints) -> None:
    """The table of all states, what one threshold keeps, and which one to use."""
    from logn.thresholds.points import write_points

    echo("")
    is_corrected = shipped.points.correction is not None
    uncorrected = shipped.uncorrected if is_corrected else None
    print_tables(partial(write_points, shipped.points, uncorrected=uncorrected))
    print_text(shipped.describe())
    if done.output is None:
        _print_next(done, None, None)
    else:
        echo(f"Keep using {shipped.at:g}: it now acts as your per-class thresholds.")


def _lines(
    done: Correction, *, asked: bool, verbose: bool, shipped: FoldedPoints | None = None
) -> Iterator[tuple[str, str]]:
    """What was found and done: a label and a text for each line."""
    from logn.methods.recommend import share_of_prior

    recorded = done.moments[0].head
    layer = options.listed(done.layer.split(", "), 1)
    yield "Model", f"{done.traits.framework}: {count_of(done.num_classes, 'class')} at {layer}."
    if verbose:
        place = {None: "no background", 0: "background first", -1: "background last"}[recorded.background]
        assumed = "" if recorded.activation else " (assumed)"
        yield "Logits", f"before {done.recommendation.head.activation}{assumed}, {place}."
        yield "Images", f"{done.traits.preprocessing}; {count_of(int(done.moments[0].count.max()), 'row')} of logits."
    yield "Ran", f"over {count_of(done.images, 'image')}. {done.recommendation.finding}"
    if done.method is None:
        yield "Did", "nothing: use the model as it is."
        if done.output is not None:
            is_file = Path(done.model).exists()
            copy = f"a copy of {done.model}, byte for byte" if is_file else f"the weights of {done.model} as they are"
            yield "Wrote", f"{done.output}, {copy}."
        return
    name = done.method.removesuffix(" then thresholds")
    recommended = share_of_prior(done.recommendation.strength)
    method = f"{name}, as asked." if asked else f"{recommended}, as recommended."
    if shipped is not None:
        before = "no correction" if shipped.points.correction is None else method.rstrip(".")
        method = f"{before}; then a threshold per class ({shipped.points.goal})."
    yield "Did", f"{method} {done.recommendation.expect}" if verbose and not asked else method
    if done.change is not None and shipped is None:
        yield "Scores", _change_in_words(done.change)
    if done.recommendation.trade:
        yield "Trade", done.recommendation.trade
    proven = f"proven on {count_of(done.proof.rows, 'row')} of logits" if done.proof else "not proven"
    if verbose and done.proof is not None:
        proven += f" (largest difference {done.proof.largest_difference:.2g}, logits to {done.proof.largest_logit:.3g})"
    if done.output is None:
        yield "Wrote", f"nothing without -o; the correction is {proven}."
        return
    others = [path.name for path in done.files if path != done.output]
    beside = f"; beside it {', '.join(others)}" if others and verbose else ""
    yield "Wrote", f"{done.output}, {proven}{beside}."


def _change_in_words(change: ScoreChange) -> str:
    what = "images" if change.is_classification else "boxes"
    other = f"{100 * change.other_best:.0f} % of {what} now get a different top class."
    return other if change.threshold is None else f"{other} {change.threshold.describe()}"


def _print(label: str, text: str) -> None:
    """One line of the result, broken where the terminal ends."""
    width = text_style().prose or WIDTH
    lines = textwrap.wrap(text, max(width - 8, 30), break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines):
        echo(f"{label if number == 0 else '':7} {line}")


def _print_next(done: Correction, data: Path | None, images: Path | None) -> None:
    """The next command, on stderr: write it, or measure on labelled images whether it helps."""
    typed = COMMAND_LINE.get()
    if done.method is None:
        words = [free_name(word) if done.output is not None and word == str(done.output) else word for word in typed]
        print_note(f"To correct it anyway: {command(*words, '--method', 'recommended:force=true')}")
        return
    if done.output is None:
        print_note(f"To write it: {command(*typed, '-o', free_name(f'corrected{done.traits.suffix}'))}")
        return
    if len(done.moments) > 1:  # predictions hold the average of the stages, which these are not the statistics of
        return
    statistics = next((path for path in done.files if ".statistics" in path.name), None)
    tail = ("-s", statistics or done.output / "logn-statistics.safetensors", "-o", free_name("comparison"))
    if _is_classifier(done):
        _print_next_of_classifier(done, data, tail)
        return
    if not _is_detector(done):
        return
    labels, keep = _validation_labels(data), [*HOW_IT_RUNS]
    if data is not None and images is not None:
        keep.append("--images")
    predict = command("logn", "predict", done.model, "--data", labels, "-o", "predictions", keep=keep)
    print_note(f"Does it help? With labels: {predict}")
    print_note(f"Then: {command('logn', 'compare', 'predictions', '-d', labels, *tail)}")


def _print_next_of_classifier(done: Correction, data: Path | None, tail: tuple[str | Path, ...]) -> None:
    """How to measure a classifier on labelled images: predict, then compare, by group if the images have classes."""
    from logn.data.label_sources import find_labels

    labels = None if data is None else find_labels(data)
    measured = labels.path if labels is not None and labels.has_splits else Path("val")
    predictions, has_names = free_name("test.safetensors"), done.moments[0].head.names is not None
    words = ("logn", "predict", done.model, "--data", measured, "-o", predictions)
    predict = command(*words, *(() if has_names else ("--class-names", "names.txt")), keep=HOW_IT_RUNS)
    counts = ("--counts", str(data)) if labels is not None and labels.is_of_classifier else ()
    names = "" if has_names else ", and a class name per line in names.txt"
    print_note(f"Does it help? With a folder per class{names}: {predict}")
    print_note(f"Then: {command('logn', 'compare', predictions, *counts, *tail)}")


def _is_classifier(done: Correction) -> bool:
    """Whether the model gives a row per image; the two heads of a distilled transformer give one each."""
    moments = done.moments[0]
    is_row_per_image = int(moments.count.max()) == done.images or moments.head.population == "images"
    return moments.head.background is None and is_row_per_image


def _is_detector(done: Correction) -> bool:
    """Whether `logn predict` takes the model: a detector, with several rows per image, of a known framework."""
    from logn.models.open import FUNCTION

    is_known = FUNCTION.fullmatch(done.model) is None or done.traits.preprocessing == "its own"
    return is_known and int(done.moments[0].count.max()) > done.images


def _validation_labels(data: Path | None) -> str:
    """The labels to measure by: the other split of labels that have splits, else an example."""
    from logn.data.label_sources import find_labels

    labels = None if data is None else find_labels(data)
    return str(labels.path) if labels is not None and labels.has_splits else "val.json"
