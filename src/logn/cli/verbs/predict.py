"""`logn predict`: run a detector once over a data set and keep its proposals with all logits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption, command, print_json, print_note, progress
from logn.cli.options.choices import DeviceOption, ForwardBatchOption, ImageFolderOption
from logn.errors import InputError


def predict(
    model: Annotated[Path, typer.Option("--model", "-m", help="Folder that `logn train` wrote.")],
    data: Annotated[
        Path, typer.Option("--data", "-d", help="LVIS or COCO annotation file, or a folder with `test.json`.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the predictions; continued if it is there.")
    ],
    images: ImageFolderOption = None,
    dtype: Annotated[str, typer.Option(help="Of the logits: `float16`, or `float32` for twice the size.")] = "float16",
    batch: ForwardBatchOption = 8,
    device: DeviceOption = "auto",
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run a detector once and keep what it says of every proposal; any method can be scored on that afterwards.

    Annotations are read for the list of images and classes only. A run that was stopped, killed or run out of disk
    goes on where it was. Under torchrun every process writes its own part; the folder is read as one.

    **Examples**

        logn predict --model runs/glyphs --data glyphs/test.json -o predictions

        torchrun --nproc-per-node 8 -m logn.cli.main predict -m runs/lvis -d lvis_v1_val.json --images coco -o lvis
    """
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.evaluate.store.predict import predict as run_detector
    from logn.evaluate.store.prediction_store import PredictionStore
    from logn.logits.fingerprint import fingerprint
    from logn.training.engine.checkpoint import load_detector

    dataset = DetectionDataset(_annotations(data), images)
    detector = load_detector(model, num_classes=dataset.num_classes)
    metadata = {
        "model": model.name,
        "data": dataset.annotation_file.name,
        "images": dataset.images_fingerprint,
        "fingerprint": fingerprint(detector),
    }
    detector.to(_device(device))
    share = len(range(int(os.environ.get("RANK", 0)), len(dataset), int(os.environ.get("WORLD_SIZE", 1))))
    with progress("Predicting", total=share, shown=show_progress) as advance:
        written = run_detector(detector, dataset, output, dtype=dtype, batch=batch, metadata=metadata, progress=advance)
    if int(os.environ.get("RANK", 0)) > 0:
        return  # one process speaks for all
    store = PredictionStore(output)
    size = sum(file.stat().st_size for file in output.glob("part-*/*.bin"))
    result = {
        "predictions": output,
        "images": len(store),
        "of": len(dataset),
        "run_now": written,
        "proposals": store.num_proposals,
        "columns": store.num_columns,
        "bytes": size,
    }
    if json:
        print_json(result)
    else:
        typer.echo(
            f"{output}: {len(store):,} of {len(dataset):,} images ({written:,} run now), {store.num_proposals:,} "
            f"proposals with {store.num_columns:,} logits each, {size / 1e6:,.0f} MB"
        )
        statistics, annotations = "statistics.safetensors", dataset.annotation_file
        where = () if images is None else ("--images", images)
        collect = command("logn", "collect", model, "--data", "train.json", *where, "-o", statistics)
        compare = command("logn", "compare", "-p", output, "-s", statistics, "-a", annotations)
        print_note(f"The statistics of training images, if they are not there yet: {collect}")
        print_note(f"To compare methods on these proposals: {compare} --methods logn:balanced,logn")


def _annotations(data: Path) -> Path:
    if not data.is_dir():
        return data
    if not (data / "test.json").is_file():
        raise InputError(f"Expected `{data}` to be an annotation file or to hold `test.json`, but it does not.")
    return data / "test.json"


def _device(name: str) -> str:
    from logn.training.engine.distributed import choose_device

    chosen = choose_device(name)
    if chosen.type == "cuda" and ":" not in name:
        return f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    return str(chosen)
