"""From the outputs of an ONNX detector to boxes: which layout they have is found out by a run, and then followed.

Score columns are those that equal the activation of the class logits, in their order: so boxes and logits of a row
belong together, or the layout is refused. What the four numbers of a box mean follows from the graph: straight from a
layer they are offsets to a grid, or bins of a distribution; straight from a sigmoid parts of the input; else pixels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import logit, sigmoid, softmax
from logn.base.boxes import corners_of
from logn.errors import InputError
from logn.models.onnx.candidates import ACTIVATIONS
from logn.models.onnx.graph import OnnxGraph
from logn.models.onnx.layers import find_layers
from logn.models.onnx.locate import OnnxLogits

Array = npt.NDArray[Any]

# How far apart a score of the output and the activation of its logit may be: relative to the largest, since levels
# whose scores are all low must not be mistaken for each other; but a sigmoid is no more exact than this.
_SAME, _SAME_SIGMOID = 1e-4, 1e-6
# The largest probability below 1 in float32: an objectness of 1 has no logit.
_ALMOST_ONE = 1 - 2.0**-24
_CHOOSING = ("NonMaxSuppression", "TopK", "Loop", "Scan", "EfficientNMS_TRT", "BatchedNMS_TRT", "NonZero")
# Strides of the levels of a pyramid, and where the box of a place starts: at its middle, or at its corner.
_PYRAMIDS = ((8, 16, 32), (8, 16, 32, 64), (8, 16, 32, 64, 128), (4, 8, 16, 32), (16, 32))
# The logarithm of a size, in strides, that no image has.
_LARGEST = 30.0


@dataclass(frozen=True)
class BoxLayout:
    """Where boxes and objectness are in the outputs, and what they mean.

    Attributes:
        outputs: The outputs that hold boxes, one per level or one for all.
        transposed: Whether they have their rows along the last axis.
        kind: "centre" (cx, cy, w, h in pixels), "corners", "unit" (cx, cy, w, h from 0 to 1), "grid" or "bins".
        first: Column at which a box begins.
        width: How many columns it has: 4, or four times the bins.
        objectness: Its column, or None.
        raw_objectness: Whether that is a logit.
        middle: Where in its place a box of bins is measured from: 0.5 for the middle.
        one_image: Whether the outputs have no axis for images: a run takes one image.
        order: The order of the levels of class logits in which rows agree with boxes.
        prototypes: The output of mask prototypes, whose coefficients are the last columns; None without masks.
    """

    outputs: tuple[str, ...]
    transposed: bool
    kind: str
    first: int = 0
    width: int = 4
    objectness: int | None = None
    raw_objectness: bool = False
    middle: float = 0.5
    one_image: bool = False
    order: tuple[int, ...] = (0,)
    prototypes: str | None = None

    def rows(self, values: Mapping[str, Array]) -> Array:
        """The outputs as rows `(images, rows, columns)`."""
        levels = [_as_rows(values[name], self.transposed) for name in self.outputs]
        return levels[0] if len(levels) == 1 else np.concatenate(levels, axis=1)

    def objectness_logits(self, rows: Array) -> npt.NDArray[np.float32] | None:
        """The objectness of `rows`, `(images, rows)`; mostly the graph gives its sigmoid."""
        if self.objectness is None:
            return None
        column = rows[..., self.objectness].astype(np.float64)
        if self.raw_objectness:
            return column.astype(np.float32)
        clipped = np.clip(column, np.finfo(np.float32).tiny, _ALMOST_ONE)
        return logit(clipped).astype(np.float32)


def class_rows(logits: OnnxLogits, values: Mapping[str, Array], order: Sequence[int]) -> Array:
    """The class logits `(images, rows, classes)`, level after level."""
    levels = [_of_images(logits.rows(values[tensor])) for tensor in logits.tensors]
    return np.concatenate([levels[place] for place in order], axis=1)


def _of_images(rows: Array) -> Array:
    """Rows of class logits as `(images, rows, classes)`; without an axis for images they are those of one image."""
    return rows[None] if rows.ndim == 2 else rows.reshape(len(rows), -1, rows.shape[-1])


def find_boxes(graph: OnnxGraph, logits: OnnxLogits, values: Mapping[str, Array], *, name: str) -> BoxLayout:
    """Find the boxes among the outputs of a run.

    Args:
        graph: The model.
        logits: Where its class logits are.
        values: The outputs and the tensors of the logits, from a run.
        name: What error messages call the model.
    """
    if graph.outputs and any(values[output].ndim < 2 for output in graph.outputs):
        raise chosen_inside(graph, name)
    for order, scores in _ordered_scores(logits, values):
        layout = _joint(graph, logits, values, scores) or _beside(graph, logits, values, scores)
        if layout is not None:
            one_image = any(values[tensor].ndim == 2 for tensor in (*layout.outputs, *logits.tensors))
            return replace(layout, kind=_kind(graph, layout, values, logits), one_image=one_image, order=order)
    raise chosen_inside(graph, name)


def find_objectness(graph: OnnxGraph, logits: OnnxLogits, values: Mapping[str, Array]) -> BoxLayout | None:
    """The layout of an output that holds an objectness between boxes and scores; None where there is none.

    Args:
        graph: The model.
        logits: Where its class logits are.
        values: The outputs and the tensors of the logits, from a run; empty where there was none.
    """
    for order, scores in _ordered_scores(logits, values) if values else ():
        layout = _joint(graph, logits, values, scores)
        if layout is not None:
            return replace(layout, order=order) if layout.objectness is not None else None
    return None


def _ordered_scores(logits: OnnxLogits, values: Mapping[str, Array]) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Orders of the levels, and the scores of all rows in that order; of many levels their own order alone."""
    for order in itertools.permutations(range(len(logits.tensors))):
        rows = class_rows(logits, values, order)
        yield order, {"sigmoid": sigmoid, "softmax": softmax}.get(str(logits.activation), np.asarray)(rows)
        if len(order) > 5:
            return


