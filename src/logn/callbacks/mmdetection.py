"""LogNHook: MMDetection's own test loop on a model that was corrected just before, by one line of its configuration.

custom_hooks = [dict(type="logn.callbacks.LogNHook")]
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from logn.correction.calibrate import calibrate
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.methods.recommend import RECOMMENDED
from logn.models.layer import LogitLayer, unwrap
from logn.models.locate import locate_logits
from logn.models.torch.attach import AttachedMap, attach

try:
    from mmengine.hooks import Hook
except ImportError:  # there is no runner to call it either
    Hook = object


class LogNHook(Hook):  # type: ignore[misc]
    """Before the test loop collect, calibrate and attach; after it take the map off again.

    The training images pass through the test pipeline, without labels and each once, in the order of the annotation
    file; repeats of a balanced sampler do not count. Under distributed testing every process brings its own part.

    Args:
        dataloader: Where the images come from: a loader's configuration, or a loader. By default the training set of
            the runner's configuration, as above.
        num_batches: How many batches to collect from; all by default.
        method: As in `logn.calibrate`: "recommended", "logn" (the paper's equations) and so on.
        layer: Where the logits are: a LogitLayer, or its arguments as a dict; found by `logn.locate_logits` by default.
        maps: Files of maps to use (one, or one per stage) instead of collecting.
        save_to: File to write the map to; a cascade writes one per stage, with the stage's number before the suffix.
        options: Options of the method by name.

    Example:
        >>> custom_hooks = [dict(type="logn.callbacks.LogNHook", num_batches=500, save_to="map.safetensors")]
    """

    priority = "NORMAL"

    def __init__(
        self,
        dataloader: Any = None,
        num_batches: int | None = None,
        method: str = RECOMMENDED,
        layer: LogitLayer | Mapping[str, Any] | None = None,
        maps: str | Sequence[str] | None = None,
        save_to: str | None = None,
        **options: Any,
    ) -> None:
        self.dataloader = dataloader
        self.num_batches = num_batches
        self.method = method
        self.layer = LogitLayer(**layer) if isinstance(layer, Mapping) else layer
        self.maps = (maps,) if isinstance(maps, str) else maps
        self.save_to = save_to
        self.options = options
        self._handle: AttachedMap | None = None

    def before_test(self, runner: Any) -> None:
        """Correct the model of the runner."""
        self.after_test(runner)
        model = unwrap(runner.model)
        layer = self.layer if self.layer is not None else locate_logits(model)
        if self.maps is not None:
            maps = [ClassAffine.load(path) for path in self.maps]
            self._handle = attach(model, layer, maps if len(maps) > 1 else maps[0])
            return
        runner.logger.info(f"LogN collects the statistics of `{layer.name}` over training images.")
        calibration = calibrate(
            model,
            self._batches(runner),
            layer=layer,
            method=self.method,
            forward=_test_step,
            **self.options,
        )
        self._handle = calibration.handle
        if self.save_to is not None and getattr(runner, "rank", 0) == 0:
            save_maps(calibration.affine, self.save_to)

    def after_test(self, runner: Any) -> None:
        """Take the map off, so that the model is as before."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _batches(self, runner: Any) -> Iterable[Any]:
        chosen = self.dataloader
        if chosen is None:
            chosen = training_images(runner.cfg.get("train_dataloader"), runner.cfg.get("test_dataloader"))
        loader = runner.build_dataloader(copy.deepcopy(chosen)) if isinstance(chosen, Mapping) else chosen
        return loader if self.num_batches is None else itertools.islice(loader, self.num_batches)


def _test_step(model: Any, batch: Any) -> Any:
    return model.test_step(batch)


def training_images(train: Mapping[str, Any] | None, test: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration of a loader of all training images, once each and without labels, by the test pipeline.

    Example:
        >>> train = {"dataset": {"type": "ClassBalancedDataset", "dataset": {"type": "LVISV1Dataset", "pipeline": [1]}}}
        >>> test = {"batch_size": 1, "dataset": {"pipeline": [{"type": "Resize"}, {"type": "LoadAnnotations"}]}}
        >>> training_images(train, test)["dataset"]
        {'type': 'LVISV1Dataset', 'pipeline': [{'type': 'Resize'}], 'test_mode': True}
    """
    if not isinstance(train, Mapping) or not isinstance(test, Mapping):
        raise InputError("The configuration has no training and test loader; pass `dataloader`.")
    dataset: Any = train.get("dataset")
    while isinstance(dataset, Mapping) and isinstance(dataset.get("dataset"), Mapping):
        dataset = dataset["dataset"]
    if not isinstance(dataset, Mapping) or "datasets" in dataset:
        raise InputError("The training set of the configuration is not a single data set; pass `dataloader`.")
    pipeline = [step for step in test["dataset"]["pipeline"] if step.get("type") != "LoadAnnotations"]
    # Rounding up would count some images twice.
    sampler = {"type": "DefaultSampler", "shuffle": False, "round_up": False}
    return {**test, "dataset": {**dataset, "pipeline": pipeline, "test_mode": True}, "sampler": sampler}


def save_maps(affine: ClassAffine | Sequence[ClassAffine], path: str) -> list[Path]:
    """Write a map, or the maps of the stages to files with the stage's number before the suffix."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(affine, ClassAffine):
        affine.save(target)
        return [target]
    paths = [target.with_suffix(f".{stage}{target.suffix}") for stage in range(len(affine))]
    for stage, stage_path in zip(affine, paths, strict=True):
        stage.save(stage_path)
    return paths
