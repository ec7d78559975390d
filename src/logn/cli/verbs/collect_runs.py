"""`logn collect` of trained models of torch: a run or a detector, and images, in; statistics out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, command, count_of, print_json, progress
from logn.cli.options.choices import (
    BiasCorrectionOption,
    DeviceOption,
    Estimator,
    EstimatorOption,
    MomentumOption,
    PopulationOption,
    SampleRowsOption,
    StatisticsFileOption,
    at_least_one,
)
from logn.cli.options.detectors import (
    ImageSizeOption,
    RayOption,
    RaySettings,
    TrustOption,
    WorkersOption,
    is_classifier,
    open_detector,
    ray_settings,
)
from logn.cli.paths import check_output
from logn.cli.statistics_summary import print_next, print_statistics, warn_of_doubts
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.statistics.moments import ClassMoments

    # Of one statistics file, or of one for each stage.
    Collect = Callable[..., Any]
from logn.cli.verbs.collect_models import DATA, IMAGES, BatchOption, MaxImagesOption, SourcesArgument

TEST_PROPOSALS, SAMPLED_REGIONS = "test-proposals", "sampled-regions"


class Stages(StrEnum):
    """Which logits of a cascade."""

    average = "average"
    each = "each"


def collect_run(
    sources: SourcesArgument,
    output: StatisticsFileOption,
    data: Annotated[Path | None, DATA] = None,
    images: Annotated[Path | None, IMAGES] = None,
    max_images: MaxImagesOption = None,
    batch: BatchOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    population: PopulationOption = None,
    stages: Annotated[
        Stages, typer.Option(help="For a cascade: statistics of the averaged logits, or a file for each stage.")
    ] = Stages.average,
    sampler: Annotated[
        str, typer.Option(help="For sampled regions: how often images are shown, as `logn train --sampler`.")
    ] = "random",
    repeat_threshold: Annotated[
        float, typer.Option(help="For sampled regions: as `logn train --repeat-threshold`.")
    ] = 0.001,
    estimator: EstimatorOption = Estimator.exact,
    momentum: MomentumOption = None,
    bias_correction: BiasCorrectionOption = False,
    sample_rows: SampleRowsOption = None,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
    image_size: ImageSizeOption = None,
    use_ray: RayOption = False,
    workers: WorkersOption = None,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run a detector or image classifier over training images, held out and thinned as they were in its training."""
    from logn.statistics.estimators import Estimator as Estimation

    (model,) = map(Path, sources)
    at_least_one(max_images=max_images, batch=batch)
    if data is None and (images is None or not _needs_no_labels(model, population, estimator)):
        raise _without_data(model, images, trust=trust)
    check_output(output, holds="logn.statistics")
    how = Estimation(estimator.value, momentum, bias_correction)
    prepare = _preparation(model, population, sampler, repeat_threshold, stages, seed, trust, image_size, batch)
    if use_ray:
        _check_ray(is_classifier(model), population, stages, estimator)
    cluster = ray_settings(use_ray, workers, model, trust=trust, image_size=image_size, device=device)
    if cluster is not None:
        prepare = partial(_prepare_over_ray, cluster, trust=trust, image_size=image_size, batch=batch or 8)
    run, available = prepare(model, data, images, device)
    total = available if max_images is None else min(max_images, available)
    with progress("Collecting", total, shown=show_progress) as advance:
        found = run(max_images=max_images, seed=seed, sample_rows=sample_rows, estimator=how, progress=advance)
    if stages is Stages.each:
        _save_stages(found, output, total, as_json=json)
        return
    moments: ClassMoments = found
    moments.save(output)
    rows, warnings = int(moments.count.max()), warn_of_doubts(moments)
    if json:
        print_json(
            {
                "output": output,
                "images": total,
                "rows": rows,
                "num_classes": moments.num_classes,
                "warnings": warnings,
            }
        )
    else:
        print_statistics(output, moments, rows, count_of(total, "image"))
        print_next(output)