def chosen_inside(graph: OnnxGraph, name: str) -> InputError:
    """Why the boxes of a model cannot be stored."""
    present = graph.operators()
    inside = next((operator for operator in _CHOOSING if operator in present), None)
    if inside is not None:
        return InputError(
            f"`{name}` chooses among its boxes inside the graph ({inside}), so those that it drops cannot be scored "
            "again. It can be corrected; export it without that step to store its predictions."
        )
    shapes = ", ".join(graph.outputs)
    return InputError(
        f"No output of `{name}` ({shapes}) holds boxes beside the class scores; export the model with its boxes."
    )


def _as_rows(array: Array, transposed: bool) -> Array:
    """`(images, rows, columns)`; a map becomes rows too, and `(rows, columns)` are those of one image."""
    if array.ndim == 2:
        array = array[None]
    if array.ndim > 3 and transposed:
        array = array.reshape(*array.shape[:2], -1)
    elif array.ndim > 3:
        array = array.reshape(array.shape[0], -1, array.shape[-1])
    return np.swapaxes(array, 1, 2) if transposed else array


def _joint(graph: OnnxGraph, logits: OnnxLogits, values: Mapping[str, Array], scores: Array) -> BoxLayout | None:
    """An output that holds the boxes before the scores, or a distribution behind them."""
    for output, transposed in itertools.product(graph.outputs, (False, True)):
        rows = _as_rows(values[output], transposed) if values[output].ndim >= 2 else np.zeros((1, 0, 0))
        extra = rows.shape[2] - scores.shape[2]
        if rows.shape[1] != scores.shape[1] or extra < 4:
            continue
        if extra in (4, 5) and _same(rows[..., extra:], scores):
            raw = extra == 5 and logits.activation is None
            return BoxLayout((output,), transposed, "", objectness=4 if extra == 5 else None, raw_objectness=raw)
        if extra % 4 == 0 and extra > 4 and _same(rows[..., :-extra], scores):
            return BoxLayout((output,), transposed, "", first=scores.shape[2], width=extra, middle=0.0)
        masks = [name for name in graph.outputs if values[name].ndim == 4 and values[name].shape[1] == extra - 4]
        if masks and extra > 4 and _same(rows[..., 4 : 4 - extra], scores):
            return BoxLayout((output,), transposed, "", prototypes=masks[0])
    return None


def _beside(graph: OnnxGraph, logits: OnnxLogits, values: Mapping[str, Array], scores: Array) -> BoxLayout | None:
    """Outputs of boxes beside those of scores: one for all rows, or one per level, as long as the levels."""
    counts = [_of_images(logits.rows(values[tensor])).shape[1] for tensor in logits.tensors]
    for transposed, single in itertools.product((False, True), (True, False)):
        rows = {name: _as_rows(values[name], transposed) for name in graph.outputs if values[name].ndim >= 2}
        outputs = []
        for part in [scores] if single else np.split(scores, np.cumsum(counts)[:-1], axis=1):
            fitting = [
                name
                for name, array in rows.items()
                if array.shape[1] == part.shape[1] and array.shape[2] % 4 == 0 and not _same(array, part)
            ]
            fours = [name for name in fitting if rows[name].shape[2] == 4]
            outputs.append(fours if len(fours) == 1 else fitting)
        if all(len(fitting) == 1 for fitting in outputs):
            names = tuple(fitting[0] for fitting in outputs)
            return BoxLayout(names, transposed, "", width=rows[names[0]].shape[2])
    return None


