"""An ONNX detector, run by onnxruntime, as a source of proposals with all logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.data.masks import combine_prototypes
from logn.errors import InputError
from logn.models.detector import Detector
from logn.models.images import as_rgb
from logn.models.onnx.boxes import chosen_inside, class_rows, decode_boxes, find_boxes
from logn.models.onnx.description import at_size, image_input, other_inputs
from logn.models.onnx.file import Arrays, random_inputs
from logn.models.onnx.model import OnnxModel
from logn.models.opened import NEEDS_CLASSES
from logn.models.preprocessing import Placement
from logn.models.proposals import Postprocessing, Proposals, check_rows


class Prepared(NamedTuple):
    """An image as the model takes it, and where it came from."""

    pixels: npt.NDArray[Any]
    placement: Placement
    height: int
    width: int


class OnnxDetector(Detector):
    """A detector in an ONNX file that gives its proposals before any activation.

    The class logits are read inside the graph, where `logn.fold_onnx` corrects them, and the boxes from the outputs.
    Which layout these have is found out by a run: boxes, objectness and scores in one output (YOLOv5, YOLOX, YOLOv8),
    or in outputs of their own (NanoDet, DETR, SSD). A model that chooses among its boxes inside is refused.

    Args:
        model: The opened file.
    """

    def __init__(self, model: OnnxModel) -> None:
        file, preprocessing = model.file, model.preprocessing
        if preprocessing.size is None:
            raise InputError(
                f"The boxes of `{model.name}` are in pixels of its input, whose size is open. Pass `size`."
            )
        self.preprocessing, self._size = preprocessing, preprocessing.size
        self._image = image_input(file.inputs)
        self._others = [spec for spec in file.inputs if spec is not self._image]
        trial = random_inputs(at_size(file.inputs, self._image, self._size, preprocessing.layout or "NCHW"))
        try:
            located = model.locate(trial)
        except InputError as error:
            if "NonMaxSuppression" in file.graph.operators():  # which logits would not help
                raise chosen_inside(file.graph, file.path.name) from error
            raise
        self.name = file.path.name
        self._logits = located.logits
        self._session = file.session(self._logits.tensors, provider=model.provider)
        values = located.values if located.inputs is trial else {}
        values = values or self._session.run(trial)
        try:
            self._boxes = find_boxes(file.graph, self._logits, values, name=self.name)
        except InputError as error:
            images = len(trial[self._image.name]) if len(self._image.shape) == 4 else 1
            if sum(values[tensor].size for tensor in self._logits.tensors) != images * self._logits.num_columns:
                raise
            raise InputError(
                f"`{model.name}` gives no boxes, but one row of logits per image. For a classifier, {NEEDS_CLASSES}."
            ) from error
        decode_boxes(self._boxes, self._boxes.rows(values), self._size, name=self.name)
        prototypes = [self._boxes.prototypes] if self._boxes.prototypes else []
        self.masks = self._masks if prototypes else None
        self._wanted = list(dict.fromkeys((*self._boxes.outputs, *self._logits.tensors, *prototypes)))
        self.head = replace(model.head_at(self._logits), population="every box of the model")
        if self.head.activation is None:
            raise InputError(
                f"The graph of `{model.name}` ends with the logits. Pass `activation`: softmax or sigmoid."
            )
        preset = model.description.preset
        self.postprocessing = Postprocessing() if preset is None else preset.postprocessing

    @property
    def source(self) -> str | None:
        """Digest of the file."""
        return self.head.source

    def prepare(self, image: Any) -> Prepared:
        """An image as the model takes it."""
        if isinstance(image, Prepared):
            return image
        pixels = as_rgb(image)
        height, width = pixels.shape[:2]
        return Prepared(self.preprocessing.apply(pixels), self.preprocessing.placement(height, width), height, width)

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image."""
        prepared = [self.prepare(image) for image in images]
        found: list[Proposals] = []
        for part in self._batches(prepared):
            found.extend(self._proposals(part, self._values(part)))
        return found[: len(images)]

    def _masks(self, image: Any, boxes: Any, classes: Any, rows: Any) -> Iterator[npt.NDArray[np.bool_]]:
        item = self.prepare(image)
        (part,) = self._batches([item])
        values = self._values(part)
        check_rows(next(self._proposals(part, values)), boxes, rows)
        prototypes = values[str(self._boxes.prototypes)][0].astype(np.float32)
        coefficients = self._boxes.rows(values)[0, rows, -len(prototypes) :].astype(np.float32)
        place = item.placement
        columns = ((np.arange(item.width) + 0.5) * place.scale_x + place.left) * prototypes.shape[2] / self._size[1]
        lines = ((np.arange(item.height) + 0.5) * place.scale_y + place.top) * prototypes.shape[1] / self._size[0]
        return combine_prototypes(prototypes, coefficients, boxes, columns, lines)

    def _batches(self, prepared: Sequence[Prepared]) -> Iterator[list[Prepared]]:
        """As many images at once as the model takes; the last ones are filled up by repeating one."""
        fixed = 1 if self._boxes.one_image or len(self._image.shape) < 4 else self._image.shape[0]
        step = fixed if isinstance(fixed, int) else max(1, len(prepared))
        for start in range(0, len(prepared), step):
            part = list(prepared[start : start + step])
            filling = [part[-1]] * (step - len(part)) if isinstance(fixed, int) else []
            yield part + filling

    def _values(self, part: Sequence[Prepared]) -> Arrays:
        batched = len(self._image.shape) == 4
        return self._run(np.stack([item.pixels for item in part]) if batched else part[0].pixels)

    def _proposals(self, part: Sequence[Prepared], values: Arrays) -> Iterator[Proposals]:
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

    def _run(self, pixels: npt.NDArray[Any]) -> Arrays:
        """The outputs that hold boxes, and the tensors that hold class logits, for prepared images."""
        feed: Arrays = {self._image.name: pixels, **other_inputs(self._others, self._image, pixels.shape)}
        return self._session.run(feed, self._wanted)
