"""calibrate: locate, record, normalise and attach (or fold) in one call."""

from __future__ import annotations

import itertools
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from logn.errors import InputError, LogNWarning, warn
from logn.methods.affine import ClassAffine
from logn.methods.catalog import fit, parse
from logn.methods.recommend import RECOMMENDED
from logn.models.hooks import run_on_batch
from logn.models.layer import LogitLayer, count_columns, find_modules
from logn.models.locate import layer_of, locate_logits
from logn.models.output_check import is_comparable
from logn.models.torch.attach import AttachedMap, attach, refuse_attached, refuse_folded
from logn.models.torch.fold import check_foldable, fold_checked, prove, watch_logits
from logn.models.torch.record import collect_moments
from logn.statistics.doubts import background_checks
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

Forward = Callable[[nn.Module, Any], Any]
# One map, or for a layer with `stages=True` one for each stage; its statistics likewise.
Maps: TypeAlias = ClassAffine | tuple[ClassAffine, ...]
Moments: TypeAlias = ClassMoments | tuple[ClassMoments, ...]


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` did.

    Attributes:
        affine: The map; for a layer with `stages=True` a tuple with one per stage.
        handle: Takes the map off; None after a fold.
        moments: The statistics that it was fitted to, for `logn.recommend` or to save; a tuple where `affine` is one.
        layer: Where the logits are.

    Example:
        >>> Calibration(ClassAffine([2.0], [0.0], method="logn"), None, ClassMoments(1), LogitLayer("head"))
        Calibration(logn at `head`: 1 column, 0 rows, folded)
    """

    affine: Maps
    handle: AttachedMap | None
    moments: Moments
    layer: LogitLayer

    def __repr__(self) -> str:
        """One line."""
        affine = self.affine[0] if isinstance(self.affine, tuple) else self.affine
        moments = self.moments[0] if isinstance(self.moments, tuple) else self.moments
        columns = f"{len(affine.scale)} column{'s' if len(affine.scale) > 1 else ''}"
        put = "folded" if self.handle is None else "attached"
        return f"Calibration({affine.method} at `{self.layer.name}`: {columns}, {moments.count.max():,.0f} rows, {put})"


def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    method: str = RECOMMENDED,
    layer: LogitLayer | str | None = None,
    fold: bool = False,
    forward: Forward | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
    check_output: bool = True,
    **options: Any,
) -> Calibration:
    """Correct `model` with one pass over unlabelled training images.

    The pass runs in evaluation mode and without gradients; afterwards every module is back in its mode. Under
    torch.distributed each process brings its own part of the images, and all end with the same correction.

    The first forward pass of a classifier compares its layer with the output of the model and detects an activation
    there. If the model returns logits, the activation is recorded as unknown and a softmax is assumed: pass
    `layer=logn.LogitLayer(..., activation="sigmoid")` for a multi-label model.

    By default the correction is that of `logn.recommend`, which changes nothing if there is little to correct;
    `method="logn"` applies the paper's equations.

    Args:
        model: A torch module.
        loader: Batches: a tensor, a list of image tensors, a tuple or list whose first item is one of these (the
            labels after it are ignored), or a mapping with the images under a usual name. For anything else give
            `forward`.
        method: "recommended", "logn" (the paper's equations), or another method of `logn.methods` that needs
            statistics only; its options follow a colon or are given by name below.
        layer: Where the logits are: a LogitLayer or the path of its module; by default found as by
            `logn.locate_logits`, with the first batch as its `inputs`.
        fold: Write the map into the weights instead of attaching it.
        forward: A function that runs the model on a batch, `forward(model, batch)`.
        device: Where the batches go; the device of the model's first parameter by default.
        progress: Show a progress bar on stderr.
        check_output: Whether to compare a classifier's layer with what the model returns, and refuse one that is not
            what it returns (`logn.record`); and whether to run the first batch once more with the correction, and
            refuse it where anything but the class scores changes.
        options: Options of the method by name, such as `strength=1.0`.

    Returns:
        The map, the handle that takes it off, the statistics and the layer.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3))
        >>> images = [10 * torch.rand(8, 4) for _ in range(5)]
        >>> calibrate(model, images, method="logn")
        Calibration(logn at `0`: 3 columns, 40 rows, attached)
        >>> torch.cat([model(batch) for batch in images]).std(dim=0).round(decimals=3).tolist()
        [1.0, 1.0, 1.0]
    """
    _check_loader(loader)
    parse(method, options)  # before the pass, which may take an hour
    target = torch.device(device) if device is not None else _device_of(model)
    batches = _Batches(loader)

    def run(batch: Any) -> Any:
        return (forward or run_on_batch)(model, _moved(batch, target))

    if layer is None:
        layer = locate_logits(model, inputs=batches.first(), forward=lambda _, batch: run(batch))
    layer = layer_of(model, layer)
    _check_ready(model, layer, fold=fold)
    _rehearse(model, layer, method, options)
    stages = collect_moments(model, layer, _with_progress(batches, progress), run, check_output=check_output)
    for sentence in background_checks(stages[0], background=stages[0].head.background):
        warn(sentence)
    maps = tuple(_correction(moments, method, options) for moments in stages)
    affine: Maps = maps if layer.stages else maps[0]
    example = batches.kept_first() if check_output and is_comparable(layer) else []
    handle = _put(model, layer, affine, lambda: [run(batch) for batch in example], fold=fold)
    return Calibration(affine, handle, stages if layer.stages else stages[0], layer)


def _check_loader(loader: Any) -> None:
    """Refuse what gives no batches, before torch fails on it with an error of its own."""
    if isinstance(loader, Tensor):
        raise InputError("`loader` is one tensor, not batches of images; put it in a list: [images].")
    if isinstance(loader, str | os.PathLike):
        raise InputError(
            f"`loader` is the path `{os.fspath(loader)}`, not batches of images; for a folder of images use "
            "logn.correct, or pass a torch DataLoader."
        )
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise InputError(
            f"`loader` is a dataset ({type(loader).__name__}), not batches of images; put it in a loader: "
            "torch.utils.data.DataLoader(dataset, batch_size=32)."
        )
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise InputError(f"Expected `loader` to give batches of images, but got {type(loader).__name__}.")


def _put(
    model: nn.Module, layer: LogitLayer, affine: Maps, run: Callable[[], object], *, fold: bool
) -> AttachedMap | None:
    """Attach or fold; a correction that does not show in the logits of `run`, or in more than these, is undone."""
    before = watch_logits(model, layer, run)

    def check() -> None:
        if before:
            maps = affine if isinstance(affine, tuple) else (affine,)
            prove(layer, maps, before, watch_logits(model, layer, run)).checked(layer.name)

    if fold:
        fold_checked(model, layer, affine, check)
        return None
    handle = attach(model, layer, affine)
    try:
        check()
    except InputError:
        handle.remove()
        raise
    return handle


def _check_ready(model: nn.Module, layer: LogitLayer, *, fold: bool) -> None:
    """Refuse a layer that could not take the map, before the pass."""
    for path, module in zip(layer.paths, find_modules(model, layer), strict=True):
        refuse_attached(path, module)
        refuse_folded(path, module)
        if fold:
            check_foldable(path, module)


def _rehearse(model: nn.Module, layer: LogitLayer, method: str, options: Mapping[str, Any]) -> None:
    """Fit drawn logits of as many columns, so that a wrong value of an option is refused before the pass."""
    columns = count_columns(model, layer)
    head = Head(columns, background=layer.background, activation=layer.activation, population=layer.population)
    drawn = ClassMoments(head, sample_rows=64)
    drawn.update(np.random.default_rng(0).normal(-2 - np.arange(columns) % 5, 1, (64, columns)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)
        fit(method, drawn, **options)


def _correction(moments: ClassMoments, method: str, options: Mapping[str, Any]) -> ClassAffine:
    if not moments.count.any():
        raise InputError(
            f"No logits came through `{moments.head.layer}` while the model ran on `loader`; name a layer that "
            "its forward pass uses."
        )
    return fit(method, moments, **options)


class _Batches:
    """The batches of a loader, each once, also after a look at the first."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] | None = None
        self._first: list[Any] = []

    def first(self) -> Any:
        """The first batch, which still comes when the batches are gone through."""
        if self._iterator is None:
            self._iterator = iter(self._loader)
            self._first = list(itertools.islice(self._iterator, 1))
        if not self._first:
            raise InputError("`loader` gave no batch of images.")
        return self._first[0]

    def __iter__(self) -> Iterator[Any]:
        rest = iter(self._loader) if self._iterator is None else self._iterator
        for batch in itertools.chain(self._first, rest):
            self._first = self._first or [batch]
            yield batch

    def kept_first(self) -> list[Any]:
        """The first batch after all have been gone through; none where there was none."""
        return self._first

    def __length_hint__(self) -> int:
        return operator.length_hint(self._loader)


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`, its containers as they were."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: _moved(value, device) for name, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(_moved(value, device) for value in batch)
    return batch


def _with_progress(loader: Iterable[Any], progress: bool) -> Iterator[Any]:
    if not progress:
        yield from loader
        return
    from rich.console import Console
    from rich.progress import track

    total = operator.length_hint(loader) or None
    yield from track(loader, description="Recording logits", total=total, console=Console(stderr=True))
