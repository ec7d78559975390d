"""calibrate: locate, record, normalise and attach (or fold) in one call."""

from __future__ import annotations

import inspect
import itertools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from logn.calibrators.advice import recommended_for, recommended_method
from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.match_confidence import keep_confidence
from logn.calibrators.method_spec import fit_method
from logn.calibrators.methods.logit_normalization import FormSettings, Margin, form_settings, logit_normalization
from logn.calibrators.score_shift_warning import form_warning
from logn.deploy.attach import AttachedMap, attach, refuse_attached
from logn.deploy.fold import fold as fold_into
from logn.deploy.fold_mark import refuse_folded
from logn.errors import InputError, LogNWarning
from logn.logits.layer import LogitLayer, check_layer, count_columns, find_modules, with_class_axis
from logn.logits.locate import find_layer
from logn.logits.run_batch import run_on_batch
from logn.logits.trace import evaluation_mode
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments
from logn.statistics.record import record
from logn.statistics.sanity_checks import background_checks

Forward = Callable[[nn.Module, Any], Any]
# One map, or for a layer with `stages=True` one for each stage; its statistics likewise.
Maps: TypeAlias = ClassAffine | tuple[ClassAffine, ...]
Moments: TypeAlias = ClassMoments | tuple[ClassMoments, ...]


class Calibration(tuple[Maps, AttachedMap | None]):
    """What `calibrate` did; it unpacks as the pair `affine, handle`.

    Attributes:
        affine: The map; for a layer with `stages=True` a tuple with one per stage.
        handle: Takes the map off; None after a fold.
        moments: The statistics that it was fitted to, for `logn.advise` or to save; a tuple where `affine` is one.
        layer: Where the logits are.

    Example:
        >>> affine = ClassAffine([2.0], [0.0])
        >>> calibration = Calibration(affine, None, ClassMoments(1), LogitLayer("head"))
        >>> found, handle = calibration
        >>> found is calibration.affine, handle, calibration.layer.name
        (True, None, 'head')
    """

    moments: Moments
    layer: LogitLayer

    def __new__(cls, affine: Maps, handle: AttachedMap | None, moments: Moments, layer: LogitLayer) -> Calibration:
        """Keep the pair as the tuple, the rest beside it."""
        pair = super().__new__(cls, (affine, handle))
        pair.moments, pair.layer = moments, layer
        return pair

    @property
    def affine(self) -> Maps:
        """The map, or the maps of the stages."""
        return self[0]

    @property
    def handle(self) -> AttachedMap | None:
        """What takes the map off."""
        return self[1]

    def __repr__(self) -> str:
        """All four parts by name."""
        parts = ((name, getattr(self, name)) for name in ("affine", "handle", "moments", "layer"))
        return f"Calibration({', '.join(f'{name}={value!r}' for name, value in parts)})"


def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    layer: LogitLayer | None = None,
    form: str | None = None,
    labels: str | None = None,
    margin: Margin = "form",
    forward: Forward | None = None,
    held_out: Iterable[Any] | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
    fold: bool = False,
    nonfinite: Literal["error", "skip"] = "error",
    check_output: bool = True,
    estimator: str = "exact",
    momentum: float | None = None,
    bias_correction: bool = False,
    row_labels: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Calibration:
    """Correct `model` with one pass over unlabelled training images.

    The pass runs in evaluation mode and without gradients; afterwards every module is in the mode it was in. Under
    torch.distributed each process brings its own part of the images, and all end with the same map.

    In the first forward pass a classifier's layer is compared with what the model returns, and an activation that the
    model applies itself is seen. Where neither that nor `layer` tells it, it is recorded as unknown, not as a softmax;
    say activation="sigmoid" in `layer` for a multi-label model that returns logits.

    By default the correction is the one that we recommend for such a model (docs/real-images.md). LogN's balanced form,
    which keeps the model's own scale and foreground mass, is `form="balanced"`; the paper's is `form="paper"`.

    Args:
        model: A torch module.
        loader: Batches: a tensor, a list of image tensors, a tuple or list whose first item is one of these (the
            labels after it are ignored), or a mapping with the images under a usual name. For anything else give
            `forward`.
        layer: Where the logits are; found as by `logn.locate_logits` by default, with the first batch as its `inputs`
            where the model's code does not tell.
        form: "balanced" or "paper", as in `logn.logit_normalization`; None without other options is what we recommend
            for such a model.
        labels: "federated" or "exhaustive": the labels by which you will measure a detector. They decide the margin of
            what we recommend.
        margin: As in `logn.logit_normalization`; one other than "balance" goes with the paper's equation.
        forward: A function that runs the model on a batch, `forward(model, batch)`.
        held_out: For a softmax classifier: images that it was not trained on, in the same form and without labels. The
            corrected model is then on average exactly as sure of them as it was; without them about as sure.
        device: Where the batches go; the device of the model's first parameter by default.
        progress: Show a progress bar on stderr.
        fold: Write the map into the weights instead of attaching it.
        nonfinite: "error" refuses NaN and infinite logits, "skip" leaves them out.
        check_output: Whether to compare a classifier's layer with what the model returns, and refuse one that is not
            what it returns (`logn.record`).
        estimator: "exact", or as in `logn.record`: the paper's "moving-average", of which each batch of the loader is a
            batch, or statistics of "positives" only.
        momentum: Of the moving average; 5e-5 by default.
        bias_correction: Whether to take the start of the moving average out again.
        row_labels: For positives: gives the column of the class of each row that a batch brings, -1 for none, such as
            `lambda batch: batch[1]` for a classifier.
        options: Further arguments of `logn.logit_normalization`.

    Returns:
        The pair of the map (for a layer with `stages=True` a tuple with one per stage) and the handle that takes it
        off, which is None after a fold; the statistics and the layer are its `moments` and `layer`.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3))
        >>> images = [10 * torch.rand(8, 4) for _ in range(5)]
        >>> affine, handle = calibrate(model, images, form="paper")
        >>> torch.cat([model(batch) for batch in images]).std(dim=0).round(decimals=3).tolist()
        [1.0, 1.0, 1.0]
    """
    if isinstance(loader, Tensor):
        raise InputError("Expected `loader` to give batches of images, but got one tensor; put it in a list: [images].")
    settings, recommended = _checked_choice(form, margin, labels, options)  # before the pass, which may take an hour
    target = torch.device(device) if device is not None else _device_of(model)
    run = forward if forward is not None else run_on_batch
    batches = _Batches(loader)
    if layer is None:
        layer = find_layer(model, run=lambda: run(model, _moved(batches.first(), target)))
    check_layer(layer)
    for path, module in zip(layer.paths, find_modules(model, layer), strict=True):
        refuse_attached(path, module)
        refuse_folded(path, module)
    _rehearse(model, layer, None if recommended else {**options, "form": form, "margin": margin})

    given: list[Any] = [None]

    def moments_of(batches: Iterable[Any], **how: Any) -> tuple[ClassMoments, ...]:
        recording = record(model, layer, nonfinite=nonfinite, check_output=check_output, **how)
        with evaluation_mode(model), recording as recorded, torch.inference_mode():
            for given[0] in _with_progress(batches, progress):
                run(model, _moved(given[0], target))
        return recorded if layer.stages else (recorded,)

    stages = moments_of(
        batches,
        estimator=estimator,
        momentum=momentum,
        bias_correction=bias_correction,
        row_labels=None if row_labels is None else lambda: row_labels(given[0]),
    )
    for sentence in background_checks(stages[0]):
        warnings.warn(sentence, LogNWarning, stacklevel=2)
    options |= {"form": form, "margin": margin}
    maps = tuple(_correction(moments, None if recommended else options, labels) for moments in stages)
    if settings.margin != "balance":
        _warn_of_far_moves(maps, stages)
    if held_out is not None:
        _check_softmax(stages)
        unseen = moments_of(held_out)
        maps = tuple(keep_confidence(part, moments.sample) for part, moments in zip(maps, unseen, strict=True))
    affine: Maps = maps if layer.stages else maps[0]
    handle = None if fold else attach(model, layer, affine)
    if fold:
        fold_into(model, layer, affine)
    return Calibration(affine, handle, stages if layer.stages else stages[0], layer)


