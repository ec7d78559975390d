"""Which input of an ONNX model takes images, and what the file says of how they must look."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from logn.errors import InputError
from logn.logits.images import PRESETS, Preprocessing, Preset, preset_named, read_rgb
from logn.logits.onnx.file import Arrays, InputSpec, OnnxFile, OnnxSession, model_inputs, random_inputs, with_shapes
from logn.logits.proposals import Postprocessing

# What Hugging Face writes beside a model.
PROCESSOR_FILE = "preprocessor_config.json"
# Sides that models are commonly made for.
COMMON_SIZES = (224, 256, 320, 416, 512, 640)
# Image processors of transformers, by how their names begin, and the preset of the models that they go with.
_PROCESSORS = {
    "Detr": "detr",
    "Yolos": "detr",
    "RTDetr": "rtdetr",
    "ConditionalDetr": "rtdetr",
    "DeformableDetr": "rtdetr",
}


def image_input(specs: Sequence[InputSpec]) -> InputSpec:
    """The input that takes images."""
    fitting = [spec for spec in specs if _takes_images(spec)]
    if not fitting:
        listed = ", ".join(f"{spec.name} {spec.shape}" for spec in specs)
        raise InputError(f"Expected the model to have an input for images, but its inputs are {listed}.")
    return fitting[0]


def other_inputs(others: Sequence[InputSpec], image: InputSpec, shape: Sequence[int]) -> Arrays:
    """Ones for the inputs beside the images (masks, scales), with the lengths that they share with `shape`."""
    lengths = {name: length for name, length in zip(image.shape, shape, strict=True) if isinstance(name, str)}
    return {
        spec.name: np.ones(
            [length if isinstance(length, int) else lengths.get(str(length), 1) for length in spec.shape], spec.dtype
        )
        for spec in others
    }


@dataclass(frozen=True)
class Description:
    """What is known of an ONNX model besides its graph.

    Attributes:
        preset: How models of its family are fed and read; None where nothing tells.
        source: What tells: "--like yolox", "its metadata", the name of a file.
        class_names: Its classes, where the file names them.
    """

    preset: Preset | None = None
    source: str = ""
    class_names: tuple[str, ...] | None = None

    def names_of(self, num_classes: int) -> tuple[str, ...] | None:
        """The class names, if there are so many classes."""
        return self.class_names if self.class_names is not None and len(self.class_names) == num_classes else None

    def reading(self, activation: str | None, background: int | None) -> tuple[str | None, int | None]:
        """What follows the logits, and where the background is: as it is known, else as the preset has it.

        Args:
            activation: What the graph shows or the user says; None for neither.
            background: What the user says; None for nothing.

        Example:
            >>> Description(PRESETS["detr"]).reading(None, None)
            ('softmax', -1)
            >>> Description(PRESETS["ssd"]).reading("sigmoid", None)  # sigmoids have no background
            ('sigmoid', None)
        """
        if self.preset is None:
            return activation, background
        known = activation or self.preset.activation
        if background is None and known != "sigmoid":
            background = self.preset.background
        return known, background


def describe(file: OnnxFile, like: str | None = None) -> Description:
    """What the user, the metadata of the file or a file beside it say; in this order.

    Args:
        file: The model.
        like: The name of a preset.
    """
    metadata = {entry.key: entry.value for entry in file.model.metadata_props}
    names = _names(metadata.get("names"))
    if like is not None:
        return Description(preset_named(like), f"like={like}", names)
    if names is not None and {"stride", "task"} <= set(metadata):  # Ultralytics writes these three
        return Description(_of_ultralytics(metadata), "its metadata", names)
    beside = file.path.parent / PROCESSOR_FILE
    if beside.is_file():
        return Description(_of_processor(beside), f"`{beside}`", names)
    return Description(class_names=names)


def settle(file: OnnxFile, like: str | None = None, **given: Any) -> tuple[Preprocessing, Description]:
    """How images become inputs of a model: as `given`, else as the preset says, and of the size that the model has.

    Args:
        file: The model.
        like: The name of a preset; without it what the file says of itself.
        **given: Fields of `Preprocessing`; None stands for those that are not given.
    """
    description = describe(file, like)
    image = image_input(model_inputs(file.model))
    base = Preprocessing() if description.preset is None else description.preset.preprocessing
    if _fixed_size(image, given.get("layout") or base.layout) is not None:
        base = replace(base, size=None)  # the preset's is for models that leave it open
    base = replace(base, **{name: value for name, value in given.items() if value is not None})
    return completed(base, image), description


def at_size(specs: Sequence[InputSpec], image: InputSpec, size: tuple[int, int], layout: str) -> list[InputSpec]:
    """The inputs, the images among them of one size."""
    shape = [length if isinstance(length, int) else 1 for length in image.shape]
    places = _image_axes(layout)
    shape[places[0]], shape[places[1]] = size
    shape[-3 if layout.endswith("CHW") else -1] = 3
    given: dict[str, tuple[int, ...]] = {image.name: tuple(shape)}
    for spec in specs:
        if spec is not image:
            given[spec.name] = other_inputs([spec], image, shape)[spec.name].shape
    return with_shapes(specs, given)


def nearest_size(file: OnnxFile, preprocessing: Preprocessing, side: int) -> Preprocessing:
    """Where nobody says a size: the common one nearest to `side` that the model runs at.

    A model without a batch axis keeps the images as they are: it brings them to its size itself, as torchvision's do.
    """
    specs = model_inputs(file.model)
    image = image_input(specs)
    if preprocessing.size is not None or len(image.shape) != 4:
        return preprocessing
    layout = _layout(image, preprocessing.layout)
    declared = [image.shape[axis] for axis in _image_axes(layout)]
    session = OnnxSession(file.model, str(file.path), optimised=False)
    failure: InputError | None = None
    for common in sorted(COMMON_SIZES, key=lambda common: abs(common - side)):
        height, width = (length if isinstance(length, int) else common for length in declared)
        try:
            session.run(random_inputs(at_size(specs, image, (height, width), layout)))
        except InputError as error:
            failure = failure or error
            continue
        return replace(preprocessing, size=(height, width))
    raise InputError(f"{str(failure).rstrip('.')}; give its `size`.")


def size_for_images(file: OnnxFile, preprocessing: Preprocessing, paths: Sequence[Path]) -> Preprocessing:
    """`nearest_size` to the longer side of the first image that can be read."""
    for path in paths if preprocessing.size is None else ():
        try:
            height, width = read_rgb(path).shape[:2]
        except InputError:
            continue  # who reads the images says what is wrong with it
        return nearest_size(file, preprocessing, max(height, width))
    return preprocessing


def _fixed_size(image: InputSpec, layout: str | None) -> tuple[int, int] | None:
    """Height and width, where the model fixes both."""
    height, width = (image.shape[axis] for axis in _image_axes(_layout(image, layout)))
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def _layout(image: InputSpec, layout: str | None) -> str:
    channels_last = image.shape[-1] == 3 and image.shape[-3] != 3
    colours = (layout or ("HWC" if channels_last else "CHW")).removeprefix("N")
    return f"N{colours}" if len(image.shape) == 4 else colours


def _image_axes(layout: str) -> tuple[int, int]:
    return (-2, -1) if layout.endswith("CHW") else (-3, -2)


def _names(text: str | None) -> tuple[str, ...] | None:
    """The class names of Ultralytics' metadata: a dictionary from 0 on, or a list, written as Python does."""
    try:
        found = ast.literal_eval(text) if text else None
    except (ValueError, SyntaxError):
        return None
    if isinstance(found, dict) and sorted(found) == list(range(len(found))):
        found = [found[place] for place in range(len(found))]
    return tuple(map(str, found)) if isinstance(found, list) and found else None


