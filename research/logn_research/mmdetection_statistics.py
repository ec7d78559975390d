"""Statistics of an MMDetection detector over training images, as LogN takes them and as the authors' code does.

Nothing is registered with the framework here; `logn_research.mmdetection` has the losses and heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import barrier, is_main_process

from logn.callbacks.mmdetection import save_maps, training_images
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.layer import LogitLayer, count_columns, find_modules, fingerprint, unwrap
from logn.models.locate import locate_logits
from logn.models.torch.record import collect_moments
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments
from logn_research.estimators import MovingAverage


def load_or_collect(
    runner: Any, path: str, num_batches: int | None = None, *, official: bool = False, reuse: bool = True
) -> tuple[ClassMoments, ...]:
    """Read the statistics of each stage where their files exist; else collect and write them.

    Args:
        runner: MMEngine's, with the detector and its checkpoint.
        path: File of the statistics; a cascade has one per stage, with the stage's number before the suffix.
        num_batches: Collect from so many batches only.
        official: As in `collect_statistics`.
        reuse: Whether to read existing files; otherwise they are written anew.
    """
    files = stage_files(path, locate_logits(runner.model).num_stages)
    if reuse and all(file.is_file() for file in files):
        moments = tuple(map(ClassMoments.load, files))
        population = moments[0].head.population
        if official and "moving average" not in (population or ""):
            raise InputError(
                f"{files[0]} has statistics of {population}, not the authors'; give --statistics another name."
            )
        return moments
    moments = collect_statistics(runner, num_batches, official=official)
    if is_main_process():
        files[0].parent.mkdir(parents=True, exist_ok=True)
        for stage, file in zip(moments, files, strict=True):
            stage.save(file)
    return moments


def collect_statistics(
    runner: Any, num_batches: int | None = None, *, official: bool = False
) -> tuple[ClassMoments, ...]:
    """Statistics of each stage over the training images of a runner's configuration.

    Args:
        runner: MMEngine's, with the detector and its checkpoint.
        num_batches: Collect from so many batches only.
        official: Take the regions that training samples from augmented images, by `official_statistics`, instead of
            all test proposals.
    """
    runner.load_or_resume()
    model: Any = unwrap(runner.model)
    layer = locate_logits(model)
    if official:
        loader = runner.build_dataloader({**runner.cfg.train_dataloader, "batch_size": 1})
        return official_statistics(model, itertools.islice(loader, num_batches), layer)
    loader = runner.build_dataloader(training_images(runner.cfg.train_dataloader, runner.cfg.test_dataloader))
    with _nothing_kept(model):
        return collect_moments(model, layer, itertools.islice(loader, num_batches), model.test_step)


@contextmanager
def _nothing_kept(model: Any) -> Iterator[None]:
    """Set the score threshold of a two-stage detector above 1: its boxes and masks are not needed."""
    limits = getattr(getattr(model, "roi_head", None), "test_cfg", {})
    threshold = limits.get("score_thr")
    if threshold is None:
        yield
        return
    limits["score_thr"] = 2.0
    try:
        yield
    finally:
        limits["score_thr"] = threshold


def save_stage_maps(maps: Sequence[ClassAffine], path: str) -> list[str]:
    """Write the map of each stage from the first process; all get the names of the files once they are there."""
    if is_main_process():
        save_maps(maps if len(maps) > 1 else maps[0], path)
    barrier()
    return [str(file) for file in stage_files(path, len(maps))]


def stage_files(path: str, stages: int) -> list[Path]:
    """The file, or one per stage, with the stage's number before the suffix.

    Example:
        >>> [file.name for file in stage_files("runs/map.safetensors", 2)]
        ['map.0.safetensors', 'map.1.safetensors']
    """
    file = Path(path)
    return [file] if stages == 1 else [file.with_suffix(f".{stage}{file.suffix}") for stage in range(stages)]


def official_statistics(
    model: Any, loader: Iterable[Any], layer: LogitLayer, *, momentum: float | None = 5e-5
) -> tuple[ClassMoments, ...]:
    """Statistics over the regions that training samples (512 an image) of augmented images, one for each stage.

    No weight changes. The authors' code passes one image at a time, so give a loader with a batch size of 1.

    Args:
        model: MMDetection's two-stage detector, a cascade too.
        loader: The training loader of a configuration, whose pipeline has the augmentation.
        layer: Where the logits are.
        momentum: Of the moving average; None for exact moments.
    """
    model.eval()
    modules = find_modules(model, layer)
    columns = count_columns(model, layer)
    head = Head(
        columns,
        background=layer.background,
        activation=layer.activation,
        population="sampled regions",
        source=fingerprint(model),
    )
    average = partial(MovingAverage, momentum=momentum) if momentum is not None else ClassMoments
    stages: list[Any] = [average(head) for _ in modules]

    def listen(stage: Any) -> Callable[..., None]:
        return lambda module, inputs, output: stage.update(output[:, :columns])

    hooks = [module.register_forward_hook(listen(stage)) for module, stage in zip(modules, stages, strict=True)]
    try:
        with torch.no_grad():
            for batch in loader:
                data = model.data_preprocessor(batch, True)
                model.loss(data["inputs"], data["data_samples"])
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(stage if momentum is None else stage.moments() for stage in stages)
