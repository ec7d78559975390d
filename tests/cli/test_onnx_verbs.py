"""`logn collect model.onnx`, `logn fit`, `logn fold`: from a file and images to the corrected file."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper
from PIL import Image

from logn.calibrators.affine import ClassAffine
from logn.errors import LogNWarning
from logn.statistics.moments import ClassMoments


@pytest.fixture
def model(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 8, 8] x) => (float[N, 4] y)
    { f = Flatten(x) z = Gemm(f, w, b) y = Softmax(z) }"""
    model = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    for name, shape in (("w", (192, 4)), ("b", (4,))):
        array = generator.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save_model(model, str(tmp_path / "model.onnx"))
    return tmp_path / "model.onnx"


@pytest.fixture
def images(tmp_path):
    (tmp_path / "images").mkdir()
    generator = np.random.default_rng(1)
    for index in range(6):
        pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{index}.png")
    return tmp_path / "images"


@pytest.fixture
def affine(tmp_path):
    ClassAffine([1.0, 2.0, 3.0, 0.5], [0.0, 1.0, -1.0, 2.0], method="example").save(tmp_path / "affine.safetensors")
    return tmp_path / "affine.safetensors"


def test_from_images_to_a_corrected_file(run, tmp_path, model, images):
    stats, affine, output = (tmp_path / name for name in ("stats.safetensors", "affine.safetensors", "out.onnx"))
    collected = run("collect", model, "--images", images, "--mean", "0.5", "--std", "0.25", "-o", stats, "--json")
    assert (collected.code, collected.json["rows"], collected.json["num_classes"]) == (0, 6, 4)
    assert (collected.json["layer"], collected.json["activation"]) == ("z", "softmax")
    assert run("fit", stats, "--method", "logn", "-o", affine).code == 0
    folded = run("fold", model, affine, "-o", output, "--json")
    assert folded.code == 0
    assert (folded.json["way"], folded.json["layers"], folded.json["tensors"]) == ("weights", ["w"], ["z"])
    assert folded.json["largest_difference"] < 1e-4
    again = run("collect", output, "--images", images, "--mean", "0.5", "--std", "0.25", "-o", stats, "--tensor", "y")
    assert again.code == 0
    moments = ClassMoments.load(stats)
    np.testing.assert_allclose(moments.mean, 0, atol=1e-4)
    np.testing.assert_allclose(moments.variance, 1, rtol=1e-4)


def test_fold_prints_the_proof(run, tmp_path, model, affine):
    result = run("fold", model, affine, "-o", tmp_path / "out.onnx", "--input-shape", "x=3x3x8x8")
    assert result.code == 0
    assert "the map is in `w`" in result.out
    assert "Proven on 3 rows of logits at `z`: the largest difference from scale x logit + shift is" in result.out
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 3, 8, 8), np.float32))
    again = ("fold", model, affine, "-o", tmp_path / "out.onnx", "--overwrite")
    inserted = run(*again, "--inputs", tmp_path / "inputs.npz", "--insert")
    assert "two nodes behind `z`, as nodes were asked for" in inserted.out
    assert "Proven on 2 rows" in inserted.out
    onnxruntime.InferenceSession(str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"])


def test_a_second_fold_is_refused_unless_asked_for(run, refused, tmp_path, model, affine):
    run("fold", model, affine, "-o", tmp_path / "once.onnx")
    assert "to have no map folded into it" in refused("fold", tmp_path / "once.onnx", affine, "-o", tmp_path / "2.onnx")
    assert not (tmp_path / "2.onnx").exists()
    assert run("fold", tmp_path / "once.onnx", affine, "-o", tmp_path / "2.onnx", "--again").code == 0


def test_other_files_than_onnx_are_refused(refused, tmp_path, affine):
    sentence = refused("fold", tmp_path / "model.pt", affine, "-o", tmp_path / "out.onnx")
    assert "a PyTorch model is folded in Python, by logn.fold(model, layer, affine)" in sentence
    assert "to be an ONNX file, but it is an engine of TensorRT" in refused(
        "fold", tmp_path / "model.engine", affine, "-o", tmp_path / "out.onnx"
    )


def test_bad_input_is_one_sentence_and_no_file(refused, tmp_path, model, images, affine):
    output = tmp_path / "out.onnx"
    ClassAffine.identity(9).save(tmp_path / "wide.safetensors")
    assert "of 9 classes" in refused("fold", model, tmp_path / "wide.safetensors", "-o", output)
    assert "like images=1x3x640x640" in refused("fold", model, affine, "-o", output, "--input-shape", "x:3")
    assert "name of an input (x)" in refused("fold", model, affine, "-o", output, "--input-shape", "y=1x2")
    assert "but got both" in refused("fold", model, affine, "-o", output, "--input-shape", "x=1", "--inputs", affine)
    assert "to be a .npz file" in refused("fold", model, affine, "-o", output, "--inputs", affine)
    np.savez(tmp_path / "whole.npz", x=np.ones((1, 3, 8, 8), np.float32))
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:60])
    (tmp_path / "damaged.npz").write_bytes(whole[:300] + b"\xff" * 10 + whole[310:])
    np.save(tmp_path / "one.npy", np.ones(3))
    for name in ("cut.npz", "damaged.npz", "one.npy"):
        assert "to be a .npz file" in refused("fold", model, affine, "-o", output, "--inputs", tmp_path / name)
    assert "not enough memory" in refused("fold", model, affine, "-o", output, "--input-shape", f"x={10**12}x3x8x8")
    (tmp_path / "broken.onnx").write_bytes(model.read_bytes()[:200])
    assert "whole ONNX model" in refused("fold", tmp_path / "broken.onnx", affine, "-o", output)
    collect = ("collect", model, "--images", images, "-o", output)
    assert "like 480x640 or 640" in refused(*collect, "--size", "large")
    assert "to be numbers like" in refused(*collect, "--mean", "a,b,c")
    assert "to hold images" in refused("collect", model, "--images", _empty(tmp_path), "-o", output)
    assert not output.exists()


