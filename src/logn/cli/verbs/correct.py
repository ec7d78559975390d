"""`logn correct`: a model and unlabelled images in, the corrected model out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logn.cli.console import (
    COMMAND_LINE,
    JsonOption,
    ProgressOption,
    command,
    count_of,
    echo,
    print_json,
    print_note,
    progress,
    text_style,
)
from logn.cli.kinds import formerly, with_old_spellings
from logn.cli.option_words import in_options
from logn.cli.options.choices import (
    ANNOTATIONS,
    BACKGROUND_INDEX,
    RUNNING,
    Activation,
    Background,
    ClassNamesOption,
    DeviceOption,
    at_least_one,
    complete_methods,
)
from logn.cli.options.detectors import TrustOption, training_images
from logn.cli.options.preprocessing import (
    ChannelsOption,
    LikeOption,
    MaxValueOption,
    MeanOption,
    PadValueOption,
    ResizeOption,
    StdOption,
    given_preprocessing,
    size_option,
)
from logn.cli.paths import OverwriteOption
from logn.commands import how_it_runs
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.calibrators.affine import ClassAffine
    from logn.evaluate.models.correct import Correction
    from logn.evaluate.models.score_change import ScoreChange

SEARCH = "ONNX: where the logits are, if they are not found"
SKIP = typer.Option(
    "--skip-unreadable", help="Leave out images that cannot be read, and say which.", rich_help_panel=RUNNING
)
# As wide as lines are where nobody sees the terminal.
WIDTH = 100


@with_old_spellings
def correct(
    model: Annotated[
        str,
        typer.Argument(
            help="An ONNX file; a Hugging Face folder (save_pretrained); an Ultralytics .pt (with --trust); or "
            "package.module:function or file.py:function, a function that returns a torch model."
        ),
    ],
    images: Annotated[
        Path | None,
        typer.Option(help="Folder of training images; with --data, the folder that its image paths start from."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The corrected model, of the same kind.")
    ] = None,
    overwrite: OverwriteOption = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", help=f"Instead of a folder, the image list of labels: {ANNOTATIONS}"),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="recommended (default), logn (the paper's), or another method of `logn fit`.",
            autocompletion=complete_methods,
        ),
    ] = None,
    operating_points: Annotated[
        Path | None,
        typer.Option(
            help="What `logn thresholds` wrote: its thresholds per class, and the correction that they were chosen "
            "after, are folded in, so that the one --threshold acts as all of them."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Your score threshold; default 0.25 for sigmoids, 0.05 for a softmax."),
    ] = None,
    max_images: Annotated[
        int | None, typer.Option(help="Only so many images, spread evenly.", rich_help_panel=RUNNING)
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Images per forward pass; default 1 for ONNX, else 8.", rich_help_panel=RUNNING)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do all of it but write nothing.", rich_help_panel=RUNNING)
    ] = False,
    trust: TrustOption = False,
    device: DeviceOption = "auto",
    skip_unreadable: Annotated[bool, SKIP] = False,
    activation: Annotated[
        Activation | None, typer.Option(help="What follows the logits, where the model does not say it.")
    ] = None,
    like: LikeOption = None,
    size: Annotated[
        str | None,
        size_option("HEIGHTxWIDTH, or one number; default: the model's. Also for Ultralytics."),
        formerly("--image-size", "--imgsz"),
    ] = None,
    resize: ResizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    max_value: MaxValueOption = None,
    channels: ChannelsOption = None,
    pad_value: PadValueOption = None,
    background: Annotated[
        Background | None, typer.Option(help="Place of the background column.", rich_help_panel=SEARCH)
    ] = None,
    tensor: Annotated[
        list[str] | None, typer.Option(help="The logits' name, or their scores'.", rich_help_panel=SEARCH)
    ] = None,
    num_classes: Annotated[
        int | None, typer.Option(min=2, help="Columns, the background included.", rich_help_panel=SEARCH)
    ] = None,
    class_names: ClassNamesOption = None,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Correct a model in one step: run it over unlabelled training images, judge, fold, prove, write.

    The corrected model has the same inputs, outputs and speed. It is written only after it was read back and gave the
    correction of the old logits on some of the images; statistics and map are kept beside it. Where there is little to
    correct, nothing is written.

    **Examples**

    `logn correct best.pt --images train/ -o corrected.pt --trust`

    `logn correct rtdetr/ --images train/ -o rtdetr-corrected/`

    `logn correct yolox.onnx --like yolox --images train/ --threshold 0.3 -o corrected.onnx`

    `logn correct runs/a --data train.json -o runs/a-corrected --max-images 5000`
    """
    from logn.evaluate.models.correct import choose_images
    from logn.evaluate.models.correct import correct as run

    at_least_one(max_images=max_images, batch=batch)
    at = 0.25 if threshold is None else threshold
    affine = None if operating_points is None else _map_of_points(operating_points, at)
    chosen = choose_images(training_images(images, data), max_images)
    place = BACKGROUND_INDEX[background] if background else None
    with progress("Collecting", len(chosen), shown=show_progress) as advance:
        done = run(
            model,
            chosen,
            output,
            method=method,
            affine=affine,
            threshold=threshold,
            batch=batch,
            skip_unreadable=skip_unreadable,
            dry_run=dry_run,
            overwrite=overwrite,
            trust=trust,
            device=device,
            activation=activation.value if activation else None,
            background=place,
            tensor=tensor or None,
            num_classes=num_classes,
            class_names=class_names,
            like=like,
            progress=advance,
            **given_preprocessing(size, resize, mean, std, max_value, channels, pad_value),
        )
    notes = [in_options(sentence) for sentence in (*_left_out(done, len(chosen)), *done.doubts)]
    for note in notes:
        print_note(f"Warning: {note}")
    if json:
        print_json({**done.to_dict(), "dry_run": dry_run, "warnings": notes})
        return
    for label, text in _told(done, asked=method is not None or affine is not None, dry_run=dry_run):
        _print(label, in_options(text))
    if done.method is None:
        print_note(f"To correct it all the same: {command(*COMMAND_LINE.get(), '--method', 'p2p:strength=0.5')}")
    elif done.output is not None:
        _print_next(done, data)


