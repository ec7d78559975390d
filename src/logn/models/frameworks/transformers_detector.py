"""Detectors of Hugging Face's transformers as a source of proposals with all logits."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from logn.base.boxes import corners_of
from logn.errors import InputError, MissingExtraError
from logn.methods.provenance import with_background_name
from logn.models.frameworks.transformers import locate_in_transformers
from logn.models.frameworks.transformers_folder import class_names_of, read_transformers, write_transformers
from logn.models.layer import count_columns
from logn.models.locate import locate_logits
from logn.models.open import Hints, choose_device
from logn.models.opened import Images, TorchModel, Traits, adapter_model
from logn.models.proposals import Postprocessing, Proposals


class TransformersDetector:
    """A DETR, RT-DETR, D-FINE, YOLOS or another detector of transformers, with its own image processor.

    Every query is a proposal. The image processor prepares each image alone and images that come out in one size run
    together, so that no image is padded for the sake of another: what it gives does not depend on the batch. It gets
    8-bit images, as it does elsewhere. The model stays in evaluation mode.

    Args:
        model: A model that `logn.locate_logits` knows and that returns boxes.
        processor: Its image processor.
    """

    population = "queries"

    def __init__(self, model: Any, processor: Any) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("torch", extra="torch") from error
        layer = locate_in_transformers(model)
        if layer is None or layer.population != self.population:
            raise InputError(
                "Expected `model` to be a detector of transformers whose class layer is known, but got "
                f"{type(model).__name__}."
            )
        if not hasattr(processor, "post_process_object_detection"):
            raise InputError(
                "Expected `processor` to be the image processor of a detector, with post_process_object_detection, "
                f"but got {type(processor).__name__}."
            )
        self._torch, self.model, self.processor, self.logit_layer = torch, model.eval(), processor, layer
        self.background, self.activation = layer.background, layer.activation or "sigmoid"
        columns = count_columns(model, layer) - (layer.background is not None)
        # Some have columns for numbers that COCO gives to no class.
        self.class_columns = tuple(column for column in range(columns) if column not in layer.unused)
        self.num_classes = len(self.class_columns)
        names = class_names_of(model.config)
        self.class_names = None if names is None else tuple(names[column] for column in self.class_columns)
        self.postprocessing = _postprocessing(model, processor, layer.background)

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of every query of each image; images are float tensors `(3, H, W)` in 0..1."""
        prepared = [self._prepare(image) for image in images]
        of_size = defaultdict(list)
        for place, inputs in enumerate(prepared):
            of_size[tuple(inputs["pixel_values"].shape)].append(place)
        found: dict[int, Proposals] = {}
        for places in of_size.values():
            batch = {key: self._torch.cat([prepared[place][key] for place in places]) for key in prepared[places[0]]}
            for place, row in zip(places, self._run(batch), strict=True):
                height, width = (int(side) for side in images[place].shape[-2:])
                found[place] = _proposals(*row, height, width)
        return [found[place] for place in range(len(prepared))]

    def _prepare(self, image: Any) -> dict[str, Any]:
        octets = (image * 255).round().clamp(0, 255).to(self._torch.uint8)
        inputs = self.processor(images=octets, return_tensors="pt", input_data_format="channels_first")
        like = next(self.model.parameters())
        return {
            key: value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)
            for key, value in inputs.items()
            if key in ("pixel_values", "pixel_mask")
        }

    def _run(self, batch: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
        """Boxes, class logits and, where the model has it, the quality of the queries of each image."""
        with self._torch.inference_mode(), _qualities(self.model) as seen:
            output = self.model(**batch)
        if "pred_boxes" not in output:
            raise InputError(f"{type(self.model).__name__} gives no boxes; use an object detector.")
        logits, quality = seen[-1] if seen else (output["logits"], [None] * len(output["logits"]))
        return zip(output["pred_boxes"].float(), logits.float(), quality, strict=True)


def open_file(folder: Path, hints: Hints) -> TorchModel:
    """Open a folder in the form of `save_pretrained`: a detector, or another model whose class layer is known."""
    hints.refuse(f"the Hugging Face folder `{folder}`, whose processor prepares the images", "size", "like")
    network, processor = read_transformers(folder)
    network.to(choose_device(hints.device))
    fields: dict[str, Any] = {
        "name": str(folder),
        "traits": Traits(f"transformers, {type(network).__name__}", type(processor).__name__, ""),
        "save": lambda model, path: write_transformers(model.network, processor, path, source=folder),
        "reopen": lambda model, path: open_file(path, hints),
    }
    layer = hints.on_layer(locate_logits(network))
    if "ObjectDetection" in type(network).__name__:
        return replace(adapter_model(TransformersDetector(network, processor), **fields), layer=layer)

    def run(images: Images) -> None:
        for image in images:
            inputs = processor(images=image, return_tensors="pt", input_data_format="channels_last")
            like = next(network.parameters())
            network(pixel_values=inputs["pixel_values"].to(like.device, like.dtype))

    columns, names = count_columns(network, layer), class_names_of(network.config)
    full = with_background_name(names, layer.background)
    named = next((some for some in (full, names) if some is not None and len(some) == columns), None)
    return TorchModel(network=network, layer=layer, run=run, class_names=named, **fields)


def _proposals(boxes: Any, logits: Any, quality: Any, height: int, width: int) -> Proposals:
    corners = _corners(boxes)
    return Proposals(
        corners * corners.new_tensor([width, height, width, height]),
        logits,
        height=height,
        width=width,
        objectness=quality,
    )


def _postprocessing(model: Any, processor: Any, background: int | None) -> Postprocessing:
    """What `post_process_object_detection` of the processor does by its defaults."""
    options = inspect.signature(processor.post_process_object_detection).parameters
    # With a background the best class of every query, else the best pairs of query and class: as many as there are
    # queries, unless the processor has a number of its own.
    top = options["top_k"].default if "top_k" in options else None
    return Postprocessing(
        nms="none",
        multi_label=background is None,
        score_threshold=float(options["threshold"].default),
        max_detections=None if background is not None else int(top or _num_queries(model)),
        min_box_size=0.0,
        objectness="added" if _quality_layers(model) else "factor",
    )


def _num_queries(model: Any) -> int:
    config = model.config
    two_stage = getattr(config, "two_stage", False)
    return int(config.two_stage_num_proposals if two_stage else config.num_queries)


def _corners(boxes: Any) -> Any:
    """Corners, relative to the image, from center and size; the box around the quadrilaterals of PP-DocLayout V4."""
    import torch

    if boxes.shape[-1] != 10:
        return corners_of(boxes)
    points = boxes[..., None, :2] + boxes[..., 2:].unflatten(-1, (4, 2)) - 0.5
    return torch.cat([points.amin(dim=-2), points.amax(dim=-2)], dim=-1)


@contextmanager
def _qualities(model: Any) -> Iterator[list[tuple[Any, Any]]]:
    """The class logits and what D-FINE and DEIMv2 add to them behind the class layer, the quality of the query."""
    seen: list[tuple[Any, Any]] = []

    def see(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        seen.append((inputs[0], (output - inputs[0]).float().mean(dim=-1)))

    # Only that of the last decoder layer runs outside of training.
    handles = [layer.register_forward_hook(see) for layer in _quality_layers(model)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _quality_layers(model: Any) -> list[Any]:
    layers = getattr(getattr(getattr(model, "model", None), "decoder", None), "lqe_layers", None)
    return [] if layers is None else list(layers)
