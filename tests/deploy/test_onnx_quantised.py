"""Quantised ONNX files and files of engines are refused: a map goes into the model before it is converted."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from logn.calibrators.affine import ClassAffine
from logn.cli.main import execute
from logn.deploy.onnx_fold import fold_onnx
from logn.errors import InputError
from logn.logits.onnx.file import read_onnx
from logn.logits.onnx.locate import Wanted, locate_onnx_logits

AFFINE = ClassAffine([0.5, 2.0, 1.5], [1.0, -2.0, 3.0])


class Reader(CalibrationDataReader):
    def __init__(self, count=4):
        generator = np.random.default_rng(1)
        self.batches = iter([{"x": generator.normal(size=(8, 4)).astype(np.float32)} for _ in range(count)])

    def get_next(self):
        return next(self.batches, None)


@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
@pytest.mark.parametrize("insert", [False, True])
def test_quantised_files_are_refused(tmp_path, kind, insert):
    """The scales behind the logits were chosen for the scores before the map, and would clip others."""
    generator = np.random.default_rng(0)
    body = "h = MatMul(x, v) r = Relu(h) z = Gemm(r, w, b) y = Softmax(z)"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    for name, shape in {"v": (4, 6), "w": (6, 3), "b": (3,)}.items():
        model.graph.initializer.append(numpy_helper.from_array(generator.normal(size=shape).astype(np.float32), name))
    source, small = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save_model(model, str(source))
    if kind == "dynamic":
        quantize_dynamic(source, small)
    else:
        quantize_static(source, small, Reader(), quant_format=QuantFormat[kind])
    message = r"int8.onnx` to be in floating point, but it is quantised \(\w+\): take the model before it is quantised"
    with pytest.raises(InputError, match=message):
        fold_onnx(small, AFFINE, tmp_path / "out.onnx", insert=insert)
    assert not (tmp_path / "out.onnx").exists()
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
    AFFINE.save(tmp_path / "map.safetensors")
    arguments = [str(tmp_path / f"model{suffix}"), str(tmp_path / "map.safetensors"), "-o", str(tmp_path / "out.onnx")]
    assert execute(["fold", *arguments]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert said in told
    assert "fold the model before it is converted" in told