def _empty(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir(exist_ok=True)
    return folder


def test_the_correction_of_another_file_is_refused(run, refused, tmp_path, model, images):
    stats, affine, output = (tmp_path / name for name in ("stats.safetensors", "affine.safetensors", "out.onnx"))
    assert run("collect", model, "--images", images, "-o", stats).code == 0
    assert run("fit", stats, "-o", affine).code == 0
    other = onnx.load(str(model))
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones(4, np.float32), "b"))
    onnx.save_model(other, str(tmp_path / "other.onnx"))
    told = refused("fold", tmp_path / "other.onnx", affine, "-o", output)
    assert "other.onnx` (onnx:" in told
    assert "`--allow-mismatch`" in told
    assert not output.exists()
    with pytest.warns(LogNWarning, match="to be of the weights of"):
        assert run("fold", tmp_path / "other.onnx", affine, "-o", output, "--allow-mismatch").code == 0
    assert output.exists()


def test_unreadable_images_are_told_in_the_words_of_the_command_line(run, refused, tmp_path, model, images):
    (images / "3b.png").write_bytes(b"no image")
    stats = tmp_path / "stats.safetensors"
    sentence = refused("collect", model, "--images", images, "-o", stats)
    assert "3b.png` to be a whole image" in sentence
    assert sentence.endswith("; `--skip-unreadable` leaves such images out.")
    assert not stats.exists()
    with pytest.warns(LogNWarning, match="1 of 7 images could not be read"):
        result = run("collect", model, "--images", images, "-o", stats, "--skip-unreadable", "--json")
    assert (result.code, result.json["images"], result.json["rows"]) == (0, 6, 6)
    assert result.json["unreadable"] == [str(images / "3b.png")]


def test_sentences_of_the_library_name_options(refused, tmp_path, images, affine):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 8, 8] x) => (float[N, 4] y, float[N, 4] u)
    { f = Flatten(x) z = Gemm(f, w) y = Softmax(z) v = Gemm(f, t) u = Softmax(v) }"""
    model = onnx.parser.parse_model(text)
    for name in ("w", "t"):
        model.graph.initializer.append(numpy_helper.from_array(np.ones((192, 4), np.float32), name))
    path, output = tmp_path / "two.onnx", tmp_path / "out.onnx"
    onnx.save_model(model, str(path))
    assert refused("fold", path, affine, "-o", output).endswith("name its `--tensor`.")
    assert "Expected `--tensor` to be a tensor of" in refused("fold", path, affine, "-o", output, "--tensor", "nobody")
    assert "Expected `--axis` to be an axis" in refused(
        "fold", path, affine, "-o", output, "--tensor", "z", "--axis", 7
    )
    assert "Expected `--output` to be another file" in refused("fold", path, affine, "-o", path)
    np.savez(tmp_path / "none.npz", other=np.ones(3))
    sentence = refused("fold", path, affine, "-o", output, "--inputs", tmp_path / "none.npz")
    assert "Expected `--inputs` to hold every input" in sentence
    assert "but `x` is missing" in sentence
    collect = ("collect", path, "--images", images, "-o", tmp_path / "s.safetensors")
    assert "Expected `--dtype` to be one of" in refused(*collect, "--dtype", "int3")
    assert "Expected `--provider` to be one of" in refused(*collect, "--tensor", "z", "--provider", "Abacus")


def test_what_is_written_for_python_and_the_command_line_is_said_once(run, refused, tmp_path, model, affine):
    run("fold", model, affine, "-o", tmp_path / "once.onnx")
    sentence = refused("fold", tmp_path / "once.onnx", affine, "-o", tmp_path / "2.onnx")
    assert "or pass `--again` to put another map on top" in sentence
    assert "=True" not in sentence
