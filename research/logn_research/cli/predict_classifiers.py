"""`logn predict` of image classifiers: a trained run and images in, logits out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, command, echo, print_json, print_note, progress
from logn.cli.options.choices import (
    DeviceOption,
    ImageFolderOption,
    SampleRowsOption,
    at_least_one,
)
from logn.cli.options.prediction import BatchOption, DataOption, ModelArgument, NamesOption, OutputOption
from logn.errors import InputError
from logn_research.cli.classifier_inputs import COUNTS_FILE, LAYER_FILE, STATISTICS_FILE

if TYPE_CHECKING:
    from logn_research.datasets.labelled_images import LabelledImages
    from logn_research.training.classifiers.models import Classifier


def run_classifier(
    model: ModelArgument,
    data: DataOption,
    output: OutputOption,
    images: ImageFolderOption = None,
    split: Annotated[
        list[str] | None, typer.Option(help="`train`, `dev` or `test`; can be repeated. Default: train and test.")
    ] = None,
    class_names: NamesOption = None,
    batch: BatchOption = None,
    sample_rows: SampleRowsOption = None,
    device: DeviceOption = "auto",
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run an image classifier once and keep its logits, as `logn predict` does."""
    from logn.evaluate.models.open import choose_device
    from logn_research.datasets.open_images import SPLITS, open_images
    from logn_research.training.classifiers.classifier_logits import check_classes
    from logn_research.training.classifiers.train_classifier import load_classifier

    at_least_one(batch=batch)
    batch = 256 if batch is None else batch
    splits = list(dict.fromkeys(split or ("train", "test")))
    for name in splits:
        if name not in SPLITS:
            raise InputError(f"Expected `--split` to be one of {SPLITS}, but got {name!r}.")
    classifier = load_classifier(model).to(choose_device(device))
    options = dict(classifier.data_options or {})
    opened = {name: open_images(data, name, root=images, class_names=class_names, **options) for name in splits}
    for labelled in opened.values():
        check_classes(classifier, labelled)
    if "train" in opened:
        _check_training_images(classifier, opened["train"], model)
    output.mkdir(parents=True, exist_ok=True)
    written = _write_facts(classifier, output)
    with progress("Predicting", total=_passes(opened), shown=show_progress) as advance:
        for name, labelled in opened.items():
            written |= _write_split(classifier, name, labelled, output, batch, sample_rows, advance)
    images_of = {name: len(labelled) for name, labelled in opened.items()}
    if json:
        print_json({"output": output, "images": images_of, "num_classes": classifier.num_classes, "files": written})
        return
    total = ", ".join(f"{count:,} of {name}" for name, count in images_of.items())
    echo(f"{output}: logits of {classifier.num_classes} classes for {total} images.")
    if {"train", "test"} <= {*splits}:  # it takes the logits of the one, and statistics of the other
        print_note(f"To compare methods on them: {command('logn', 'compare', output)}")


def _check_training_images(classifier: Classifier, images: LabelledImages, run: Path) -> None:
    before = classifier.image_counts
    for label, (then, now) in enumerate(zip(before or (), images.image_counts.tolist(), strict=True)):
        if then != now:
            raise InputError(
                f"Expected `{images.source}` to be the training images of `{run}`, with {then} of class {label}"
                f" (`{images.class_names[label]}`), but it has {now}."
            )


def _passes(opened: dict[str, LabelledImages]) -> int:
    return sum(len(images) for images in opened.values())


def _write_facts(classifier: Classifier, folder: Path) -> dict[str, Path]:
    """What methods need to know besides the logits."""
    from logn.files import write_safetensors
    from logn_research.datasets.glyphs.shards import write_json

    counts = classifier.image_counts or ()
    table = {"names": classifier.class_names, "image_counts": counts, "num_images": sum(counts)}
    write_json(folder / COUNTS_FILE, table)
    if classifier.settings.classifier == "cosine":
        return {"counts": folder / COUNTS_FILE}
    layer = classifier.cls_score
    tensors = {name: layer.get_parameter(name).detach().cpu().numpy() for name in ("weight", "bias")}
    write_safetensors(folder / LAYER_FILE, tensors, {"format": "logn-class-layer", "schema": "1"})
    return {"counts": folder / COUNTS_FILE, "class_layer": folder / LAYER_FILE}


def _write_split(
    classifier: Classifier,
    split: str,
    images: LabelledImages,
    folder: Path,
    batch: int,
    sample_rows: int | None,
    advance: Any,
) -> dict[str, Path]:
    import numpy as np

    from logn.files import atomic_path
    from logn_research.training.classifiers.classifier_logits import classifier_logits, logits_and_statistics

    written: dict[str, Path] = {}
    if split == "train":
        logits, moments = logits_and_statistics(
            classifier, images, batch=batch, sample_rows=sample_rows, progress=advance
        )
        moments.save(folder / STATISTICS_FILE)
        written["statistics"] = folder / STATISTICS_FILE
    else:
        logits = classifier_logits(classifier, images, batch=batch, progress=advance)
    for kind, array in (("logits", logits), ("labels", images.labels)):
        path = folder / f"{split}_{kind}.npy"
        with atomic_path(path) as temporary:
            np.save(temporary, array)
        written[f"{split}_{kind}"] = path
    return written
