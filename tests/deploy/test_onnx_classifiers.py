"""Models of scikit-learn are refused, and so is a softmax that is written out; naming the raw scores helps."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import logn
from logn.errors import InputError

AFFINE = logn.ClassAffine([2.0, 1.0, 0.5], [0.0, 1.0, 3.0])
WEIGHT = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def test_a_model_of_scikit_learn_is_refused_with_what_to_do(tmp_path):
    node = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=WEIGHT.ravel().tolist(),
        intercepts=[0.5, -0.25, 0.125],
        post_transform="SOFTMAX",
        classlabels_ints=[7, 8, 9],
    )
    graph = helper.make_graph(
        [node],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 3])],
    )
    imports = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 17)]
    onnx.save_model(helper.make_model(graph, opset_imports=imports, ir_version=8), str(tmp_path / "model.onnx"))
    with pytest.raises(InputError, match=r"a neural network, but it has LinearClassifier .*LogitNormalizer instead"):
        logn.fold_onnx(tmp_path / "model.onnx", AFFINE, tmp_path / "corrected.onnx")
    assert not (tmp_path / "corrected.onnx").exists()


def bayes(path):
    """A softmax that is written out: the exponential of x W - logsumexp(x W)."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] probabilities) {
        raw = MatMul(x, w)
        moved = Add(raw, raw)
        total = ReduceLogSumExp <axes = [1]> (moved)
        log = Sub(moved, total)
        probabilities = Exp(log)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(WEIGHT.T), "w"))
    onnx.save_model(model, str(path))
    return path


def test_a_softmax_in_another_guise_is_no_logits_and_naming_the_raw_scores_helps(tmp_path):
    path = bayes(tmp_path / "bayes.onnx")
    with pytest.raises(InputError, match=r"`probabilities` holds probabilities .* made by Exp.* by their `tensor`"):
        logn.fold_onnx(path, AFFINE, tmp_path / "corrected.onnx")
    report = logn.fold_onnx(path, AFFINE, tmp_path / "corrected.onnx", tensor="moved", axis=-1)
    assert report.tensors == ("moved",)