def _preparation(
    model: Path,
    population: str | None,
    sampler: str,
    repeat_threshold: float,
    stages: Stages,
    seed: int,
    trust: bool,
    image_size: int | None,
    batch: int | None,
) -> Callable[..., tuple[Collect, int]]:
    """How the model is to be run: what opens it, with the options that fit it."""
    classifier = is_classifier(model)
    if classifier and stages is Stages.each:
        raise InputError("Expected `--stages each` only for a cascade, but got a classifier.")
    if _samples_regions(population, is_classifier=classifier):
        return partial(_prepare_sampled, sampler, repeat_threshold, seed, stages)
    if sampler != "random":
        raise InputError("Expected `--sampler` only with `--population sampled-regions`, but got no such.")
    if classifier:
        return partial(_prepare_classifier, batch=batch or 8)
    return partial(_prepare_detector, trust, image_size, stages=stages, batch=batch or 8)


def _check_ray(classifier: bool, population: str | None, stages: Stages, estimator: Estimator) -> None:
    """Refuse what workers cannot do block by block."""
    if classifier:
        raise InputError("Expected `--ray` with a detector, but got an image classifier; `logn.ray.collect` takes one.")
    given = {"population": population or TEST_PROPOSALS, "stages": stages.value, "estimator": estimator.value}
    taken = {"population": TEST_PROPOSALS, "stages": Stages.average.value, "estimator": Estimator.exact.value}
    for option, value in given.items():
        if value != taken[option]:
            raise InputError(f"Expected `--{option} {taken[option]}` with `--ray`, but got {value}.")


def _samples_regions(population: str | None, *, is_classifier: bool) -> bool:
    if population is not None and is_classifier:
        raise InputError(f"Expected `--population` only for a detector's run, but got {population} for a classifier.")
    if population not in (None, TEST_PROPOSALS, SAMPLED_REGIONS):
        raise InputError(
            f"Expected `--population` of a run to be {TEST_PROPOSALS} or {SAMPLED_REGIONS}, but got {population!r}."
        )
    return population == SAMPLED_REGIONS


def _prepare_sampled(
    sampler: str,
    repeat_threshold: float,
    seed: int,
    stages: Stages,
    model: Path,
    data: Path,
    images: Path | None,
    device: str,
) -> tuple[Collect, int]:
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.datasets.samplers import make_sampler
    from logn.datasets.training_annotations import find_annotations
    from logn.evaluate.store.detector_statistics import collect_sampled_statistics
    from logn.training.detectors.config import DetectorTrainingConfig
    from logn.training.engine.checkpoint import Checkpoint, load_detector
    from logn.training.engine.distributed import choose_device

    dataset = DetectionDataset(find_annotations(data), images)
    detector = load_detector(model, num_classes=dataset.num_classes)
    detector.to(choose_device(device))
    checkpoint = Checkpoint.load(model)
    settings, preset = checkpoint.settings, checkpoint.run.get("preset")
    config = DetectorTrainingConfig(
        data, model, model=settings.model, preset=preset, image_size=settings.image_size, sampler=sampler
    )
    available = len(make_sampler(sampler, dataset, threshold=repeat_threshold).indices(0, seed))

    def collect(**options: Any) -> Any:
        found = collect_sampled_statistics(
            detector, dataset, config.augmentation, sampler=sampler, repeat_threshold=repeat_threshold, **options
        )
        if stages is Stages.each:
            return found
        if len(found) > 1:
            raise InputError(
                "Expected a detector of one stage for sampled regions, but got a cascade, whose stages sample different"
                " ones; collect each (`--stages each`)."
            )
        return found[0]

    return collect, available


def _save_stages(found: tuple[ClassMoments, ...], output: Path, images: int, *, as_json: bool) -> None:
    from logn.evaluate.store.stage_corrections import stage_file

    files = [stage_file(output, stage) for stage in range(len(found))]
    for moments, path in zip(found, files, strict=True):
        moments.save(path)
    if as_json:
        print_json({"outputs": files, "images": images, "rows": [int(moments.count.max()) for moments in found]})
        return
    for moments, path in zip(found, files, strict=True):
        print_statistics(path, moments, int(moments.count.max()), count_of(images, "image"))
        print_next(path)


