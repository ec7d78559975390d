"""`logn predict`: run a trained model once over a data set and keep its logits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, command, print_json, print_note, progress
from logn.cli.kinds import Kind, formerly, verb_of, with_old_spellings
from logn.cli.options.choices import (
    BACKGROUND_INDEX,
    LABELLED_IMAGES,
    ActivationOption,
    Background,
    BackgroundOption,
    DeviceOption,
    ImageFolderOption,
    SampleRowsOption,
    at_least_one,
)
from logn.cli.options.classifier_inputs import COUNTS_FILE, LAYER_FILE, STATISTICS_FILE
from logn.cli.options.detectors import (
    MODEL,
    ImageSizeOption,
    RayOption,
    TrustOption,
    WorkersOption,
    is_classifier,
    open_detector,
    ray_settings,
)
from logn.cli.options.preprocessing import (
    ChannelsOption,
    LikeOption,
    MaxValueOption,
    MeanOption,
    PadValueOption,
    ResizeOption,
    SizeOption,
    StdOption,
    given_preprocessing,
)
from logn.cli.verbs.predict_store import store_predictions
from logn.errors import InputError
from logn.labels.source import find_labels, with_split

if TYPE_CHECKING:
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.datasets.labelled_images import LabelledImages
    from logn.training.classifiers.models import Classifier

_STATISTICS = "statistics.safetensors"

ModelArgument = Annotated[Path, typer.Argument(help=MODEL), formerly("--model", "-m")]
DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        "-d",
        help="Detectors: LVIS or COCO file, folder with `test.json`, YOLO `data.yaml` or VOC folder (its split: "
        "`data.yaml:test`, by default `val`). Classifiers: " + LABELLED_IMAGES,
    ),
]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", help="Folder to write; that of a detector is continued if it is there.")
]
DtypeOption = Annotated[str, typer.Option(help="Of the logits: `float16`, or `float32` for twice the size.")]
BatchOption = Annotated[
    int | None, typer.Option(help="Images per forward pass; default 8 for detectors, 256 for classifiers.")
]
NamesOption = Annotated[
    Path | None,
    typer.Option(help="One class name a line: for list files, and for ONNX files that do not name their classes."),
    formerly("--classes"),
]


def predict_detector(
    model: ModelArgument,
    data: DataOption,
    output: OutputOption,
    images: ImageFolderOption = None,
    dtype: DtypeOption = "float16",
    batch: BatchOption = None,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
    image_size: ImageSizeOption = None,
    use_ray: RayOption = False,
    workers: WorkersOption = None,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run a detector once and keep what it says of every proposal."""
    from logn.datasets.detection_dataset import DetectionDataset

    at_least_one(batch=batch)
    cluster = ray_settings(use_ray, workers, model, trust=trust, image_size=image_size, device=device)
    dataset = DetectionDataset(_annotations(data), images)
    detector = open_detector(model, trust=trust, image_size=image_size, device="cpu" if cluster else device)
    if store_predictions(detector, model, dataset, output, dtype, batch, show_progress, json, cluster):
        how = (*(("--trust",) if trust else ()), *(("--image-size", image_size) if image_size else ()))
        where = () if images is None else ("--images", images)
        options = (*how, "--data", _training_data(dataset), *where, "-o", _STATISTICS)
        _print_next(dataset, output, command("logn", "collect", model, *options))


