"""An ONNX detector, run by onnxruntime, as a source of proposals with all logits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.base.arrays import is_torch_tensor
from logn.data.class_tables import read_class_names
from logn.errors import InputError
from logn.models.onnx.boxes import chosen_inside, class_rows, decode_boxes, find_boxes
from logn.models.onnx.description import at_size, image_input, other_inputs, require_size, settle
from logn.models.onnx.file import (
    SUPPRESSION,
    Arrays,
    OnnxSession,
    exposing,
    model_inputs,
    onnx_digest,
    operators,
    random_inputs,
    read_onnx,
)
from logn.models.onnx.locate import locate_onnx_logits, trial_values, wanted_of
from logn.models.preprocessing import PRESETS, Placement, Preprocessing
from logn.models.proposals import Postprocessing, Proposals

Like = str | os.PathLike[str] | Preprocessing


def preparation(like: Any, size: tuple[int, int] | None = None) -> tuple[str | None, dict[str, Any]]:
    """What `like` and `size` say: the name of a preset or of a JSON file, and fields that differ from it.

    Example:
        >>> preparation("yolox", (416, 416))
        ('yolox', {'size': (416, 416)})
    """
    sized = {} if size is None else {"size": size}
    if isinstance(like, Preprocessing):
        return None, {**vars(like), **sized}
    return None if like is None else os.fspath(like), sized


def unprepared(path: Any) -> InputError:
    """The error for a file that does not say how its images are prepared."""
    presets = ", ".join(PRESETS)
    return InputError(
        f"`{path}` does not say how its images are prepared. Pass `like` (`--like`): one of {presets}, or a .json file."
    )


class Prepared(NamedTuple):
    """An image as the model takes it, and where it came from."""

    pixels: npt.NDArray[Any]
    placement: Placement
    height: int
    width: int


class OnnxDetector:
    """A detector in an ONNX file that gives its proposals before any activation.

    The class logits are read inside the graph, where `logn.fold_onnx` corrects them, and the boxes from the outputs.
    Which layout these have is found out by a run: boxes, objectness and scores in one output (YOLOv5, YOLOX, YOLOv8),
    or in outputs of their own (NanoDet, DETR, SSD). A model that chooses among its boxes inside is refused.

    Args:
        path: The ONNX file.
        like: How images are prepared, if the file does not say it: a preset of `logn.models.preprocessing` such as
            "yolox", a JSON file with fields of `Preprocessing`, or a `Preprocessing`.
        size: Height and width of the input, if the file leaves it open.
        class_names: Name of each class, or a file of them; by default what the file says.
        activation: "softmax" or "sigmoid", where the graph ends with the logits.
        background: Index of the background column: 0 or -1; by default what `like` says, else none.
        tensor: Name of the tensor that holds the logits, or several, where the search finds several.
        provider: Where the model runs, by onnxruntime's name.
    """

    population = "every box of the model"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        like: Like | None = None,
        size: tuple[int, int] | None = None,
        class_names: Sequence[str] | str | os.PathLike[str] | None = None,
        activation: str | None = None,
        background: int | None = None,
        tensor: str | Sequence[str] | None = None,
        provider: str = "CPUExecutionProvider",
    ) -> None:
        file = read_onnx(path)
        name, given = preparation(like, size)
        self.preprocessing, description = settle(file, name, **given)
        preset = description.preset
        if preset is None and not given:
            raise unprepared(path)
        specs = model_inputs(file.model)
        self._image = image_input(specs)
        require_size(file, self.preprocessing)
        if self.preprocessing.size is None:
            raise InputError(f"The boxes of `{path}` are in pixels of its input, whose size is open. Pass `size`.")
        self._size = self.preprocessing.size
        self._others = [spec for spec in specs if spec is not self._image]
        names = (tensor,) if isinstance(tensor, str) else tuple(tensor or ())
        wanted = wanted_of(description, None, names, activation, has_background=background is not None)
        trial = random_inputs(at_size(specs, self._image, self._size, self.preprocessing.layout or "NCHW"))
        graph = file.graph
        try:
            self._logits, _ = locate_onnx_logits(file, wanted, trial)
        except InputError as error:
            if SUPPRESSION in operators(graph.nodes):  # which logits would not help
                raise chosen_inside(graph, Path(path).name) from error
            raise
        self.name, self.fingerprint = Path(path).name, onnx_digest(file)
        exposed = exposing(file.model, self._logits.tensors)
        values = trial_values(file, self._logits, trial) or OnnxSession(exposed, str(path)).run(trial)
        self._boxes = find_boxes(graph, self._logits, values, name=self.name)
        decode_boxes(self._boxes, self._boxes.rows(values), self._size, name=self.name)
        self._session = OnnxSession(exposed, str(path), provider=provider)
        self._wanted = list(dict.fromkeys((*self._boxes.outputs, *self._logits.tensors)))
        found, self.background = description.reading(self._logits.activation or activation, background)
        self.activation = _known(found, path)
        self.num_classes = self._logits.num_columns - (self.background is not None)
        columns = self._logits.num_columns
        self.class_names = _foreground_names(
            class_names, description.names_of(columns, self.background), columns, self.background
        )
        self.postprocessing = Postprocessing() if preset is None else preset.postprocessing

    def prepare(self, image: npt.NDArray[np.uint8]) -> Prepared:
        """An RGB image `(height, width, 3)` as `propose` takes it; may run in another thread."""
        height, width = image.shape[:2]
        return Prepared(self.preprocessing.apply(image), self.preprocessing.placement(height, width), height, width)

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image: prepared ones, RGB arrays of 0 to 255, or float tensors `(3, H, W)`."""
        prepared = [item if isinstance(item, Prepared) else self.prepare(_pixels(item)) for item in images]
        found: list[Proposals] = []
        for part in self._batches(prepared):
            found.extend(self._propose(part))
        return found[: len(images)]

    def _batches(self, prepared: Sequence[Prepared]) -> Iterator[list[Prepared]]:
        """As many images at once as the model takes; the last ones are filled up by repeating one."""
        fixed = 1 if self._boxes.one_image or len(self._image.shape) < 4 else self._image.shape[0]
        step = fixed if isinstance(fixed, int) else max(1, len(prepared))
        for start in range(0, len(prepared), step):
            part = list(prepared[start : start + step])
            filling = [part[-1]] * (step - len(part)) if isinstance(fixed, int) else []
            yield part + filling

    def _propose(self, part: Sequence[Prepared]) -> Iterator[Proposals]:
        batched = len(self._image.shape) == 4
        pixels = np.stack([item.pixels for item in part]) if batched else part[0].pixels
        values = self.run(pixels)
        logits = class_rows(self._logits, values, self._boxes.order)
        rows = self._boxes.rows(values)
        if len(logits) != len(part) or rows.shape[:2] != logits.shape[:2]:
            raise InputError(
                f"`{self.name}` gives {rows.shape[:2]} boxes but {logits.shape[:2]} rows of logits for {len(part)} "
                "images; name the tensor of the class logits by `tensor`."
            )
        boxes = decode_boxes(self._boxes, rows, self._size, name=self.name)
        objectness = self._boxes.objectness_logits(rows)
        for number, item in enumerate(part):
            yield Proposals(
                item.placement.boxes_in_image(boxes[number]).astype(np.float32),
                logits[number],
                item.height,
                item.width,
                objectness=None if objectness is None else objectness[number],
            )

    def run(self, pixels: npt.NDArray[Any]) -> Arrays:
        """The outputs that hold boxes, and the tensors that hold class logits, for prepared images."""
        feed: Arrays = {self._image.name: pixels, **other_inputs(self._others, self._image, pixels.shape)}
        return self._session.run(feed, self._wanted)


