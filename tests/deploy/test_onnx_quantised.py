"""Quantised ONNX files and files of engines are refused: a map goes into the model before it is converted."""

import numpy as np
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from tests.deploy.conftest import THREE, write_graph

from logn.cli.main import execute
from logn.errors import InputError
from logn.logits.onnx.file import read_onnx
from logn.logits.onnx.locate import Wanted, locate_onnx_logits


class Reader(CalibrationDataReader):
    def __init__(self, count=4):
        generator = np.random.default_rng(1)
        self.batches = iter([{"x": generator.normal(size=(8, 4)).astype(np.float32)} for _ in range(count)])

    def get_next(self):
        return next(self.batches, None)


@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
@pytest.mark.parametrize("insert", [False, True])
def test_quantised_files_are_refused(tmp_path, refused, kind, insert):
    """The scales behind the logits were chosen for the scores before the map, and would clip others."""
    body = "h = MatMul(x, v) r = Relu(h) z = Gemm(r, w, b) y = Softmax(z)"
    source, small = write_graph(tmp_path / "float.onnx", body, v=(4, 6), w=(6, 3), b=(3,)), tmp_path / "int8.onnx"
    if kind == "dynamic":
        quantize_dynamic(source, small)
    else:
        quantize_static(source, small, Reader(), quant_format=QuantFormat[kind])
    message = r"int8.onnx` is quantised \(\w+\); correct the float model"
    refused(small, message, insert=insert)
    with pytest.raises(InputError, match=message):
        locate_onnx_logits(read_onnx(small), Wanted())


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
