"""`logn collect` of models of torch: a run, a detector or a classifier, and images, in; statistics out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from logn.cli.console import JsonOption, ProgressOption, command, count_of, print_json, print_note, progress
from logn.cli.options.choices import (
    DeviceOption,
    SampleRowsOption,
    StatisticsFileOption,
    at_least_one,
)
from logn.cli.options.detectors import (
    ImageSizeOption,
    TrustOption,
    training_images,
)
from logn.cli.options.preprocessing import LikeOption
from logn.cli.paths import check_output
from logn.cli.statistics_summary import print_next, print_statistics, warn_of_doubts
from logn.cli.verbs.collect_models import (
    DATA,
    IMAGES,
    BatchOption,
    MaxImagesOption,
    SkipUnreadableOption,
    SourcesArgument,
)
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.statistics.moments import ClassMoments


def collect_run(
    sources: SourcesArgument,
    output: StatisticsFileOption,
    data: Annotated[Path | None, DATA] = None,
    images: Annotated[Path | None, IMAGES] = None,
    max_images: MaxImagesOption = None,
    batch: BatchOption = None,
    sample_rows: SampleRowsOption = None,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
    image_size: ImageSizeOption = None,
    like: LikeOption = None,
    skip_unreadable: SkipUnreadableOption = False,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run a detector or image classifier over training images; its logits are read where `logn correct` folds."""
    from logn.evaluate.models.correct import choose_images
    from logn.evaluate.models.model_kinds import ImageFiles
    from logn.evaluate.models.onnx_model import LogitHints
    from logn.evaluate.models.open_model import open_model

    (model,) = sources
    at_least_one(max_images=max_images, batch=batch)
    if data is None and images is None:
        raise _without_images(Path(model), output, trust=trust)
    check_output(output, holds="logn.statistics")
    given = {} if image_size is None else {"size": (image_size, image_size)}
    source = open_model(model, LogitHints(), like, given, trust=trust, device=device)
    files = ImageFiles(choose_images(training_images(images, data), max_images), skip_unreadable)
    with progress("Collecting", len(files.items), shown=show_progress) as advance:
        stages = source.collect(files, batch=batch, sample_rows=sample_rows, progress=advance)
    for path in files.unreadable:
        print_note(f"Warning: `{path}` could not be read and was left out.")
    total = len(files.items) - len(files.unreadable)
    if data is not None:
        _name_columns(stages, data)
    if len(stages) > 1:
        _save_stages(stages, output, total, as_json=json)
    else:
        _report(stages[0], output, total, as_json=json)


def _report(moments: ClassMoments, output: Path, images: int, *, as_json: bool) -> None:
    moments.save(output)
    rows, warnings = int(moments.count.max()), warn_of_doubts(moments)
    if as_json:
        result = {"output": output, "images": images, "rows": rows, "num_classes": moments.num_classes}
        print_json({**result, "population": moments.metadata.population, "warnings": warnings})
        return
    print_statistics(output, moments, rows, count_of(images, "image"))
    print_next(output)


def _save_stages(stages: tuple[ClassMoments, ...], output: Path, images: int, *, as_json: bool) -> None:
    """A file for each class layer of a model that has several, such as the stages of a cascade."""
    files = [output.with_suffix(f".{stage}{output.suffix}") for stage in range(len(stages))]
    for path in files:
        check_output(path, holds="logn.statistics")
    for moments, path in zip(stages, files, strict=True):
        moments.save(path)
    if as_json:
        print_json({"outputs": files, "images": images, "rows": [int(moments.count.max()) for moments in stages]})
        return
    for moments, path in zip(stages, files, strict=True):
        print_statistics(path, moments, int(moments.count.max()), count_of(images, "image"))
        print_next(path)


def _name_columns(stages: tuple[ClassMoments, ...], data: Path) -> None:
    """Take the names of the labels for a model that has none, where there is one for each of its classes."""
    from logn.labels.dataset import DetectionDataset
    from logn.labels.training_annotations import find_annotations
    from logn.logits.arrays import NO_CLASS

    if stages[0].metadata.class_names is not None or stages[0].metadata.population == "images":
        return
    names = DetectionDataset(find_annotations(data)).class_names
    for moments in stages:
        known = moments.metadata
        background = None if known.background is None else known.background % moments.num_classes
        classes = [c for c in range(moments.num_classes) if c != background and c not in known.unused]
        if len(classes) != len(names):
            return
        named = dict(zip(classes, names, strict=True)) | ({} if background is None else {background: "background"})
        columns = tuple(named.get(column, NO_CLASS) for column in range(moments.num_classes))
        moments.metadata = known.with_changes(class_names=columns)


def _without_images(model: Path, output: Path, *, trust: bool) -> InputError:
    """What to type for a model that is to see a folder of images."""
    pickle = model.suffix.lower() in (".pt", ".pth")
    more = ("--trust",) if trust or pickle else ()
    typed = command("logn", "collect", model, "--images", "train/", "-o", output, *more)
    return InputError(
        f"Expected `--images` or `--data` with a model (`{model}`), but got neither; for a folder of images: `{typed}`."
    )
