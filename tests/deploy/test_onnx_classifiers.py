"""Models of scikit-learn are refused, and so is a softmax that is written out; naming the raw scores helps."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper
from tests.deploy.conftest import THREE, write_graph

import logn


def test_a_model_of_scikit_learn_is_refused_with_what_to_do(tmp_path, refused):
    node = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=[0.25 * place for place in range(12)],
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
    refused(tmp_path / "model.onnx", r"not a neural network: it has LinearClassifier .*LogitNormalizer instead")


def test_a_softmax_in_another_guise_is_no_logits_and_naming_the_raw_scores_helps(tmp_path, refused):
    """The exponential of x W - logsumexp(x W)."""
    body = """raw = MatMul(x, w) moved = Add(raw, raw) total = ReduceLogSumExp <axes = [1]> (moved)
    log = Sub(moved, total) probabilities = Exp(log)"""
    path = write_graph(tmp_path / "bayes.onnx", body, "float[N, 3] probabilities", w=(4, 3))
    refused(path, r"`probabilities` of .* holds probabilities, .* made by Exp.* as `tensor`")
    report = logn.fold_onnx(path, THREE, tmp_path / "corrected.onnx", tensor="moved", axis=-1)
    assert report.tensors == ("moved",)