def _map_of_points(file: Path, at: float) -> ClassAffine:
    """The map of operating points; refuses those whose map has to be solved on predictions, which are not there."""
    from logn.evaluate.thresholds.fold import why_inexact
    from logn.evaluate.thresholds.points import OperatingPoints

    points = OperatingPoints.load(file)
    if reason := why_inexact(points):
        raise InputError(
            f"Expected `--operating-points` of plain sigmoids, but those of `{file}` are of {reason}, whose map has to "
            "be solved on predictions: `logn thresholds --affine` writes it, and `logn fold` puts it into an ONNX file."
        )
    return points.affine(at=at)


def _left_out(done: Correction, total: int) -> Iterator[str]:
    if done.unreadable:
        named = ", ".join(f"`{path}`" for path in done.unreadable[:3])
        more = f" and {len(done.unreadable) - 3:,} more" if len(done.unreadable) > 3 else ""
        yield f"{len(done.unreadable):,} of {total:,} images could not be read and were left out: {named}{more}."


def _told(done: Correction, *, asked: bool, dry_run: bool) -> Iterator[tuple[str, str]]:
    """What was found and done, a label and a text for each line."""
    from logn.evaluate.models.model_kinds import layer_in_words

    known = done.moments[0].metadata
    place = {None: "no background", 0: "background first", -1: "background last"}[known.background]
    follows = f"before {known.activation}" if known.activation else "activation not known"
    yield (
        "Found",
        f"{done.traits.framework}: {count_of(done.num_classes, 'class')} at {layer_in_words(done.layer)}, "
        + (f"{follows}, {place}."),
    )
    yield (
        "Ran",
        f"{count_of(done.images, 'image')}, {done.traits.preprocessing.replace('like=', '--like ')}; "
        + (f"{count_of(int(done.moments[0].count.max()), 'row')} of logits."),
    )
    judged = done.recommendation
    yield "Finding", judged.finding
    if done.method is None:
        yield "Did", "nothing, and wrote nothing: use the model as it is."
        return
    yield "Did", f"{done.method}, as asked." if asked else f"what LogN recommends, half of the prior. {judged.expect}"
    if done.change is not None:
        yield "Change", _change_in_words(done.change)
    if done.proof is not None:
        yield (
            "Proof",
            (
                f"read back and run on images, the largest difference from scale x logit + shift is "
                f"{done.proof.largest_difference:.2g}, at logits of up to {done.proof.largest_logit:.3g} "
                f"({count_of(done.proof.rows, 'row')})."
            ),
        )
    if dry_run:
        yield "Wrote", "nothing (--dry-run)."
    else:
        others = [path.name for path in done.files if path != done.output]
        yield "Wrote", f"{done.output}" + (f", and {', '.join(others)} beside it." if others else ", statistics in it.")