def _known(found: str | None, path: Any) -> str:
    if found is None:
        raise InputError(f"The graph of `{path}` ends with the logits. Pass `activation`: softmax or sigmoid.")
    return found


def _foreground_names(
    given: Sequence[str] | str | os.PathLike[str] | None,
    said: tuple[str, ...] | None,
    columns: int,
    background: int | None,
) -> tuple[str, ...] | None:
    """The name of each class but the background; None where nobody says."""
    if given is None and said is None:
        return None
    if isinstance(given, str | os.PathLike):
        names = read_class_names(given, columns, background)
    else:
        names = tuple(given or said or ())
    if background is not None and len(names) == columns:
        names = names[1:] if background == 0 else names[:-1]
    expected = columns - (background is not None)
    if len(names) != expected:
        raise InputError(f"Expected `class_names` to name the {expected} classes of the model, but got {len(names)}.")
    return names


def _pixels(image: Any) -> npt.NDArray[np.uint8]:
    """An RGB array of 0 to 255 as it is; a float tensor `(3, H, W)` of 0 to 1 as one."""
    if is_torch_tensor(image):
        image = image.numpy(force=True)
    array = np.asarray(image)
    if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3:
        return array
    if array.ndim != 3 or array.shape[0] != 3 or array.dtype.kind != "f":
        raise InputError(
            f"Expected an image of shape (3, H, W), 0 to 1, or (H, W, 3) of uint8, but got {array.shape} of "
            f"{array.dtype}."
        )
    return np.asarray(np.rint(array.transpose(1, 2, 0) * 255), np.uint8)
