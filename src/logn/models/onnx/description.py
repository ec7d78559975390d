"""Which input of an ONNX model takes images, and what the file says of how they must look."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from logn.base.strict_json import parse_json
from logn.data.class_names import are_placeholders, names_differ
from logn.errors import InputError
from logn.models.onnx.file import Arrays, InputSpec, OnnxFile
from logn.models.preprocessing import PRESETS, Preprocessing, Preset, parse_preprocessing, preset_named
from logn.models.proposals import Postprocessing
from logn.statistics.head import ACTIVATIONS, Head

# What Hugging Face writes beside a model.
PROCESSOR_FILE = "preprocessor_config.json"
_BACKGROUNDS = {"first": 0, "last": -1, "none": None}
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
        raise InputError(f"The model has no input for images; its inputs are {listed}.")
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

    def names_of(self, columns: int, background: int | None = None) -> tuple[str, ...] | None:
        """The names of so many columns, or of their classes; None where the file names other classes.

        Example:
            >>> Description(class_names=("cat", "dog")).names_of(3, background=0)
            ('cat', 'dog')
        """
        names = self.class_names
        is_fitting = names is not None and len(names) in (columns, columns - (background is not None))
        return names if is_fitting else None

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


def names_in(file: OnnxFile) -> tuple[str, ...] | None:
    """The class names in the metadata of a file; None without any, and for those that only count the classes."""
    metadata = {entry.key: entry.value for entry in file.model.metadata_props}
    names = _names(_literal(metadata.get("names", metadata.get("class_names", ""))))
    return None if names is None or are_placeholders(names) else names


def checked_names(
    file: OnnxFile, given: Sequence[str] | None, columns: int, background: int | None
) -> tuple[str, ...] | None:
    """The foreground classes of a file: its own, else the user's, which must not contradict them."""
    named = Description(class_names=names_in(file)).names_of(columns, background)
    own, said = (Head.of_classes(names, columns, background).class_names for names in (named, given))
    if said is None:
        return own
    if own is not None and (difference := names_differ(said, "`class_names`", own, f"`{file.path}`")):
        raise InputError(f"{difference}; leave `class_names` out.")
    return said


def describe(file: OnnxFile, like: str | None = None) -> Description:
    """What the user, the metadata of the file or a file beside it say; in this order.

    Metadata are those of Ultralytics, or these keys: `class_names` or `names` (a list, or numbers to names),
    `preprocessing` (an object of the fields of `Preprocessing`), `imgsz` or `size`, `activation` ("softmax" or
    "sigmoid") and `background` ("first", "last" or "none").

    Args:
        file: The model.
        like: The name of a preset, or a `.json` file of preprocessing.
    """
    metadata = {entry.key: entry.value for entry in file.model.metadata_props}
    names = _names(_literal(metadata.get("names", metadata.get("class_names", ""))))
    beside = file.path.parent / PROCESSOR_FILE
    if like is not None:
        preset, source = preset_named(like), f"like={like}"
    elif names is not None and {"stride", "task"} <= set(metadata):  # Ultralytics writes these three
        kind = f"{metadata.get('head', '')} {metadata.get('description', '')}".lower()
        preset, source = PRESETS["rtdetr" if "rtdetr" in kind else "ultralytics"], "its metadata"
    elif "preprocessing" in metadata:
        preset, source = _of_metadata(metadata, file.path), "its metadata"
    elif beside.is_file():
        preset, source = _of_processor(beside), f"`{beside}`"
    else:
        return Description(class_names=names)
    size = _sides(_literal(metadata.get("imgsz", metadata.get("size", ""))))
    if size is not None:
        preset = replace(preset, preprocessing=replace(preset.preprocessing, size=size))
    return Description(preset, source, names)


def settle(file: OnnxFile, description: Description, **given: Any) -> Preprocessing:
    """How images become inputs of a model: as `given`, else as the preset says, and of the size that the model has.

    Args:
        file: The model.
        description: What the user or the file says of it.
        **given: Fields of `Preprocessing`; None stands for those that are not given.
    """
    image = image_input(file.inputs)
    base = Preprocessing() if description.preset is None else description.preset.preprocessing
    if _fixed_size(image, given.get("layout") or base.layout) is not None:
        base = replace(base, size=None)  # the preset's is for models that leave it open
    base = replace(base, **{name: value for name, value in given.items() if value is not None})
    return completed(base, image)


def at_size(specs: Sequence[InputSpec], image: InputSpec, size: tuple[int, int], layout: str) -> list[InputSpec]:
    """The inputs, the images among them of one size."""
    shape = [length if isinstance(length, int) else 1 for length in image.shape]
    places = _image_axes(layout)
    shape[places[0]], shape[places[1]] = size
    shape[-3 if layout.endswith("CHW") else -1] = 3
    others = other_inputs([spec for spec in specs if spec is not image], image, shape)
    return [replace(spec, shape=tuple(shape) if spec is image else others[spec.name].shape) for spec in specs]


def require_size(file: OnnxFile, preprocessing: Preprocessing) -> None:
    """Refuse to guess the size of a model that leaves it open; one without a batch axis scales its images itself."""
    if preprocessing.size is None and len(image_input(file.inputs).shape) == 4:
        raise InputError(
            f"`{file.path}` leaves its input size open. Pass the height and width that it was trained at as `size`, "
            "or write them as `imgsz` into its metadata."
        )


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


def _literal(text: str) -> Any:
    """A value of the metadata, written as JSON or as Python does; None for any other text."""
    for read in (parse_json, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(text)
    return None


def _names(value: Any) -> tuple[str, ...] | None:
    """Class names: a list, or a dictionary from 0 on."""
    if isinstance(value, dict):
        by_column = {str(key): name for key, name in value.items()}
        value = [by_column.get(str(column)) for column in range(len(by_column))]
    if not isinstance(value, list) or not value or None in value:
        return None
    return tuple(map(str, value))


def _of_metadata(metadata: dict[str, str], path: Path) -> Preset:
    """What generic keys say."""
    preprocessing = parse_preprocessing(metadata["preprocessing"], f"`preprocessing` in the metadata of `{path}`")
    activation, background = metadata.get("activation"), metadata.get("background", "none")
    if activation not in (None, *ACTIVATIONS) or background not in _BACKGROUNDS:
        raise InputError(
            f"The metadata of `{path}` say activation {activation!r} and background {background!r}; write softmax or "
            "sigmoid, and first, last or none."
        )
    return Preset(preprocessing, Postprocessing(), activation=activation, background=_BACKGROUNDS[background])


def _of_processor(path: Path) -> Preset:
    """The image processor of transformers, as far as it can be followed: a size to stretch to, and a normalisation."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        sides = _sides(content.get("size"))
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
        raise InputError(f"`{path}` cannot be read as the configuration of an image processor: {error}.") from error
    kind = str(content.get("image_processor_type", content.get("feature_extractor_type", "")))
    name = next((preset for begin, preset in _PROCESSORS.items() if kind.startswith(begin)), None)
    if name is None:  # what the model gives is not known
        return Preset(preprocessing, Postprocessing(), activation=None)
    return replace(PRESETS[name], preprocessing=preprocessing)


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width; a square where one number is said, and None where nothing or other limits are."""
    if isinstance(size, dict):
        shortest = size.get("shortest_edge")
        size = [size.get("height", shortest), size.get("width", shortest)]
    sides = size if isinstance(size, list | tuple) else [size, size]
    return (int(sides[0]), int(sides[1])) if len(sides) == 2 and None not in sides else None


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
