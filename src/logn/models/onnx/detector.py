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
from logn.models.onnx.inputs import Arrays
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
        file, self._input = model.file, model.images
        self.preprocessing = self._input.preprocessing
        if self.preprocessing.size is None:
            raise InputError(
                f"The boxes of `{model.name}` are in pixels of its input, whose size is open. Pass `size`."
            )
        self.name, self._size = file.path.name, self.preprocessing.size
        trial = self._input.random()
        try:
            located = model.locate(trial)
        except InputError as error:
            if "NonMaxSuppression" in file.graph.operators():  # which logits would not help
                raise chosen_inside(file.graph, self.name) from error
            raise
        self._logits = located.logits
        self._session = file.session(self._logits.tensors, provider=model.provider)
        values = located.values if located.inputs is trial else {}
        values = values or self._session.run(trial)
        try:
            self._boxes = find_boxes(file.graph, self._logits, values, name=self.name)
        except InputError as error:
            images = len(trial[self._input.spec.name]) if self._input.has_batches else 1
            if sum(values[tensor].size for tensor in self._logits.tensors) != images * self._logits.num_columns:
                raise
            raise InputError(
                f"`{model.name}` gives no boxes, but one row of logits per image. For a classifier, {NEEDS_CLASSES}."
            ) from error
        decode_boxes(self._boxes, self._boxes.rows(values), self._size, name=self.name)
        prototypes = [self._boxes.prototypes] if self._boxes.prototypes else []
        self.masks = self._masks if prototypes else None
        self._wanted = list(dict.fromkeys((*self._boxes.outputs, *self._logits.tensors, *prototypes)))
        self.head = replace(model.head, population="every box of the model")
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
        return [proposals for _, part in self._propose(images) for proposals in part]

    def _propose(self, images: Sequence[Any]) -> Iterator[tuple[Arrays, list[Proposals]]]:
        """What each run gives, and the proposals of its images."""
        prepared, start = [self.prepare(image) for image in images], 0
        pixels = [item.pixels for item in prepared]
        for feed, real in self._input.runs(pixels, 1 if self._boxes.one_image else len(images)):
            values = self._session.run(feed, self._wanted)
            count = len(feed[self._input.spec.name]) if self._input.has_batches else 1
            yield values, list(self._proposals(prepared[start : start + real], values, count))
            start += real

    def _proposals(self, images: Sequence[Prepared], values: Arrays, count: int) -> Iterator[Proposals]:
        """The proposals of images, which are the first of `count` in a run."""
        logits, rows = class_rows(self._logits, values, self._boxes.order), self._boxes.rows(values)
        if len(logits) != count or rows.shape[:2] != logits.shape[:2]:
            raise InputError(
                f"`{self.name}` gives {rows.shape[:2]} boxes but {logits.shape[:2]} rows of logits for {count} images; "
                "name the tensor of the class logits by `tensor`."
            )
        boxes = decode_boxes(self._boxes, rows, self._size, name=self.name)
        objectness = self._boxes.objectness_logits(rows)
        for number, item in enumerate(images):
            yield Proposals(
                item.placement.boxes_in_image(boxes[number]).astype(np.float32),
                logits[number],
                item.height,
                item.width,
                objectness=None if objectness is None else objectness[number],
            )

    def _masks(self, image: Any, boxes: Any, classes: Any, rows: Any) -> Iterator[npt.NDArray[np.bool_]]:
        item = self.prepare(image)
        ((values, (proposals,)),) = self._propose([item])
        check_rows(proposals, boxes, rows)
        prototypes = values[str(self._boxes.prototypes)][0].astype(np.float32)
        coefficients = self._boxes.rows(values)[0, rows, -len(prototypes) :].astype(np.float32)
        place = item.placement
        columns = ((np.arange(item.width) + 0.5) * place.scale_x + place.left) * prototypes.shape[2] / self._size[1]
        lines = ((np.arange(item.height) + 0.5) * place.scale_y + place.top) * prototypes.shape[1] / self._size[0]
        return combine_prototypes(prototypes, coefficients, boxes, columns, lines)
