"""`logn predict`: run a trained model once over a data set and keep its logits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, command, print_note
from logn.cli.kinds import Kind, verb_of
from logn.cli.options.choices import (
    BACKGROUND_INDEX,
    ActivationOption,
    Background,
    BackgroundOption,
    DeviceOption,
    ImageFolderOption,
    at_least_one,
)
from logn.cli.options.detectors import (
    ImageSizeOption,
    TrustOption,
    open_detector,
)
from logn.cli.options.prediction import (
    BatchOption,
    DataOption,
    DtypeOption,
    ModelArgument,
    NamesOption,
    OutputOption,
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
    assumptions,
    given_preprocessing,
)
from logn.cli.verbs.predict_store import store_predictions
from logn.commands import how_it_runs
from logn.errors import InputError
from logn.labels.sources import find_labels, with_split

if TYPE_CHECKING:
    from logn.labels.dataset import DetectionDataset

_STATISTICS = "statistics.safetensors"


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
    class_names: NamesOption = None,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run a detector once and keep what it says of every proposal."""
    from logn.labels.dataset import DetectionDataset

    at_least_one(batch=batch)
    how: dict[str, Any] = {"trust": trust, "image_size": image_size, "class_names": class_names}
    dataset = DetectionDataset(_annotations(data), images)
    detector = open_detector(model, device=device, **how)
    how_much = {"dtype": dtype, "batch": batch}
    if store_predictions(detector, model, dataset, output, how_much, show_progress, json):
        words = ("logn", "collect", model, "--data", _training_data(dataset), "-o", _STATISTICS)
        _print_next(detector, dataset, output, command(*words, keep=(*how_it_runs(model), "--images")))


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
    from logn.evaluate.models.onnx import OnnxDetector
    from logn.labels.dataset import DetectionDataset
    from logn.logits.onnx.file import read_onnx
    from logn.logits.onnx.images import settle

    at_least_one(batch=batch)
    dataset = DetectionDataset(_annotations(data), images)
    given = given_preprocessing(size, resize, mean, std, max_value, channels, pad_value)
    said = any(value is not None for value in given.values())
    settled, description = settle(read_onnx(model), like, **given)
    detector = OnnxDetector(
        model,
        like=like,
        preprocessing=settled if said else None,
        class_names=class_names,
        activation=activation.value if activation else None,
        background=BACKGROUND_INDEX[background],
        tensor=tensor or None,
        anchors=anchors,
        provider=provider,
    )
    how_much = {"dtype": dtype, "batch": batch}
    if store_predictions(detector, model, dataset, output, how_much, show_progress, json):
        for sentence in assumptions(model, given, settled, description, size_found=False):
            print_note(f"Warning: {sentence}")
        words = ("logn", "collect", model, "--images", "train/", "-o", _STATISTICS)
        _print_next(detector, dataset, output, command(*words, keep=how_it_runs(model)))


def _training_data(dataset: DetectionDataset) -> str:
    found = find_labels(dataset.annotation_file)
    return "train.json" if found.form == "json" else f"{found.path}:train" if found.has_splits else "train"


def _print_next(detector: Any, dataset: DetectionDataset, output: Path, collect: str) -> None:
    from logn.evaluate.store.predict import match_detector

    missing = ["--allow-missing"] if match_detector(detector, dataset.class_names).only_in_labels else []
    compare = command("logn", "compare", output, "-s", _STATISTICS, "-a", dataset.annotation_file, *missing)
    print_note(f"The statistics of training images, if they are not there yet: {collect}")
    print_note(f"To compare methods on these proposals: {compare}")


DETECTOR = Kind("Detector", "a detector", predict_detector)
ONNX = Kind("ONNX detector", "a detector in an ONNX file", predict_onnx)


@verb_of(DETECTOR, ONNX, common="Any model")
def predict(model: ModelArgument) -> Kind:
    """Run a trained model once and keep its logits; any method can be scored on them afterwards.

    **Detectors**: what the model says of every proposal, or of every anchor or query; of any framework that
    LogN knows. How these make detections of it is kept, and done by `logn evaluate` and `logn compare`. Annotations are
    read for the list of images and classes only. A run that was stopped, killed or run out of disk goes on where it
    was. Under torchrun every process writes its own part; the folder is read as one.

    **Detectors in ONNX files**: the same of every box, with the images prepared as --like or the file itself says.
    Classes are matched with those of the annotations by name.

    **Examples**

        logn predict best.pt --trust --data data.yaml -o predictions

        logn predict my_models:build --data val.json --images val -o predictions

        logn predict yolox_nano.onnx --like yolox --class-names coco.txt --data val.json -o predictions

        torchrun --nproc-per-node 8 -m logn predict my_models:build -d lvis_v1_val.json --images coco -o lvis
    """
    if model.suffix.lower() == ".onnx":
        return ONNX
    return DETECTOR


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