def _needs_no_labels(model: Path, population: str | None, estimator: Estimator) -> bool:
    """Whether a folder of images is enough: labels name what a classifier held out, sampled regions and positives."""
    labelled = population == SAMPLED_REGIONS or estimator in (Estimator.positives, Estimator.positives_correct)
    return not labelled and not is_classifier(model)


@dataclass(frozen=True)
class _Folder:
    """The images of a folder, which nobody labelled: the classes are those that the detector names."""

    annotation_file: Path
    paths: tuple[Path, ...]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read_image(self, index: int) -> Any:
        """The pixels of an image."""
        from logn.datasets.image_file import read_image

        return read_image(self.paths[index])


def _unlabelled(folder: Path, detector: Any) -> _Folder:
    from logn.logits.image_folder import find_images

    names = getattr(detector, "class_names", None)
    if names is None:
        raise InputError(
            "Expected `--data`, labels that name the classes, with a model that does not name them, but got none."
        )
    return _Folder(folder, tuple(find_images(folder)), tuple(names))


def _without_data(model: Path, images: Path | None, *, trust: bool) -> InputError:
    """What to type for a model that is to see a folder of images."""
    pickle = model.suffix.lower() in (".pt", ".pth")
    more = ("--trust",) if trust or pickle else ()
    output = "corrected.pt" if pickle else "corrected"
    typed = command("logn", "correct", model, "--images", images or "train/", "-o", output, *more)
    return InputError(
        f"Expected `--data` with a trained run (`{model}`), but got none; `{typed}` takes a folder of "
        "images, corrects the model in one step and keeps its statistics."
    )


def _prepare_detector(
    trust: bool,
    image_size: int | None,
    model: Path,
    data: Path | None,
    images: Path | None,
    device: str,
    *,
    stages: Stages,
    batch: int,
) -> tuple[Collect, int]:
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.datasets.training_annotations import find_annotations
    from logn.evaluate.store.detector_statistics import collect_detector_statistics, collect_stage_statistics

    labelled = None if data is None else DetectionDataset(find_annotations(data), images)
    detector = open_detector(model, trust=trust, image_size=image_size, device=device)
    dataset: Any = labelled if images is None or labelled is not None else _unlabelled(images, detector)
    collect: Any = collect_detector_statistics if stages is Stages.average else collect_stage_statistics
    return partial(collect, detector, dataset, batch=batch), len(dataset)


def _prepare_over_ray(
    cluster: RaySettings,
    model: Path,
    data: Path,
    images: Path | None,
    device: str,
    *,
    trust: bool,
    image_size: int | None,
    batch: int,
) -> tuple[Collect, int]:
    """The same images as in one process, over Ray; opened here too, so that what does not fit is refused at once."""
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.datasets.training_annotations import find_annotations
    from logn.evaluate.ray_data.collect import collect
    from logn.evaluate.ray_data.predict import image_rows
    from logn.evaluate.store.detector_statistics import drawn_images
    from logn.evaluate.store.predict import match_detector

    dataset = DetectionDataset(find_annotations(data), images)
    detector = open_detector(model, trust=trust, image_size=image_size, device="cpu")
    names = match_detector(detector, dataset.class_names).model_names

    def run(*, max_images: int | None, seed: int, estimator: object, **options: Any) -> ClassMoments:
        rows = image_rows(dataset, drawn_images(dataset, max_images, seed))
        return collect(rows, cluster.make_detector, class_names=names, batch=batch, **cluster.resources, **options)

    return run, len(dataset)


def _prepare_classifier(
    model: Path, data: Path, images: Path | None, device: str, *, batch: int
) -> tuple[Collect, int]:
    from logn.datasets.open_images import open_images
    from logn.evaluate.classification.classifier_logits import classifier_statistics
    from logn.training.classifiers.train_classifier import load_classifier
    from logn.training.engine.distributed import choose_device

    classifier = load_classifier(model).to(choose_device(device))
    dataset = open_images(data, "train", root=images, **(classifier.data_options or {}))
    return partial(classifier_statistics, classifier, dataset, batch=batch), len(dataset)
