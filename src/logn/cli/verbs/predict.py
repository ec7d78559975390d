"""`logn predict`: run a trained detector once over a data set and keep its boxes and logits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logn.base.commands import HOW_IT_RUNS, kept_words
from logn.cli import options
from logn.cli.console import command, count_of, echo, print_json, print_note, progress
from logn.data.label_sources import find_labels, with_split

if TYPE_CHECKING:
    from logn.data.dataset import DetectionDataset

STATISTICS = "statistics.safetensors"


def predict(
    model: options.Model,
    data: options.Data,
    output: options.Output,
    images: options.Images = None,
    like: options.Like = None,
    size: options.Size = None,
    background: options.BackgroundOption = None,
    activation: options.ActivationOption = None,
    tensor: options.Tensor = None,
    class_names: options.ClassNames = None,
    batch: options.Batch = None,
    device: options.Device = "auto",
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    """Run a trained detector once and keep its boxes and logits, for logn compare.

    Of the annotations only the images and the class names are read. A stopped run
    resumes where it was. Under torchrun every process writes its own part; the
    folder is read as one.

    Examples:
      logn predict best.pt --trust --data data.yaml -o predictions
      logn predict yolox.onnx --like yolox --class-names coco.txt --data val.json -o predictions
      logn predict my_models:build --data val.json --images val/ -o predictions
    """
    from logn.data.dataset import DetectionDataset
    from logn.models.open import open_model
    from logn.models.opened import fingerprint_of
    from logn.predictions.predict import match_detector
    from logn.predictions.predict import predict as run

    dataset = DetectionDataset(with_split(data, "val"), images)
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
    detector = open_model(model, hints).detector
    match = match_detector(detector, dataset.class_names)
    metadata = {
        "model": Path(model).name,
        "model_words": [model, *kept_words(HOW_IT_RUNS)],
        "data": dataset.annotation_file.name,
        "images": dataset.images_fingerprint,
        "fingerprint": fingerprint_of(detector),
    }
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    given: dict[str, Any] = {} if batch is None else {"batch": batch}
    with progress("Predicting", total=len(range(rank, len(dataset), world))) as advance:
        written = run(detector, dataset, output, metadata=metadata, progress=advance, **given)
    if rank > 0:  # one process prints for all
        return
    _report(dataset, output, written, as_json=json)
    if not json:
        if match.describe():
            print_note(match.describe())
        _print_next(model, data, dataset, output)


def _report(dataset: DetectionDataset, output: Path, written: int, *, as_json: bool) -> None:
    from logn.predictions.store import PredictionStore

    store = PredictionStore(output)
    missing = store.missing(dataset.image_ids).tolist()
    size = sum(file.stat().st_size for file in output.glob("part-*/*.bin"))
    if as_json:
        counts = {"images": len(store), "of": len(dataset), "run_now": written, "missing": missing}
        values = {"proposals": store.num_proposals, "columns": store.num_columns, "bytes": size}
        print_json({"predictions": output, **counts, **values})
        return
    echo(
        f"{output}: {len(store):,} of {len(dataset):,} images ({written:,} run now), {store.num_proposals:,} "
        f"proposals with {store.num_columns:,} logits each, {size / 1e6:,.0f} MB"
    )
    if missing:
        shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        print_note(f"Missing: {count_of(len(missing), 'image')} ({shown}). Run the same command again to add them.")


def _print_next(model: str, data: Path, dataset: DetectionDataset, output: Path) -> None:
    labels = find_labels(dataset.annotation_file)
    train = "train.json" if labels.form == "json" else f"{labels.path}:train" if labels.has_splits else "train"
    where = ("--images",)
    words = ("logn", "collect", model, "--data", train, "-o", STATISTICS)
    print_note(f"For statistics of training images, if you have none: {command(*words, keep=(*HOW_IT_RUNS, *where))}")
    compare = command("logn", "compare", output, "-d", dataset.annotation_file, "-s", STATISTICS)
    print_note(f"To compare methods on these predictions: {compare}")