def _same(first: Array, second: Array) -> bool:
    if first.shape != second.shape or not first.size:
        return False
    tolerance = 4e-3 if first.dtype == np.float16 else _SAME
    nearest_zero = max(_SAME_SIGMOID, tolerance * min(1.0, float(np.abs(second).max())))
    return bool(np.allclose(first, second, rtol=tolerance, atol=nearest_zero))


def _kind(graph: OnnxGraph, layout: BoxLayout, values: Mapping[str, Array], logits: OnnxLogits) -> str:
    """What the numbers of a box mean."""
    if layout.width > 4:
        return "bins"
    origin, boxes = find_layers(graph, layout.outputs[0]), layout.rows(values)
    if {*origin.stops} <= ACTIVATIONS.keys():
        classes = {layer.output for layer in logits.layers}
        if any(layer.output not in classes for layer in origin.layers):
            return "grid"
        if origin.stops:
            return "unit"
    # All that put boxes and scores into one output count from the centre.
    joint = len(layout.outputs) == 1 and boxes.shape[2] > layout.width
    ordered = (boxes[..., 2] >= boxes[..., 0]).all() and (boxes[..., 3] >= boxes[..., 1]).all()
    return "corners" if ordered and not joint else "centre"


def decode_boxes(layout: BoxLayout, rows: Array, size: tuple[int, int], *, name: str = "the model") -> Array:
    """Corners `x1, y1, x2, y2` of each row, in pixels of the input.

    Args:
        layout: What the rows hold.
        rows: `(images, rows, columns)`.
        size: Height and width of the input.
        name: What error messages call the model.

    Example:
        >>> layout = BoxLayout(("y",), False, "unit")
        >>> decode_boxes(layout, np.array([[[0.5, 0.5, 1.0, 0.5]]]), (100, 200)).tolist()
        [[[0.0, 25.0, 200.0, 75.0]]]
    """
    boxes = rows[..., layout.first : layout.first + layout.width].astype(np.float32)
    if layout.kind == "corners":
        return boxes
    if layout.kind in ("centre", "unit"):
        unit = np.array([size[1], size[0]] * 2, np.float32) if layout.kind == "unit" else np.float32(1)
        return corners_of(boxes) * unit
    places, strides = _grid(rows.shape[1], size, name)
    if layout.kind == "grid":
        centres = (boxes[..., :2] + places) * strides
        sides = np.exp(np.minimum(boxes[..., 2:], np.float32(_LARGEST)))  # stays finite
        return corners_of(np.concatenate([centres, sides * strides], axis=-1))
    bins = boxes.reshape(*boxes.shape[:2], 4, -1)
    powers = np.exp(bins - bins.max(axis=-1, keepdims=True))
    distances = powers @ np.arange(bins.shape[-1], dtype=np.float32) / powers.sum(axis=-1) * strides
    centres = (places + np.float32(layout.middle)) * strides
    return np.concatenate([centres - distances[..., :2], centres + distances[..., 2:]], axis=-1)


@functools.lru_cache(maxsize=8)
def _grid(count: int, size: tuple[int, int], name: str) -> tuple[Array, Array]:
    """Column and row of each place of a pyramid, `(count, 2)`, and the stride of its level, `(count, 1)`."""
    for strides in _PYRAMIDS:
        shapes = [(-(-size[0] // stride), -(-size[1] // stride)) for stride in strides]
        if sum(height * width for height, width in shapes) == count:
            break
    else:
        raise InputError(
            f"`{name}` has {count} boxes, which fit no pyramid of strides 8, 16, 32 over an input of {size[0]} x "
            f"{size[1]}; export it with boxes in pixels."
        )
    places = [np.stack(np.meshgrid(range(width), range(height)), axis=-1).reshape(-1, 2) for height, width in shapes]
    widths = [np.full((height * width, 1), stride) for (height, width), stride in zip(shapes, strides, strict=True)]
    return np.concatenate(places).astype(np.float32), np.concatenate(widths).astype(np.float32)
