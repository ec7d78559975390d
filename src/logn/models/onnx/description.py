"""What an ONNX file, a file beside it or the user says of the model: its classes, and how images are prepared."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logn.base.strict_json import parse_json
from logn.data.class_names import are_placeholders, names_differ
from logn.errors import InputError
from logn.models.onnx.file import OnnxFile
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

    Metadata are those of Ultralytics, or these keys: `class_names` or `names` (a list, or numbers to names),
    `preprocessing` (an object of the fields of `Preprocessing`), `imgsz` or `size`, `activation` ("softmax" or
    "sigmoid") and `background` ("first", "last" or "none").

    Args:
        file: The model.
        like: The name of a preset, or a `.json` file of preprocessing.
    """
    metadata, names = _metadata(file), names_in(file)
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


def names_in(file: OnnxFile) -> tuple[str, ...] | None:
    """The class names in the metadata of a file: a list, or a dictionary from 0 on; None without any."""
    metadata = _metadata(file)
    value = _literal(metadata.get("names", metadata.get("class_names", "")))
    if isinstance(value, dict):
        by_column = {str(key): name for key, name in value.items()}
        value = [by_column.get(str(column)) for column in range(len(by_column))]
    return tuple(map(str, value)) if isinstance(value, list) and value and None not in value else None


def column_names(
    own: Sequence[str] | None, given: Sequence[str] | None, columns: int, background: int | None, name: str
) -> tuple[str, ...] | None:
    """The names of so many columns, or of their classes: the user's, else the model's own, if it has as many.

    Args:
        own: The model's.
        given: The user's, which must not contradict these, unless they only count the classes.
        columns: How many columns there are, the background included.
        background: Index of the background column.
        name: What to call the model in messages.
    """
    if own is not None and len(own) not in (columns, columns - (background is not None)):
        own = None
    if given is not None and own is not None and not are_placeholders(own):
        said, known = (Head.of_classes(names, columns, background).class_names or () for names in (given, own))
        if difference := names_differ(said, "`class_names`", known, name):
            raise InputError(f"{difference}; leave `class_names` out.")
    names = own if given is None else given
    return None if names is None else tuple(names)


def _metadata(file: OnnxFile) -> dict[str, str]:
    return {entry.key: entry.value for entry in file.model.metadata_props}


def _literal(text: str) -> Any:
    """A value of the metadata, written as JSON or as Python does; None for any other text."""
    for read in (parse_json, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(text)
    return None


def _of_metadata(metadata: dict[str, str], path: Path) -> Preset:
    """What generic keys say."""
    preprocessing = parse_preprocessing(metadata["preprocessing"].encode(), f"preprocessing in the metadata of {path}")
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