def _checked_choice(
    form: str | None, margin: Margin, labels: str | None, options: Mapping[str, Any]
) -> tuple[FormSettings, bool]:
    """The settings of the form that is meant, and whether it is left to us; wrong words are refused."""
    recommended = form is None and margin == "form" and not options
    known = inspect.signature(logit_normalization).parameters
    wrong = next((name for name in options if name not in known), None)
    if wrong is not None:
        raise InputError(
            "Expected the arguments of `logn.calibrate` to be its own or those of `logn.logit_normalization`, but got "
            f"`{wrong}`."
        )
    recommended_method(None, None, labels)
    if labels is not None and not recommended:
        raise InputError("Expected `labels` only without `form`, `margin` and their like: it chooses the correction.")
    return form_settings(form, margin, options.get("relative_std")), recommended


def _rehearse(model: nn.Module, layer: LogitLayer, options: Mapping[str, Any] | None) -> None:
    """Fit drawn logits of as many columns, so that a wrong value of an option is refused before the pass."""
    if options is None:
        return
    columns = count_columns(model, with_class_axis(model, layer))
    known = StatisticsMetadata(background=layer.background, activation=layer.activation)
    drawn = ClassMoments(columns, sample_rows=64, mean_probability=True, metadata=known)
    drawn.update(np.random.default_rng(0).normal(-2, 1, (64, columns)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)
        logit_normalization(drawn, **options)


def _correction(moments: ClassMoments, options: Mapping[str, Any] | None, labels: str | None) -> ClassAffine:
    """LogN with options, or without any what we recommend."""
    if not moments.count.any():
        raise InputError(f"Expected `loader` to bring logits through `{moments.metadata.layer}`, but none came.")
    if options is None:
        return fit_method(recommended_for(moments, labels=labels), moments=moments)
    return logit_normalization(moments, **options)


def _warn_of_far_moves(maps: Sequence[ClassAffine], stages: Sequence[ClassMoments]) -> None:
    """Warn once when a chosen margin moves the scores of a detector far; a classifier's only change their scale."""
    for affine, moments in zip(maps, stages, strict=True):
        detects = affine.background is not None or moments.metadata.activation == "sigmoid"
        warning = form_warning(affine, moments) if detects else None
        if warning is not None:
            warnings.warn(warning, LogNWarning, stacklevel=3)
            return


def _check_softmax(stages: Sequence[ClassMoments]) -> None:
    """Refuse to keep the confidence, the highest softmax score, of what feeds a sigmoid."""
    if any(moments.metadata.activation == "sigmoid" for moments in stages):
        raise InputError(
            f"Expected `held_out` for a softmax classifier only, but `{stages[0].metadata.layer}` feeds a sigmoid; "
            "leave it out: the default keeps the expected number of labels."
        )


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
            raise InputError("Expected `loader` to give at least one batch of images, but it gave none.")
        return self._first[0]

    def __iter__(self) -> Iterator[Any]:
        rest = iter(self._loader) if self._iterator is None else self._iterator
        yield from itertools.chain(self._first, rest)

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
