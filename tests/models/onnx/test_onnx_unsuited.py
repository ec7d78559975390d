"""Quantised ONNX files, files of engines, models of scikit-learn and outputs of probabilities are refused."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from tests.made.onnx_graphs import THREE, write_graph

from logn.cli.main import execute
from logn.errors import InputError
from logn.models.onnx.file import read_onnx
from logn.models.onnx.fold import fold_onnx
from logn.models.onnx.locate import Wanted, locate


class Reader(CalibrationDataReader):
    def __init__(self, count=4):
        generator = np.random.default_rng(1)
        self.batches = iter([{"x": generator.normal(size=(8, 4)).astype(np.float32)} for _ in range(count)])

    def get_next(self):
        return next(self.batches, None)


@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
def test_quantised_files_are_refused(tmp_path, refused, kind):
    """The scales behind the logits were chosen for the scores before the map, and would clip others."""
    body = "h = MatMul(x, v) r = Relu(h) z = Gemm(r, w, b) y = Softmax(z)"
    source, small = write_graph(tmp_path / "float.onnx", body, v=(4, 6), w=(6, 3), b=(3,)), tmp_path / "int8.onnx"
    if kind == "dynamic":
        quantize_dynamic(source, small)
    else:
        quantize_static(source, small, Reader(), quant_format=QuantFormat[kind])
    message = r"int8.onnx` is quantised \(\w+\); correct the float model"
    refused(small, message)
    with pytest.raises(InputError, match=message):
        locate(read_onnx(small), Wanted())


@pytest.mark.parametrize(
    ("suffix", "said"),
    [
        (".xml", "a model of OpenVINO"),
        (".tflite", "a LiteRT (TFLite) file"),
        (".engine", "an engine of TensorRT"),
        (".ort", "a file of onnxruntime's own format"),
    ],
)
def test_engine_files_are_refused_with_what_to_fold(tmp_path, capsys, suffix, said):
    (tmp_path / f"model{suffix}").write_bytes(b"")
    THREE.save(tmp_path / "map.safetensors")
    arguments = [str(tmp_path / f"model{suffix}"), str(tmp_path / "map.safetensors"), "-o", str(tmp_path / "out.onnx")]
    assert execute(["fold", *arguments]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert said in told
    assert "fold the model before it is converted" in told


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
    report = fold_onnx(path, THREE, tmp_path / "corrected.onnx", tensor="moved", axis=-1)
    assert report.tensors == ("moved",)