def _of_ultralytics(metadata: dict[str, str]) -> Preset:
    told = f"{metadata.get('head', '')} {metadata.get('description', '')}".lower()
    preset = PRESETS["rtdetr" if "rtdetr" in told else "ultralytics"]
    try:
        size = ast.literal_eval(metadata.get("imgsz", ""))
    except (ValueError, SyntaxError):
        return preset
    sides = (size, size) if isinstance(size, int) else tuple(size)
    return replace(preset, preprocessing=replace(preset.preprocessing, size=sides))


def _of_processor(path: Path) -> Preset:
    """The image processor of transformers, as far as it can be followed: a size to stretch to, and a normalisation."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        sides = _sides(content.get("size") or {})
        rescaled = content.get("do_rescale", True)
        white = round(255 * float(content.get("rescale_factor", 1 / 255)), 6) if rescaled else 255.0
        normalised = content.get("do_normalize", False)
        preprocessing = Preprocessing(
            sides,
            "stretch",
            mean=tuple(map(float, content["image_mean"])) if normalised else (0.0,),
            std=tuple(map(float, content["image_std"])) if normalised else (1.0,),
            max_value=white,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"Expected `{path}` to describe an image processor, but it cannot be read: {error}."
        ) from error
    kind = str(content.get("image_processor_type", content.get("feature_extractor_type", "")))
    name = next((preset for begin, preset in _PROCESSORS.items() if kind.startswith(begin)), None)
    if name is None:  # what the model gives is not known
        return Preset(preprocessing, Postprocessing(), activation=None)
    return replace(PRESETS[name], preprocessing=preprocessing)


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width; a square where only the shorter edge is said, and None where other limits are."""
    if not isinstance(size, dict):  # as older files have it
        return int(size), int(size)
    shortest = size.get("shortest_edge")
    height, width = size.get("height", shortest), size.get("width", shortest)
    return None if height is None or width is None else (int(height), int(width))


def _takes_images(spec: InputSpec) -> bool:
    channels = [spec.shape[axis] for axis in (-1, -3)] if len(spec.shape) in (3, 4) else []
    return any(length == 3 or not isinstance(length, int) for length in channels) and (
        np.issubdtype(spec.dtype, np.floating) or spec.dtype == np.uint8
    )


def completed(given: Preprocessing | None, image: InputSpec) -> Preprocessing:
    """Fill in what the model states, and refuse what contradicts it."""
    given = given or Preprocessing()
    layout = _layout(image, given.layout)
    if given.dtype not in (None, str(image.dtype)):
        raise InputError(f"Expected `dtype` to be {image.dtype}, which `{image.name}` takes, but got {given.dtype}.")
    given = replace(given, layout=layout, dtype=str(image.dtype))
    declared = tuple(image.shape[axis] for axis in _image_axes(layout))
    if given.size is None:
        return replace(given, size=_fixed_size(image, layout))
    if any(isinstance(length, int) and length != want for length, want in zip(declared, given.size, strict=True)):
        raise InputError(f"Expected `size` to be {declared}, which `{image.name}` takes, but got {given.size}.")
    return given