def _change_in_words(change: ScoreChange) -> str:
    what = "images" if change.is_classification else "boxes"
    other = f"{100 * change.other_best:.0f} % of {what} now get a different top class."
    if change.is_classification:
        return other
    if change.matching is None:
        return f"{other} Too few sampled scores exceed {change.threshold:g} to say which threshold to use now."
    if abs(change.matching - change.threshold) < 0.02 * change.threshold:
        return f"{other} Keep using {change.threshold:g}: about as many scores exceed it as before."
    direction = "lower" if change.matching < change.threshold else "higher"
    return f"Scores are {direction} now: use {change.matching:.2g} where you used {change.threshold:g}. {other}"


def _print(label: str, text: str) -> None:
    """One line of the result, broken where the terminal ends."""
    width = text_style().prose or WIDTH
    lines = textwrap.wrap(text, max(width - 9, 30), break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines):
        echo(f"{label if number == 0 else '':8} {line}")


def _print_next(done: Correction, data: Path | None) -> None:
    """How to see on labelled images whether it helps; `data` are the training images, where labels list them."""
    if len(done.moments) > 1:  # a store holds the average of the stages, which these are not the statistics of
        return
    statistics = next((path for path in done.files if ".statistics" in path.name), None)
    if statistics is None and done.output is not None:
        statistics = done.output / "logn-statistics.safetensors"
    where = () if data is None else ("--images",)
    if not _predicts(done):
        labelled = ("test_logits.npy", "--labels", "test_labels.npy")
        compare = command("logn", "compare", *labelled, "-s", statistics or "", "-o", "comparison")
    else:
        labels = _other_split(data)
        words = ("logn", "predict", done.model, "--data", labels, "-o", "predictions")
        print_note(f"To measure it, with labels: {command(*words, keep=(*how_it_runs(done.model), *where))}")
        compare = command("logn", "compare", "predictions", "-s", statistics or "", "-a", labels, "-o", "comparison")
    print_note(f"Does it help? Before and after, with labels: {compare}")
    print_note(f"For one page with charts: {command('logn', 'report', 'comparison')}")


def _predicts(done: Correction) -> bool:
    """Whether `logn predict` takes the model: a detector, with several rows for each image, of a known framework."""
    from logn.evaluate.models.open import FUNCTION

    known = FUNCTION.fullmatch(done.model) is None or done.traits.preprocessing == "its own"
    return known and int(done.moments[0].count.max()) > done.images


def _other_split(data: Path | None) -> str:
    """The labels to measure by: the other split of labels that have splits, else an example."""
    from logn.labels.sources import find_labels

    found = None if data is None else find_labels(data)
    return str(found.path) if found is not None and found.has_splits else "val.json"
