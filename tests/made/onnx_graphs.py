"""ONNX files written by hand, and what their tensors hold."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnx import numpy_helper

from logn.methods.affine import ClassAffine

THREE = ClassAffine([0.5, 2.0, 1.5], [1.0, -2.0, 0.25], method="example")


def write_graph(
    path, body, outputs="float[N, 3] y", *, inputs="float[N, 4] x", opset=17, seed=7, metadata=None, **weights
):
    """Write a model from the text of its nodes, and of its weights: arrays, or shapes to draw; gives the path."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    model, draw = onnx.parser.parse_model(text), np.random.default_rng(seed).normal
    for name, given in weights.items():
        array = draw(size=given).astype(np.float32) if isinstance(given, tuple) else np.asarray(given)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model)
    onnx.save_model(model, str(path))
    return path


def run_graph(path, feed, tensor=None):
    """All outputs of a model by name, or one tensor inside of it."""
    model = onnx.load(str(path))
    if tensor is not None:
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name=tensor))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = dict(zip([value.name for value in session.get_outputs()], session.run(None, feed), strict=True))
    return results if tensor is None else results[tensor]
