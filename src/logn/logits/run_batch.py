"""run_on_batch: run a model on the images of a batch, whatever the loader packs around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from logn.errors import InputError
from logn.logits.arrays import is_torch_tensor

if TYPE_CHECKING:
    from torch import nn

IMAGE_KEYS = ("pixel_values", "images", "image", "inputs", "img", "x")
LABEL_KEYS = ("labels", "label", "targets", "target", "mask_labels", "class_labels")


def run_on_batch(model: nn.Module, batch: Any) -> Any:
    """Run `model` on the images of a batch, whatever the loader packs around them.

    Example:
        >>> import torch
        >>> model = torch.nn.Flatten()
        >>> images, labels = torch.rand(2, 3, 4, 4), torch.tensor([0, 1])
        >>> [tuple(run_on_batch(model, batch).shape) for batch in (images, (images, labels), {"image": images})]
        [(2, 48), (2, 48), (2, 48)]
    """
    if isinstance(batch, Mapping):
        return _run_on_mapping(model, batch)
    if is_torch_tensor(batch) or _is_image_list(batch):
        return model(batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str) and len(batch) > 0:
        images = batch[0]
        if is_torch_tensor(images):
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
    return all(is_torch_tensor(image) and image.dim() == 3 and image.is_floating_point() for image in batch)


def _describe(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a mapping with {', '.join(map(str, batch)) or 'nothing'}"
    if isinstance(batch, list | tuple):
        return f"a {type(batch).__name__} of {', '.join(type(item).__name__ for item in batch[:4]) or 'nothing'}"
    return type(batch).__name__
