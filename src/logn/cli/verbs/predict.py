"""`logn predict`: run a trained model once over a data set and keep its logits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, command, print_json, print_note, progress
from logn.cli.kinds import Kind, formerly, verb_of, with_old_spellings
from logn.cli.options.choices import (
    LABELLED_IMAGES,
    DeviceOption,
    ImageFolderOption,
    ListNamesOption,
    SampleRowsOption,
    at_least_one,
)
from logn.cli.options.classifier_inputs import COUNTS_FILE, LAYER_FILE, STATISTICS_FILE
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.datasets.labelled_images import LabelledImages
    from logn.training.classifiers.models import Classifier

ModelArgument = Annotated[Path, typer.Argument(help="Folder that `logn train` wrote."), formerly("--model", "-m")]
DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        "-d",
        help="Detectors: LVIS or COCO annotation file, or a folder with `test.json`. Classifiers: " + LABELLED_IMAGES,
    ),
]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", help="Folder to write; that of a detector is continued if it is there.")
]
BatchOption = Annotated[
    int | None, typer.Option(help="Images per forward pass; default 8 for detectors, 256 for classifiers.")
]


def predict_detector(
    model: ModelArgument,
    data: DataOption,
    output: OutputOption,
    images: ImageFolderOption = None,
    dtype: Annotated[str, typer.Option(help="Of the logits: `float16`, or `float32` for twice the size.")] = "float16",
    stage_correction: Annotated[
        list[Path] | None,
        typer.Option(
            help="A correction for each stage of a cascade, in their order; their logits are corrected before they are"
            " averaged."
        ),
    ] = None,
    batch: BatchOption = None,
    device: DeviceOption = "auto",
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run a detector once and keep what it says of every proposal."""
    from logn.calibrators.class_affine import ClassAffine
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.evaluate.store.predict import predict as run_detector
    from logn.evaluate.store.prediction_store import PredictionStore
    from logn.evaluate.store.stage_corrections import correct_stages
    from logn.logits.fingerprint import fingerprint
    from logn.training.engine.checkpoint import load_detector

    at_least_one(batch=batch)
    dataset = DetectionDataset(_annotations(data), images)
    detector = load_detector(model, num_classes=dataset.num_classes)
    metadata: dict[str, Any] = {
        "model": model.name,
        "data": dataset.annotation_file.name,
        "images": dataset.images_fingerprint,
        "fingerprint": fingerprint(detector),
    }
    if stage_correction:
        metadata["fingerprint"] = correct_stages(detector, [ClassAffine.load(path) for path in stage_correction])
        metadata["stage_corrections"] = [path.name for path in stage_correction]
    detector.to(_device(device))
    share = len(range(int(os.environ.get("RANK", 0)), len(dataset), int(os.environ.get("WORLD_SIZE", 1))))
    with progress("Predicting", total=share, shown=show_progress) as advance:
        written = run_detector(
            detector,
            dataset,
            output,
            dtype=dtype,
            batch=8 if batch is None else batch,
            metadata=metadata,
            progress=advance,
        )
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
        compare = command("logn", "compare", output, "-s", statistics, "-a", annotations)
        print_note(f"The statistics of training images, if they are not there yet: {collect}")
        print_note(f"To compare methods on these proposals: {compare} --methods logn:balanced,logn")


def run_classifier(
    model: ModelArgument,
    data: DataOption,
    output: OutputOption,
    images: ImageFolderOption = None,
    split: Annotated[
        list[str] | None, typer.Option(help="`train`, `dev` or `test`; can be repeated. Default: train and test.")
    ] = None,
    class_names: ListNamesOption = None,
    batch: BatchOption = None,
    sample_rows: SampleRowsOption = None,
    device: DeviceOption = "auto",
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run an image classifier once and keep its logits, as `logn predict` does."""
    from logn.datasets.open_images import SPLITS, open_images
    from logn.evaluate.classification.classifier_logits import check_classes
    from logn.training.classifiers.train_classifier import load_classifier
    from logn.training.engine.distributed import choose_device

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
    typer.echo(f"{output}: logits of {classifier.num_classes} classes for {total} images.")
    compare = command("logn", "compare", output)
    print_note(f"To compare methods on them: {compare} --methods logn,logn:balanced,loga")


DETECTOR = Kind("Detector", "a detector", predict_detector)
CLASSIFIER = Kind("Image classifier", "an image classifier", run_classifier)


@verb_of(DETECTOR, CLASSIFIER, common="Any model")
def predict(model: ModelArgument) -> Kind:
    """Run a trained model once and keep its logits; any method can be scored on them afterwards.

    **Detectors**: what the model says of every proposal. Annotations are read for the list of images and classes only.
    A run that was stopped, killed or run out of disk goes on where it was. Under torchrun every process writes its own
    part; the folder is read as one.

    **Image classifiers**: SPLIT_logits.npy and SPLIT_labels.npy, the training images of each class (class_counts.json),
    the weight and bias of a linear class layer (class_layer.safetensors, for tau-norm) and, from the training images,
    the statistics of the logits (statistics.safetensors): all that `logn compare` and `logn fit` take. Training images
    are held out and thinned as they were in the training.

    **Examples**

        logn predict runs/glyphs --data glyphs/test.json -o predictions

        logn predict runs/softmax --data classes -o logits

        logn predict runs/lt -d ImageNet_LT_train.txt --images imagenet --split test -o logits

        torchrun --nproc-per-node 8 -m logn.cli.main predict runs/lvis -d lvis_v1_val.json --images coco -o lvis
    """
    from logn.training.engine.checkpoint import stored_kind

    return CLASSIFIER if stored_kind(model) == "classifier" else DETECTOR


predict_classifier = with_old_spellings(run_classifier)


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
    from logn.datasets.glyphs.shards import write_json
    from logn.files import write_safetensors

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

    from logn.evaluate.classification.classifier_logits import classifier_logits, logits_and_statistics
    from logn.files import atomic_path

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
