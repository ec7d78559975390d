"""calibrate: locate, record, normalise and attach (or fold) in one call."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.form_warning import form_warning
from logn.calibrators.kept_confidence import keep_confidence
from logn.calibrators.logit_normalization import MarginName, logit_normalization
from logn.deploy.attach import AttachedMap, attach, refuse_attached
from logn.deploy.fold import fold as fold_into
from logn.deploy.fold_mark import refuse_folded
from logn.errors import InputError, LogNWarning
from logn.logits.layer import LogitLayer, check_layer, find_modules
from logn.logits.locate import locate_logits
from logn.statistics.doubts import doubts_about_background
from logn.statistics.moments import ClassMoments
from logn.statistics.record import record

IMAGE_KEYS = ("pixel_values", "images", "image", "inputs", "img", "x")
LABEL_KEYS = ("labels", "label", "targets", "target", "mask_labels", "class_labels")

Forward = Callable[[nn.Module, Any], Any]


def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    layer: LogitLayer | None = None,
    margin: MarginName | float | None = "balance",
    forward: Forward | None = None,
    held_out: Iterable[Any] | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
    fold: bool = False,
    nonfinite: Literal["error", "skip"] = "error",
    **options: Any,
) -> tuple[Any, AttachedMap | None]:
    """Correct `model` with one pass over unlabelled training images.

    The pass runs in evaluation mode and without gradients; afterwards every module is in the mode it was in. Under
    torch.distributed each process brings its own part of the images, and all end with the same map.

    By default the correction is the balanced one, which keeps the model's own scale and foreground mass. The paper's
    is `margin="min"` for a detector with a background and `margin=None` otherwise.

    Args:
        model: A torch module.
        loader: Batches: a tensor, a list of image tensors, a tuple or list whose first item is one of these (the
            labels after it are ignored), or a mapping with the images under a usual name. For anything else give
            `forward`.
        layer: Where the logits are; found by `logn.locate_logits` by default.
        margin: As in `logn.logit_normalization`.
        forward: A function that runs the model on a batch, `forward(model, batch)`.
        held_out: For a softmax classifier: images that it was not trained on, in the same form and without labels. The
            corrected model is then on average exactly as sure of them as it was; without them about as sure.
        device: Where the batches go; the device of the model's first parameter by default.
        progress: Show a progress bar on stderr.
        fold: Write the map into the weights instead of attaching it.
        nonfinite: "error" refuses NaN and infinite logits, "skip" leaves them out.
        options: Further arguments of `logn.logit_normalization`. `relative_std` is on by default with the balanced
            margin and off otherwise.

    Returns:
        The map (for a layer with `stages=True` a tuple with one per stage) and the handle that takes it off, which is
        None after a fold.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3))
        >>> images = [10 * torch.rand(8, 4) for _ in range(5)]
        >>> affine, handle = calibrate(model, images, margin=None)
        >>> torch.cat([model(batch) for batch in images]).std(dim=0).round(decimals=3).tolist()
        [1.0, 1.0, 1.0]
    """
    layer = layer if layer is not None else locate_logits(model)
    check_layer(layer)
    if isinstance(loader, Tensor):
        raise InputError("Expected `loader` to give batches of images, but got one tensor; put it in a list: [images].")
    # Refused before the pass, which may take an hour.
    for path, module in zip(layer.paths, find_modules(model, layer), strict=True):
        refuse_attached(path, module)
        refuse_folded(path, module)
    target = torch.device(device) if device is not None else _device_of(model)
    run = forward if forward is not None else run_on_batch

    def moments_of(batches: Iterable[Any]) -> tuple[ClassMoments, ...]:
        with _evaluation_mode(model), record(model, layer, nonfinite=nonfinite) as recorded, torch.inference_mode():
            for batch in _with_progress(batches, progress):
                run(model, _moved(batch, target))
        return recorded if layer.stages else (recorded,)

    options.setdefault("relative_std", margin == "balance")
    stages = moments_of(loader)
    for sentence in doubts_about_background(stages[0]):
        warnings.warn(sentence, LogNWarning, stacklevel=2)
    maps = tuple(_normalization(moments, margin, options) for moments in stages)
    if margin != "balance":
        _warn_of_far_moves(maps, stages)
    if held_out is not None:
        unseen = moments_of(held_out)
        maps = tuple(keep_confidence(part, moments.sample) for part, moments in zip(maps, unseen, strict=True))
    affine = maps if layer.stages else maps[0]
    if fold:
        fold_into(model, layer, affine)
        return affine, None
    return affine, attach(model, layer, affine)


def run_on_batch(model: nn.Module, batch: Any) -> Any:
    """Run `model` on the images of a batch, whatever the loader packs around them.

    Example:
        >>> model = torch.nn.Flatten()
        >>> images, labels = torch.rand(2, 3, 4, 4), torch.tensor([0, 1])
        >>> [tuple(run_on_batch(model, batch).shape) for batch in (images, (images, labels), {"image": images})]
        [(2, 48), (2, 48), (2, 48)]
    """
    if isinstance(batch, Mapping):
        return _run_on_mapping(model, batch)
    if isinstance(batch, Tensor) or _is_image_list(batch):
        return model(batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str) and len(batch) > 0:
        images = batch[0]
        if isinstance(images, Tensor):
            return model(images)
        if _is_image_list(images):
            return model(list(images))
    raise InputError(
        f"Expected `loader` to give images as tensors, but got {_describe(batch)}; say how to run the model on it with "
        "forward=lambda model, batch: …."
    )


def _run_on_mapping(model: nn.Module, batch: Mapping[str, Any]) -> Any:
    if "pixel_values" in batch:
        # What Hugging Face's models take by name; labels would only make them compute a loss.
        return model(**{name: value for name, value in batch.items() if name not in LABEL_KEYS})
    for name in IMAGE_KEYS:
        if name in batch:
            return model(batch[name])
    raise InputError(f"Expected `loader` to give images under one of {IMAGE_KEYS}, but got {_describe(batch)}.")


def _is_image_list(batch: Any) -> bool:
    """A list of (C, H, W) images of any size, as detectors take it."""
    if not isinstance(batch, list | tuple) or len(batch) == 0:
        return False
    return all(isinstance(image, Tensor) and image.dim() == 3 and image.is_floating_point() for image in batch)


def _describe(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a mapping with {', '.join(map(str, batch)) or 'nothing'}"
    if isinstance(batch, list | tuple):
        return f"a {type(batch).__name__} of {', '.join(type(item).__name__ for item in batch[:4]) or 'nothing'}"
    return type(batch).__name__


def _normalization(moments: ClassMoments, margin: MarginName | float | None, options: Mapping[str, Any]) -> ClassAffine:
    if not moments.count.any():
        raise InputError(f"Expected `loader` to bring logits through `{moments.metadata.layer}`, but none came.")
    return logit_normalization(moments, margin=margin, **options)


def _warn_of_far_moves(maps: Sequence[ClassAffine], stages: Sequence[ClassMoments]) -> None:
    """Warn once when a chosen margin moves the scores of a detector far; a classifier's only change their scale."""
    for affine, moments in zip(maps, stages, strict=True):
        detects = affine.background is not None or moments.metadata.activation == "sigmoid"
        warning = form_warning(affine, moments) if detects else None
        if warning is not None:
            warnings.warn(warning, LogNWarning, stacklevel=3)
            return


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


@contextlib.contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; a module that was frozen in it before stays so afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _with_progress(loader: Iterable[Any], progress: bool) -> Iterator[Any]:
    if not progress:
        yield from loader
        return
    from rich.console import Console
    from rich.progress import track

    total = operator.length_hint(loader) or None
    yield from track(loader, description="Recording logits", total=total, console=Console(stderr=True))