def predict_onnx(
    model: ModelArgument,
    data: DataOption,
    output: OutputOption,
    images: ImageFolderOption = None,
    dtype: DtypeOption = "float16",
    batch: BatchOption = None,
    class_names: NamesOption = None,
    like: LikeOption = None,
    size: SizeOption = None,
    resize: ResizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    max_value: MaxValueOption = None,
    channels: ChannelsOption = None,
    pad_value: PadValueOption = None,
    background: BackgroundOption = Background.none,
    activation: ActivationOption = None,
    tensor: Annotated[list[str] | None, typer.Option(help="The logits' name, where the search finds several.")] = None,
    anchors: Annotated[
        Path | None, typer.Option(help="Anchors of an SSD: .npy, a row of cx, cy, w, h from 0 to 1 for each box.")
    ] = None,
    provider: Annotated[str, typer.Option(help="Where to run, by onnxruntime's name.")] = "CPUExecutionProvider",
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run a detector in an ONNX file once and keep what it says of every box."""
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.evaluate.detectors.onnx import OnnxDetector
    from logn.logits.onnx.file import read_onnx
    from logn.logits.onnx.image_input import settle

    at_least_one(batch=batch)
    dataset = DetectionDataset(_annotations(data), images)
    given = given_preprocessing(size, resize, mean, std, max_value, channels, pad_value)
    said = any(value is not None for value in given.values())
    detector = OnnxDetector(
        model,
        like=like,
        preprocessing=settle(read_onnx(model), like, **given)[0] if said else None,
        class_names=class_names,
        activation=activation.value if activation else None,
        background=BACKGROUND_INDEX[background],
        tensor=tensor or None,
        anchors=anchors,
        provider=provider,
    )
    if store_predictions(detector, model, dataset, output, dtype, batch, show_progress, json):
        options = () if like is None else ("--like", like)
        _print_next(
            dataset, output, command("logn", "collect", model, "--images", "train/", *options, "-o", _STATISTICS)
        )


def _training_data(dataset: DetectionDataset) -> str:
    found = find_labels(dataset.annotation_file)
    return "train.json" if found.form == "json" else f"{found.path}:train" if found.has_splits else "train"


def _print_next(dataset: DetectionDataset, output: Path, collect: str) -> None:
    compare = command("logn", "compare", output, "-s", _STATISTICS, "-a", dataset.annotation_file)
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
    class_names: NamesOption = None,
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
ONNX = Kind("ONNX detector", "a detector in an ONNX file", predict_onnx)


@verb_of(DETECTOR, CLASSIFIER, ONNX, common="Any model")
def predict(model: ModelArgument) -> Kind:
    """Run a trained model once and keep its logits; any method can be scored on them afterwards.

    **Detectors**: what the model says of every proposal, or of every anchor or query; of `logn train` and of other
    frameworks. How these make detections of it is kept, and done by `logn evaluate` and `logn compare`. Annotations are
    read for the list of images and classes only. A run that was stopped, killed or run out of disk goes on where it
    was. Under torchrun every process writes its own part; the folder is read as one.

    **Detectors in ONNX files**: the same of every box, with the images prepared as --like or the file itself says.
    Classes are matched with those of the annotations by name.

    **Image classifiers**: SPLIT_logits.npy and SPLIT_labels.npy, the training images of each class (class_counts.json),
    the weight and bias of a linear class layer (class_layer.safetensors, for tau-norm) and, from the training images,
    the statistics of the logits (statistics.safetensors): all that `logn compare` and `logn fit` take. Training images
    are held out and thinned as they were in the training.

    **Examples**

        logn predict runs/glyphs --data glyphs/test.json -o predictions

        logn predict best.pt --trust --data data.yaml -o predictions

        logn predict my_models:build --data val.json --images val -o predictions

        logn predict yolox_nano.onnx --like yolox --class-names coco.txt --data val.json -o predictions

        logn predict runs/softmax --data classes -o logits

        logn predict runs/lt -d ImageNet_LT_train.txt --images imagenet --split test -o logits

        torchrun --nproc-per-node 8 -m logn.cli.main predict runs/lvis -d lvis_v1_val.json --images coco -o lvis
    """
    if model.suffix.lower() == ".onnx":
        return ONNX
    return CLASSIFIER if is_classifier(model) else DETECTOR


predict_classifier = with_old_spellings(run_classifier)


def _annotations(data: Path) -> Path:
    if (data / "test.json").is_file():
        return data / "test.json"
    found = find_labels(data)
    if found.path.is_dir() and found.form == "json":
        raise InputError(
            f"Expected `{data}` to be annotations or to hold `test.json`, a `data.yaml` or folders of Pascal VOC, but "
            "it does not."
        )
    return found.path if found.form == "json" else with_split(data, "val")


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
