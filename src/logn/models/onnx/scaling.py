"""Scale the class scores of an ONNX output that holds an objectness too, where no shift of the logits is exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.models.onnx.boxes import find_objectness
from logn.models.onnx.file import Arrays, OnnxFile, OnnxGraph
from logn.models.onnx.layers import add_initializer, insert_after
from logn.models.onnx.locate import OnnxLogits, trial_values


@dataclass(frozen=True)
class ScoreScaling:
    """Factors of an output that holds an objectness and class scores, of which users take the product.

    Attributes:
        output: Its name.
        factors: In the shape that is broadcast over it; 1 for boxes and objectness.
        classes: The same shape, True for classes.
    """

    output: str
    factors: npt.NDArray[Any]
    classes: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, file: OnnxFile, logits: OnnxLogits, inputs: Arrays, factors: npt.ArrayLike) -> ScoreScaling:
        """Find the output in a run, for one factor per class."""
        values = trial_values(file, logits, inputs)
        layout = None if values is None else find_objectness(file.graph, logits, values)
        if values is None or layout is None or layout.raw_objectness:
            raise InputError(
                f"`{file.path}` has an objectness, but no output that holds it with boxes and class scores (after "
                "sigmoids). Export the model with one."
            )
        (name,) = layout.outputs
        whole = np.append(np.ones((layout.objectness or 0) + 1), factors)
        shape = -1, *[1] * (max(values[name].ndim - 2, 1) if layout.transposed else 0)
        is_class = np.arange(len(whole)) > (layout.objectness or 0)
        return cls(name, whole.astype(values[name].dtype).reshape(shape), is_class.reshape(shape))

    def insert(self, model: Any) -> None:
        """Put the node in."""
        graph = OnnxGraph(model)
        insert_after(graph, self.output, "Mul", add_initializer(graph, "logn_class_factors", self.factors))

    def check(self, expected: Arrays, found: Arrays, tolerance: float) -> None:
        """Scale what is expected, and compare the class scores alone: boxes may be a thousand times as large."""
        expected[self.output] = expected[self.output] * self.factors
        old, new = (np.where(self.classes, values[self.output], 0) for values in (expected, found))
        if not np.allclose(new, old, rtol=0, atol=tolerance * max(1.0, float(np.abs(old).max()))):
            raise InputError(
                f"The class scores of `{self.output}` are not scaled by their factors; nothing was written."
            )
