"""Maps behind the dequantised logits of int8 files that onnxruntime wrote, and refusals where scales would clip."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from logn.calibrators.class_affine import ClassAffine
from logn.cli.main import execute
from logn.deploy.onnx_fold import fold_onnx
from logn.errors import InputError

AFFINE = ClassAffine([0.5, 2.0, 1.5], [1.0, -2.0, 3.0])


class Reader(CalibrationDataReader):
    def __init__(self, count=4):
        generator = np.random.default_rng(1)
        self.batches = iter([{"x": generator.normal(size=(8, 4)).astype(np.float32)} for _ in range(count)])

    def get_next(self):
        return next(self.batches, None)


def write(path, body, outputs="float[N, 3] y"):
    generator = np.random.default_rng(0)
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => ({outputs}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    arrays = {"v": (4, 6), "w": (6, 3), "b": (3,)}
    model.graph.initializer.extend(
        numpy_helper.from_array(generator.normal(size=shape).astype(np.float32), name) for name, shape in arrays.items()
    )
    onnx.save_model(model, str(path))
    return path


def quantised(folder, body, kind="QDQ", **options):
    source = write(folder / "float.onnx", body)
    quantize_static(source, folder / "int8.onnx", Reader(), quant_format=QuantFormat[kind], **options)
    return folder / "int8.onnx"


def run(path):
    feed = Reader().get_next()
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feed)[0]


LOGITS_OUT = "h = MatMul(x, v) r = Relu(h) y = Gemm(r, w, b)"


@pytest.mark.parametrize("kind", ["QDQ", "QOperator"])
def test_the_map_goes_behind_the_dequantised_logits(tmp_path, kind):
    """The output is, to rounding, the map of what the int8 file gave before: nothing is quantised anew behind it."""
    source = quantised(tmp_path, LOGITS_OUT, kind)
    report = fold_onnx(source, AFFINE, tmp_path / "out.onnx", insert=True)
    assert report.way == "nodes"
    assert "quantised" in report.reason
    before, after = run(source), run(tmp_path / "out.onnx")
    np.testing.assert_allclose(after, AFFINE(before.astype(np.float64)), rtol=0, atol=1e-4)
    assert np.abs(after - before).max() > 1


def test_scores_behind_a_softmax_whose_scale_has_room(tmp_path):
    source = quantised(tmp_path, f"{LOGITS_OUT.replace('y =', 'z =')} y = Softmax(z)")
    shift = np.array([0.0, 1.0, -0.5])
    fold_onnx(source, ClassAffine([1.0, 1.0, 1.0], shift), tmp_path / "out.onnx", insert=True)
    odds = run(source).astype(np.float64) * np.exp(shift)
    clear = (run(source) > 0.1).all(axis=1)
    assert clear.any()
    # Scores are rounded to 1 / 256 before and after: at most 2 % of those above 0.1.
    expected = odds / odds.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(run(tmp_path / "out.onnx")[clear], expected[clear], rtol=0, atol=0.03)


def qdq(scale, zero="0", kind="uint8"):
    """A head whose scores are rounded, with the scale of the rounding."""
    return (
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 3] y) '
        f"<float[3, 3] w = {{1, 0, 0, 0, 1, 0, 0, 0, 1}}, float s = {{{scale}}}, {kind} zero = {{{zero}}}> "
    )


def save(path, text):
    onnx.save_model(onnx.parser.parse_model(text), str(path))
    return path


SCORES = "{ z = MatMul(x, w) p = Sigmoid(z) q = QuantizeLinear(p, s, zero) y = DequantizeLinear(q, s, zero) }"


def test_scores_that_would_be_clipped_are_refused(tmp_path):
    """The scale was chosen where no score was above 0.6: the floating-point head would take the map all the same."""
    source = save(tmp_path / "m.onnx", qdq(0.6 / 255) + SCORES)
    sentence = (
        r"^Expected the scales of `.*m\.onnx` to have room for the corrected scores, but `q` behind `z` holds values "
        r"from 0 to 0\.6, and those from 0 to 1 can come now and would be clipped: fold the model before it is "
        r"quantised\.$"
    )
    for insert in (False, True):
        with pytest.raises(InputError, match=sentence):
            fold_onnx(source, AFFINE, tmp_path / "out.onnx", insert=insert)
    assert not (tmp_path / "out.onnx").exists()


def test_the_same_scores_with_room_are_folded(tmp_path):
    source = save(tmp_path / "m.onnx", qdq(1 / 255) + SCORES)
    assert fold_onnx(source, AFFINE, tmp_path / "out.onnx").way == "weights"


def test_logits_named_before_their_rounding_are_refused_with_the_way_out(tmp_path):
    rounded = "{ z = MatMul(x, w) q = QuantizeLinear(z, s, zero) d = DequantizeLinear(q, s, zero) y = Softmax(d) }"
    source = save(tmp_path / "m.onnx", qdq(0.05, kind="int8") + rounded)
    sentence = (
        r"room for the corrected logits, but `q` behind `z` holds values from -6\.4 to 6\.35, and those from -14\.8 to "
        r"12\.5 .* quantised, or name the logits behind its DequantizeLinear as `tensor`\.$"
    )
    with pytest.raises(InputError, match=sentence):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx", insert=True, tensor="z")
    report = fold_onnx(source, AFFINE, tmp_path / "out.onnx", insert=True, tensor="d")
    assert report.tensors == ("d",)


def test_what_a_sigmoid_can_give_is_known_from_the_scale_of_its_logits(tmp_path):
    """Logits of at most 0.127 become at most 1.1: a score of 0.75, which the scale behind it holds or does not."""
    body = (
        "{ z = MatMul(x, w) r = QuantizeLinear(z, t, n) d = DequantizeLinear(r, t, n) p = Sigmoid(d) "
        "q = QuantizeLinear(p, s, zero) y = DequantizeLinear(q, s, zero) }"
    )
    affine = ClassAffine([1.0, 1.0, 1.0], [0.0, 0.0, 1.0])
    for top, fits in ((0.7, False), (0.8, True)):
        text = qdq(top / 255).replace("> { ", "> {") + body
        text = text.replace("uint8 zero", "float t = {0.001}, int8 n = {0}, uint8 zero")
        source = save(tmp_path / f"{top}.onnx", text)
        if fits:
            assert fold_onnx(source, affine, tmp_path / "out.onnx", insert=True).tensors == ("d",)
        else:
            with pytest.raises(InputError, match=r"holds values from 0 to 0\.7, and those from 0\.468 to 0\.755 can"):
                fold_onnx(source, affine, tmp_path / "out.onnx", insert=True)


def test_on_the_command_line_nothing_is_written(tmp_path, capsys):
    source = save(tmp_path / "m.onnx", qdq(0.6 / 255) + SCORES)
    AFFINE.save(tmp_path / "map.safetensors")
    code = execute(["fold", str(source), str(tmp_path / "map.safetensors"), "-o", str(tmp_path / "out.onnx")])
    assert code == 2
    assert "would be clipped: fold the model before it is quantised." in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.onnx").exists()


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
