"""Files as skl2onnx writes them: the raw scores are found where there are some, labels follow, the rest is refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import logn
from logn.errors import InputError
from logn.logits.arrays import sigmoid, softmax
from logn.logits.onnx.file import read_onnx

AFFINE = logn.ClassAffine([2.0, 1.0, 0.5], [0.0, 1.0, 3.0])
ROWS = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
BIAS = np.array([0.5, -0.25, 0.125], np.float32)
LABELS = {"classlabels_ints": [7, 8, 9]}


def linear(transform, outputs=("label", "scores"), **labels):
    return helper.make_node(
        "LinearClassifier",
        ["x"],
        outputs,
        domain="ai.onnx.ml",
        coefficients=WEIGHT.ravel().tolist(),
        intercepts=BIAS.tolist(),
        multi_class=1,
        post_transform=transform,
        **(labels or LABELS),
    )


def stumps(transform, weights, base_values=None, outputs=("label", "scores")):
    """One stump per class on the feature of the same number; `weights` (3, 2) are its leaves up to 0 and above."""
    bases = {} if base_values is None else {"base_values": base_values}
    return helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        outputs,
        domain="ai.onnx.ml",
        nodes_treeids=np.repeat(range(3), 3).tolist(),
        nodes_nodeids=[0, 1, 2] * 3,
        nodes_featureids=np.repeat(range(3), 3).tolist(),
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * 3,
        nodes_values=[0.0] * 9,
        nodes_truenodeids=[1, 0, 0] * 3,
        nodes_falsenodeids=[2, 0, 0] * 3,
        class_treeids=np.repeat(range(3), 2).tolist(),
        class_nodeids=[1, 2] * 3,
        class_ids=np.repeat(range(3), 2).tolist(),
        class_weights=np.ravel(weights).tolist(),
        classlabels_int64s=[7, 8, 9],
        post_transform=transform,
        **bases,
    )


def zip_map(tensor):
    return helper.make_node("ZipMap", [tensor], ["dictionaries"], domain="ai.onnx.ml", classlabels_int64s=[7, 8, 9])


def saved(path, nodes, scores="scores", label_type=TensorProto.INT64, opset=17):
    probabilities = helper.make_tensor_value_info(scores, TensorProto.FLOAT, ["N", None])
    if nodes[-1].op_type == "ZipMap":
        kinds = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        probabilities = helper.make_value_info("dictionaries", helper.make_sequence_type_proto(kinds))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("label", label_type, ["N"]), probabilities],
    )
    imports = [helper.make_opsetid("ai.onnx.ml", 1), *([helper.make_opsetid("", opset)] if opset else [])]
    onnx.save_model(helper.make_model(graph, opset_imports=imports, ir_version=8), str(path))
    return path


def run(path):
    model = path if isinstance(path, bytes) else str(path)
    label, scores = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": ROWS})
    return label, np.array([list(row.values()) for row in scores]) if isinstance(scores, list) else scores


def normalizer():
    return helper.make_node("Normalizer", ["scores"], ["probabilities"], domain="ai.onnx.ml", norm="L1")


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_linear_classifier_is_corrected_at_its_raw_scores_and_its_labels_follow(tmp_path, zipped, opset):
    nodes = [linear("SOFTMAX"), normalizer(), *([zip_map("probabilities")] if zipped else [])]
    path = saved(tmp_path / "model.onnx", nodes, "probabilities", opset=opset)
    report = logn.fold_onnx(path, AFFINE, tmp_path / "corrected.onnx")
    assert (report.way, report.activation) == ("weights", "softmax")
    raw = AFFINE(ROWS.astype(np.float64) @ WEIGHT.T.astype(np.float64) + BIAS)
    label, scores = run(tmp_path / "corrected.onnx")
    np.testing.assert_allclose(scores, softmax(raw), atol=1e-6)
    assert label.tolist() == np.array([7, 8, 9])[raw.argmax(axis=1)].tolist()
    assert label.tolist() != run(path)[0].tolist()


def test_one_against_the_rest_is_corrected_before_its_sigmoids(tmp_path):
    path = saved(tmp_path / "model.onnx", [linear("LOGISTIC"), normalizer()], "probabilities")
    report = logn.fold_onnx(path, AFFINE, tmp_path / "corrected.onnx")
    assert (report.way, report.activation) == ("weights", "sigmoid")
    each = sigmoid(AFFINE(ROWS.astype(np.float64) @ WEIGHT.T.astype(np.float64) + BIAS))
    np.testing.assert_allclose(run(tmp_path / "corrected.onnx")[1], each / each.sum(axis=1, keepdims=True), atol=1e-6)


def test_boosted_trees_are_corrected_at_the_sum_of_their_leaves(tmp_path):
    weights, bases = np.array([[1.0, -1.0], [0.5, 2.0], [-1.5, 0.25]]), [0.1, 0.0, -0.2]
    path = saved(tmp_path / "model.onnx", [stumps("SOFTMAX", weights, bases), zip_map("scores")])
    report = logn.fold_onnx(path, AFFINE, tmp_path / "corrected.onnx")
    assert (report.way, report.reason) == ("nodes", "trees have no weights per class")
    raw = AFFINE(np.stack([weights[place][(ROWS[:, place] > 0).astype(int)] for place in range(3)], axis=1) + bases)
    label, scores = run(tmp_path / "corrected.onnx")
    np.testing.assert_allclose(scores, softmax(raw), atol=1e-6)
    assert label.tolist() == np.array([7, 8, 9])[raw.argmax(axis=1)].tolist()


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("make", [linear, lambda transform: stumps(transform, [[1, -1], [0.5, 2], [-1.5, 0.25]])])
def test_taken_apart_a_classifier_gives_the_same(tmp_path, make, transform):
    path = saved(tmp_path / "model.onnx", [make(transform)], opset=None if transform == "NONE" else 17)
    label, scores = run(path)
    expanded = run(read_onnx(path).model.SerializeToString())
    assert expanded[0].tolist() == label.tolist()
    np.testing.assert_allclose(expanded[1], scores, atol=1e-6)


def test_labels_may_be_texts(tmp_path):
    nodes = [linear("SOFTMAX", classlabels_strings=["ant", "bee", "cat"])]
    path = saved(tmp_path / "model.onnx", nodes, label_type=TensorProto.STRING)
    logn.fold_onnx(path, logn.ClassAffine([1.0, 1.0, 1.0], [0.0, 50.0, 0.0]), tmp_path / "corrected.onnx")
    assert set(run(tmp_path / "corrected.onnx")[0].tolist()) == {"bee"}
    assert set(run(path)[0].tolist()) > {"bee"}


@pytest.mark.parametrize("zipped", [False, True])
def test_the_votes_of_a_forest_are_no_logits(tmp_path, zipped):
    votes = np.repeat([[0.5], [0.3], [0.2]], 2, axis=1)
    path = saved(tmp_path / "forest.onnx", [stumps("NONE", votes), *([zip_map("scores")] if zipped else [])])
    with pytest.raises(InputError, match=r"`scores` holds probabilities \(each row sums to 1, made by TreeEnsembleCla"):
        logn.fold_onnx(path, AFFINE, tmp_path / "corrected.onnx")
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
