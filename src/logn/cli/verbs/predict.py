"""`logn predict`: run a trained model once over a data set and keep its logits, of a detector with its boxes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from logn.base.commands import HOW_IT_RUNS, kept_words
from logn.cli import options
from logn.cli.console import command, count_of, echo, print_json, print_note, progress
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.data.dataset import ClassificationDataset, DetectionDataset
    from logn.models.hints import Hints

STATISTICS = "statistics.safetensors"


@options.with_hints("layer")
def predict(
    model: options.Model,
    data: options.Data,
    output: options.Output,
    images: options.Images = None,
    batch: options.Batch = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    *,
    hints: options.Hints,
) -> None:
    """Run a trained model once and keep its logits, for logn compare.

    Of a detector, boxes are kept too, in a folder; a stopped run resumes, and under
    torchrun every process takes its share. A classifier takes a folder per class,
    or a list of paths and labels, and writes one .safetensors file.

    Examples:
      logn predict best.pt --trust --data data.yaml -o predictions
      logn predict yolox.onnx --like yolox --class-names coco.txt --data val.json -o predictions
      logn predict vit --data imagenet/val -o test.safetensors
    """
    from logn.data.dataset import ClassificationDataset, open_dataset
    from logn.data.label_sources import with_split

    dataset = open_dataset(with_split(data, "val"), images)
    if isinstance(dataset, ClassificationDataset):
        inputs = (model, data, *hints.files, *dataset.image_paths())
        options.check_output(output, *inputs, overwrite=overwrite)
        _predict_classifier(model, dataset, output, hints, batch=batch, overwrite=overwrite, as_json=json)
        return
    if overwrite:
        raise InputError("`--overwrite` is for classifiers: a folder of a detector is continued; or choose a new one.")
    _predict_detector(model, dataset, output, hints, batch=batch, as_json=json)


def _predict_detector(
    model: str, dataset: DetectionDataset, output: Path, hints: Hints, *, batch: int | None, as_json: bool
) -> None:
    from logn.models.open import open_model
    from logn.predictions.predict import match_detector
    from logn.predictions.predict import predict as run

    detector = open_model(model, hints).detector
    match = match_detector(detector, dataset.class_names)
    metadata = {
        "model": Path(model).name,
        "model_words": [model, *kept_words(HOW_IT_RUNS)],
        "data": dataset.annotation_file.name,
        "images": dataset.images_fingerprint,
    }
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    with progress("Predicting", total=len(range(rank, len(dataset), world))) as advance:
        written = run(detector, dataset, output, batch=batch, metadata=metadata, progress=advance)
    if rank > 0:  # one process prints for all
        return
    _report(dataset, output, written, as_json=as_json)
    if not as_json:
        if match.describe():
            print_note(match.describe())
        _print_next(model, dataset, output)


def _predict_classifier(
    model: str,
    dataset: ClassificationDataset,
    output: Path,
    hints: Hints,
    *,
    batch: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    from logn.predictions.classifier import ClassifierPredictions
    from logn.predictions.predict import predict as run

    metadata = {"model": Path(model).name, "model_words": [model, *kept_words(HOW_IT_RUNS)]}
    with progress("Predicting", total=len(dataset)) as advance:
        run(
            model, dataset, output, batch=batch, overwrite=overwrite, metadata=metadata, progress=advance, **vars(hints)
        )
    written = ClassifierPredictions.load(output)
    rows, columns = written.logits.shape
    accuracy = float((written.logits.argmax(axis=1) == written.labels).mean())
    if as_json:
        classes = {"columns": columns, "class_names": written.head.names, "top-1": accuracy}
        print_json({"predictions": output, "images": rows, "of": len(dataset), **classes})
        return
    echo(
        f"{output}: {count_of(rows, 'image')}, {columns:,} logits each, with labels and paths; top-1 "
        f"{100 * accuracy:.1f} %."
    )
    from logn.data.label_sources import find_labels

    labels = find_labels(dataset.source)
    train = ("--data", f"{labels.path}:train") if labels.has_splits else ("--images", "train")
    counts = ("--counts", f"{labels.path}:train") if labels.has_splits else ()
    words = ("logn", "collect", model, *train, "-o", STATISTICS)
    print_note(f"For statistics of training images, if you have none: {command(*words, keep=HOW_IT_RUNS)}")
    print_note(f"To compare methods on them: {command('logn', 'compare', output, '-s', STATISTICS, *counts)}")


def _report(dataset: DetectionDataset, output: Path, written: int, *, as_json: bool) -> None:
    from logn.predictions.store import Predictions

    store = Predictions(output)
    missing = store.missing(dataset.image_ids).tolist()
    size = sum(file.stat().st_size for file in output.glob("*.safetensors"))
    if as_json:
        counts = {"images": len(store), "of": len(dataset), "run_now": written, "missing": missing}
        values = {"proposals": store.num_proposals, "columns": store.head.width, "bytes": size}
        print_json({"predictions": output, **counts, **values})
        return
    echo(
        f"{output}: {len(store):,} of {len(dataset):,} images ({written:,} run now), {store.num_proposals:,} "
        f"proposals with {store.head.width:,} logits each, {size / 1e6:,.0f} MB"
    )
    if missing:
        shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        print_note(f"Missing: {count_of(len(missing), 'image')} ({shown}). Run the same command again to add them.")


def _print_next(model: str, dataset: DetectionDataset, output: Path) -> None:
    from logn.data.label_sources import find_labels

    labels = find_labels(dataset.annotation_file)
    train = "train.json" if labels.form == "json" else f"{labels.path}:train" if labels.has_splits else "train"
    where = ("--images",)
    words = ("logn", "collect", model, "--data", train, "-o", STATISTICS)
    print_note(f"For statistics of training images, if you have none: {command(*words, keep=(*HOW_IT_RUNS, *where))}")
    compare = command("logn", "compare", output, "-d", dataset.annotation_file, "-s", STATISTICS)
    print_note(f"To compare methods on these predictions: {compare}")
