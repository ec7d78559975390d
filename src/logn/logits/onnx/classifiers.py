"""Writing the classifiers of ai.onnx.ml, which scikit-learn is exported to, as plain operators with raw scores between.

Such an operator computes raw scores, the label and the probabilities in one, so that its logits are nowhere to be read
and a map behind it would leave the label as it was. Taken apart, it gives the very same outputs, and the logits are the
tensor between its two halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from logn.logits.onnx.graph import attribute

ML_DOMAIN = "ai.onnx.ml"
TREES = "TreeEnsembleClassifier"
_ACTIVATIONS = {b"NONE": "Identity", b"SOFTMAX": "Softmax", b"LOGISTIC": "Sigmoid"}
# The oldest version in which Softmax means one axis, for a file that names no version of the standard operators.
_PLAIN_OPSET = 13


def expand_classifiers(model: Any) -> Any:
    """A copy of `model` with its linear and tree classifiers taken apart; the model itself where there are none.

    Classifiers that cannot be (one score for two classes, forests that count votes) stay as they are.

    Example:
        >>> from onnx import TensorProto, helper
        >>> node = helper.make_node(
        ...     "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", classlabels_ints=[0, 1],
        ...     coefficients=[1.0, 2.0], intercepts=[0.0, 0.5], post_transform="SOFTMAX")
        >>> rows = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1])
        >>> model = helper.make_model(helper.make_graph([node], "g", [rows], []))
        >>> [node.op_type for node in expand_classifiers(model).graph.node]
        ['Cast', 'Gemm', 'Softmax', 'ArgMax', 'Gather']
    """
    if not any(_can_be_expanded(node) for node in model.graph.node):
        return model
    copy = type(model)()
    copy.CopyFrom(model)
    taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
    nodes = [part for node in copy.graph.node for part in _parts(copy.graph, node, taken)]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    if not any(entry.domain in ("", "ai.onnx") for entry in copy.opset_import):
        copy.opset_import.add(domain="", version=_PLAIN_OPSET)
    return copy


def _can_be_expanded(node: Any) -> bool:
    if node.domain != ML_DOMAIN or node.op_type not in ("LinearClassifier", TREES):
        return False
    labels, transform = _labels(node), attribute(node, "post_transform", b"NONE")
    if len(labels) < 2 or transform not in _ACTIVATIONS:
        return False
    if node.op_type == TREES:
        # Without a transform the scores are outputs already; with one score for two classes there are none per class.
        return transform != b"NONE" and set(attribute(node, "class_ids", ())) == set(range(len(labels)))
    return len(attribute(node, "intercepts", ())) == len(labels)


def _labels(node: Any) -> list[Any]:
    names = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
    return next((list(found) for name in names if (found := attribute(node, name, ()))), [])


def _parts(graph: Any, node: Any, taken: set[str]) -> Iterator[Any]:
    """The nodes that stand for `node`, its outputs under their old names."""
    from onnx import helper, numpy_helper

    if not _can_be_expanded(node):
        yield node
        return
    label, scores = (*node.output, "")[:2]
    kind = _ACTIVATIONS[attribute(node, "post_transform", b"NONE")]
    stem = scores or label
    raw = _free(f"{stem}_raw", taken)
    yield from _tree_scores(node, raw, taken) if node.op_type == TREES else _linear_scores(graph, node, raw, taken)
    if scores:
        activation = helper.make_node(kind, [raw], [scores])
        if kind == "Softmax":
            activation.attribute.append(helper.make_attribute("axis", 1))
        yield activation
    if label:
        index, names = _free(f"{stem}_place", taken), _free(f"{stem}_labels", taken)
        labels = _labels(node)
        values = np.array(labels, object if isinstance(labels[0], bytes) else np.int64)
        graph.initializer.append(numpy_helper.from_array(values, names))
        yield helper.make_node("ArgMax", [raw], [index], axis=1, keepdims=0)
        yield helper.make_node("Gather", [names, index], [label])


def _linear_scores(graph: Any, node: Any, raw: str, taken: set[str]) -> Iterator[Any]:
    from onnx import TensorProto, helper, numpy_helper

    intercepts = np.array(attribute(node, "intercepts", ()), np.float32)
    weight = np.array(attribute(node, "coefficients", ()), np.float32).reshape(len(intercepts), -1)
    names = {wish: _free(f"{raw}_{wish}", taken) for wish in ("input", "weight", "bias")}
    graph.initializer.append(numpy_helper.from_array(weight, names["weight"]))
    graph.initializer.append(numpy_helper.from_array(intercepts, names["bias"]))
    yield helper.make_node("Cast", [node.input[0]], [names["input"]], to=TensorProto.FLOAT)
    yield helper.make_node("Gemm", [*names.values()], [raw], transB=1)


def _tree_scores(node: Any, raw: str, taken: set[str]) -> Iterator[Any]:
    from onnx import helper

    trees = type(node)()
    trees.CopyFrom(node)
    for item in [item for item in trees.attribute if item.name == "post_transform"]:
        trees.attribute.remove(item)
    trees.attribute.append(helper.make_attribute("post_transform", "NONE"))
    del trees.output[:]
    trees.output.extend([_free(f"{raw}_label", taken), raw])
    yield trees


def _free(wish: str, taken: set[str]) -> str:
    while wish in taken:
        wish += "_"
    taken.add(wish)
    return wish
