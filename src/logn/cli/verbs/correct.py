"""`logn correct`: a model and unlabelled images in, the corrected model out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from logn.base.arrays import DEFAULT_AT
from logn.base.commands import HOW_IT_RUNS, corrected_name, free_name
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


def correct(
    model: options.Model,
    images: options.Images = None,
    data: options.OptionalData = None,
    output: options.OptionalOutput = None,
    method: options.Method = None,
    thresholds: options.OptionalThresholds = None,
    at: options.At = DEFAULT_AT,
    like: options.Like = None,
    size: options.Size = None,
    background: options.BackgroundOption = None,
    activation: options.ActivationOption = None,
    tensor: options.Tensor = None,
    class_names: options.ClassNames = None,
    max_images: options.MaxImages = None,
    device: options.Device = "auto",
    trust: options.Trust = False,
    overwrite: options.Overwrite = False,
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> None:
    """Correct a model by one pass over unlabelled training images.

    The corrected model keeps its inputs, outputs and speed, and is written only
    after it was proven; with nothing to correct it is a copy. Without -o you see
    what would be done. --thresholds adds one per class, by the labels of --data.

    Examples:
      logn correct best.pt --images train/ -o corrected.pt --trust
      logn correct best.pt --data data.yaml --thresholds f1 -o shipped.pt --trust
      logn correct yolox.onnx --like yolox --data train.json -o corrected.onnx
    """
    from logn.correction.correct import correct as run
    from logn.data.label_sources import with_split
    from logn.methods.recommend import RECOMMENDED
    from logn.models.images import choose_images
    from logn.models.write import check_target

    chosen = choose_images(options.training_images(images, data), max_images)
    if output is not None:
        inputs = (data, method, thresholds, like, class_names, *(item for item in chosen if isinstance(item, Path)))
        check_target(model, output, *options.with_parts(inputs), overwrite=overwrite)
    hints = options.model_hints(
        like=like,
        size=size,
        background=background,
        activation=activation,
        tensor=tensor,
        class_names=class_names,
        device=device,
        trust=trust,
    )
    with progress("Collecting", len(chosen)) as advance:
        done = run(
            model,
            chosen,
            output,
            method=RECOMMENDED if method is None else options.read_method(method),
            thresholds=thresholds,
            labels=None if data is None else with_split(data, "val"),
            label_images=images,
            at=at,
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
    recorded = done.moments[0].metadata
    layer = options.listed(done.layer.split(", "), 1)
    yield "Model", f"{done.traits.framework}: {count_of(done.num_classes, 'class')} at {layer}."
    if verbose:
        place = {None: "no background", 0: "background first", -1: "background last"}[recorded.background]
        yield "Logits", f"before {recorded.activation}, {place}." if recorded.activation else f"{place}."
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
    method = f"{name}, as asked." if asked else "half of the prior, as recommended."
    if shipped is not None:
        before = "no correction" if shipped.points.correction is None else method.rstrip(".")
        method = f"{before}; then a threshold per class ({shipped.points.goal})."
    yield "Did", f"{method} {done.recommendation.expect}" if verbose and not asked else method
    if done.change is not None and shipped is None:
        yield "Scores", _change_in_words(done.change)
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
    if change.is_classification or change.matching is None:
        return other
    if abs(change.matching - change.threshold) < 0.02 * change.threshold:
        return f"{other} Keep using {change.threshold:g}."
    return f"{other} Use {change.matching:.2g} where you used {change.threshold:g}."


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
        print_note(f"To write it: {command(*typed, '-o', free_name(corrected_name(done.model)))}")
        return
    if len(done.moments) > 1:  # predictions hold the average of the stages, which these are not the statistics of
        return
    statistics = next((path for path in done.files if ".statistics" in path.name), None)
    tail = ("-s", statistics or done.output / "logn-statistics.safetensors", "-o", "comparison")
    if not _is_detector(done):
        compare = command("logn", "compare", "test_logits.npy", "--labels", "test_labels.npy", *tail)
        print_note(f"Does it help? With labels: {compare}")
        return
    labels, keep = _validation_labels(data), [*HOW_IT_RUNS]
    if data is not None and images is not None:
        keep.append("--images")
    predict = command("logn", "predict", done.model, "--data", labels, "-o", "predictions", keep=keep)
    print_note(f"Does it help? With labels: {predict}")
    print_note(f"Then: {command('logn', 'compare', 'predictions', '-d', labels, *tail)}")


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
