"""ONNX files with several outputs: which are the class logits, and that a fold changes nothing else."""

import itertools

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from logn.calibrators.affine import ClassAffine
from logn.deploy.onnx_fold import fold_onnx
from logn.errors import InputError
from logn.logits.onnx.file import onnx_digest, read_onnx
from logn.logits.onnx.locate import Wanted, locate_onnx_logits
from logn.statistics.moments import StatisticsMetadata

AFFINE = ClassAffine([0.5, 2.0, 1.5], [1.0, -2.0, 0.25], method="example")
SHAPES = {
    "w": (4, 3), "v": (4, 3), "u": (3, 3), "wide": (4, 8), "deep": (8, 3), "two": (4, 2), "joint": (7, 3), "box": (3, 4)
}  # fmt: skip


def write(path, body, outputs, **more):
    """A model of the nodes `body`, with random weights under the names of SHAPES and the scalar T = 2."""
    given = ", ".join(f"float[N, {width}] {name}" for name, width in outputs.items())
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => ({given}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    weights = {name: generator.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    weights |= {"T": np.array(2.0, np.float32), **more}
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(weights[name], name) for name in weights if name in read)
    onnx.checker.check_model(model)
    onnx.save_model(model, str(path))
    return path


def run(path):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {"x": np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)}
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feed), strict=True))


PARALLEL = "{0} = Gemm(x, v) {1} = Gemm(x, w)"
EMBEDDING = "{0} = Gemm(x, wide) h = Relu({0}) {1} = Gemm(h, deep)"
COARSE = "{0} = Gemm(x, v) j = Concat <axis = 1> (x, {0}) {1} = Gemm(j, joint)"


@pytest.mark.parametrize(
    ("body", "outputs", "logits"),
    [
        (EMBEDDING, {"embedding": 8, "logits": 3}, "logits"),
        ("{0} = Gemm(x, wide) {1} = Gemm(x, w)", {"embedding": 8, "logits": 3}, "logits"),
        (PARALLEL, {"domain": 3, "classes": 3}, "classes"),
        (PARALLEL, {"scores": 3, "domain": 3}, "scores"),
        ("d = Gemm(x, two) {0} = Softmax(d) {1} = Gemm(x, w)", {"domain": 2, "classes": 3}, "classes"),
        ("d = Gemm(x, two) {0} = Softmax(d) z = Gemm(x, w) {1} = Softmax(z)", {"domain": 2, "class_scores": 3}, "z"),
    ],
)
def test_the_names_of_the_outputs_decide(tmp_path, body, outputs, logits):
    source = write(tmp_path / "m.onnx", body.format(*outputs), outputs)
    assert locate_onnx_logits(read_onnx(source), Wanted())[0].tensors == (logits,)
    assert fold_onnx(source, AFFINE, tmp_path / "out.onnx").tensors == (logits,)
    before, after = run(source), run(tmp_path / "out.onnx")
    unchanged = [name for name in outputs if not name.startswith(("logits", "scores", "class"))]
    for name in unchanged:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6)


def test_activated_boxes_are_not_taken_for_the_classes_of_the_same_layer(tmp_path):
    body = "j = Gemm(x, seven) b, out = Split <axis = 1> (j, parts) boxes = Sigmoid(b)"
    weights = {"seven": np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32), "parts": np.array([4, 3])}
    source = write(tmp_path / "m.onnx", body, {"boxes": 4, "out": 3}, **weights)
    assert locate_onnx_logits(read_onnx(source), Wanted())[0].tensors == ("out",)


@pytest.mark.parametrize(
    ("body", "outputs", "candidates"),
    [
        (PARALLEL, {"fine": 3, "coarse": 3}, r"`fine` \(output \(1, 3\)\), `coarse` \(output \(1, 3\)\)"),
        (COARSE, {"coarse": 3, "fine": 3}, r"`coarse` \(output \(1, 3\)\), `fine` \(output \(1, 3\)\)"),
        (EMBEDDING, {"a": 8, "b": 3}, r"`a` \(output \(1, 8\)\), `b` \(output \(1, 3\)\)"),
        ("d = Gemm(x, two) {0} = Softmax(d) {1} = Gemm(x, w)", {"a": 2, "b": 3}, r"`d` \(softmax \(1, 2\)\), `b`"),
        (
            "z = Gemm(x, v) {0} = Softmax(z) j = Concat <axis = 1> (x, {0}) {1} = Gemm(j, joint)",
            {"coarse": 3, "fine": 3},
            "`z` .*, `fine`",
        ),
    ],
)
def test_where_several_outputs_fit_the_user_has_to_say(tmp_path, body, outputs, candidates):
    source = write(tmp_path / "m.onnx", body.format(*outputs), outputs)
    with pytest.raises(InputError, match=f"but several fit: {candidates}.*; name its `tensor`"):
        locate_onnx_logits(read_onnx(source), Wanted())


def recorded_at(layer, fingerprint):
    return AFFINE.with_source(StatisticsMetadata(layer=layer, fingerprint=fingerprint))


def test_the_map_goes_where_its_statistics_were_recorded(tmp_path):
    outputs = {"a": 3, "b": 3}
    source = write(tmp_path / "m.onnx", "a = Gemm(x, v) h = Relu(a) b = Gemm(h, u)", outputs)
    digest = onnx_digest(read_onnx(source))
    assert fold_onnx(source, recorded_at("b", digest), tmp_path / "b.onnx").tensors == ("b",)
    before, after = run(source), run(tmp_path / "b.onnx")
    np.testing.assert_array_equal(after["a"], before["a"])
    np.testing.assert_allclose(after["b"], AFFINE(before["b"]), rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r"logits of `.*`, `b`, but it was recorded at `a`"):
        fold_onnx(source, recorded_at("a", digest), tmp_path / "out.onnx", tensor="b")
    with pytest.raises(InputError, match="but it was recorded at `gone`"):
        fold_onnx(source, recorded_at("gone", digest), tmp_path / "out.onnx", tensor="b")
    with pytest.raises(InputError, match="the output `b` is computed from the logits `a` by another layer"):
        fold_onnx(source, recorded_at("a", digest), tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_a_second_fold_is_refused_by_the_metadata_and_without_them_by_the_fingerprint(tmp_path):
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", {"y": 3})
    affine = recorded_at("y", onnx_digest(read_onnx(source)))
    fold_onnx(source, affine, tmp_path / "once.onnx")
    model = onnx.load(str(tmp_path / "once.onnx"))
    assert [entry.key for entry in model.metadata_props] == ["logn.folded"]
    with pytest.raises(InputError, match="no map folded into it, but it has one"):
        fold_onnx(tmp_path / "once.onnx", affine, tmp_path / "twice.onnx")
    del model.metadata_props[:]  # as some optimisers do
    onnx.save_model(model, str(tmp_path / "bare.onnx"))
    with pytest.raises(InputError, match=r"The weights differ .* in `.*bare.onnx`"):
        fold_onnx(tmp_path / "bare.onnx", affine, tmp_path / "twice.onnx")
    assert fold_onnx(tmp_path / "bare.onnx", affine, tmp_path / "twice.onnx", allow_refold=True).tensors == ("y",)


def test_the_map_of_a_torch_layer_goes_into_the_weights_of_that_name(tmp_path):
    """An export keeps the names of the parameters."""
    weights = {f"{name}.weight": np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32) for name in "ab"}
    source = write(tmp_path / "m.onnx", PARALLEL.format("y", "z").replace("v)", "va)").replace("w)", "wb)"),
                   {"y": 3, "z": 3}, va=weights["a.weight"], wb=weights["b.weight"])  # fmt: skip
    model = onnx.load(str(source))
    for tensor, node, name in zip(model.graph.initializer, model.graph.node, weights, strict=True):
        tensor.name = node.input[1] = name
    onnx.save_model(model, str(source))
    for layer, tensor in (("a", "y"), ("b", "z")):
        report = fold_onnx(source, recorded_at(layer, "1c2d"), tmp_path / f"{layer}.onnx")
        assert (report.tensors, report.layers) == ((tensor,), (f"{layer}.weight",))
    with pytest.raises(InputError, match="several fit"):
        fold_onnx(source, recorded_at("c", "1c2d"), tmp_path / "c.onnx")


def test_a_temperature_is_taken_into_account(tmp_path):
    """The map is one of the logits that the softmax sees; the raw output before it becomes the same on its scale."""
    source = write(tmp_path / "m.onnx", "z = Gemm(x, w) t = Div(z, T) y = Softmax(t)", {"z": 3, "y": 3})
    assert fold_onnx(source, AFFINE, tmp_path / "out.onnx").tensors == ("t",)
    before, after = run(source), run(tmp_path / "out.onnx")
    corrected = AFFINE(before["z"] / 2)
    np.testing.assert_allclose(after["z"], 2 * corrected, rtol=1e-4, atol=1e-5)
    scores = np.exp(corrected) / np.exp(corrected).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(after["y"], scores, rtol=1e-4, atol=1e-5)


def test_the_map_of_a_torch_layer_before_a_temperature_is_refused_unless_that_tensor_is_named(tmp_path):
    source = write(tmp_path / "m.onnx", "z = Gemm(x, w) t = Div(z, T) y = Softmax(t)", {"y": 3})
    with pytest.raises(InputError, match=r"to be what `fc` gives, .* but `t` is 0.5 \* `z` \+ 0; name the one"):
        fold_onnx(source, recorded_at("fc", "1c2d"), tmp_path / "out.onnx")
    assert fold_onnx(source, recorded_at("fc", "1c2d"), tmp_path / "out.onnx", tensor="z").tensors == ("z",)


def test_a_temperature_that_is_no_scalar_of_the_file_is_refused_with_the_way_out(tmp_path):
    source = write(tmp_path / "m.onnx", "z = Gemm(x, w) q = Exp(T) t = Div(z, q) y = Softmax(t)", {"y": 3})
    with pytest.raises(InputError, match=r"`t` \(softmax \(1, 3\)\) comes from Div; .* name it as `tensor`"):
        locate_onnx_logits(read_onnx(source), Wanted())
    assert locate_onnx_logits(read_onnx(source), Wanted(tensors=("t",)))[0].num_columns == 3


@pytest.mark.parametrize("insert", [False, True])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("logits = Gemm(x, w) boxes = Gemm(logits, box)", "`boxes` is computed from the logits `logits` by another"),
        ("logits = Gemm(x, w) p = Softmax(logits) boxes = MatMul(p, box)", "`boxes` is computed from the logits"),
        ("logits = Gemm(x, w) p = Sigmoid(logits) boxes = Mul(p, logits)", "`boxes` is computed from the logits"),
    ],
)
def test_logits_that_feed_another_output_are_refused(tmp_path, body, message, insert):
    outputs = {"logits": 3, "boxes": 3 if "Mul(p, l" in body else 4}
    source = write(tmp_path / "m.onnx", body, outputs)
    with pytest.raises(InputError, match=message):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx", insert=insert)
    assert not (tmp_path / "out.onnx").exists()


def test_an_output_that_reads_the_class_layer_before_the_logits_stays(tmp_path):
    body = "z = Gemm(x, w) t = Div(z, T) y = Softmax(t) h = Relu(z) boxes = Gemm(h, box)"
    source = write(tmp_path / "m.onnx", body, {"y": 3, "boxes": 4})
    with pytest.raises(InputError, match=r"the output `boxes` would change as well.*insert=True"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx")
    fold_onnx(source, AFFINE, tmp_path / "out.onnx", insert=True)
    np.testing.assert_array_equal(run(tmp_path / "out.onnx")["boxes"], run(source)["boxes"])


def chain(source, result, operator, length=2000):
    names = [source, *(f"{result}{place}" for place in range(length - 1)), result]
    return " ".join(f"{after} = {operator} ({before})" for before, after in itertools.pairwise(names))


@pytest.mark.parametrize(
    "body",
    [
        f"{chain('w', 'i', 'Identity')} y = Gemm(x, i)",
        f"{chain('x', 'h', 'Relu')} y = Gemm(h, w)",
        f"z = Gemm(x, w) {chain('z', 'l', 'Identity')} y = Softmax(l)",
        f"z = Gemm(x, w) s = Sigmoid(z) {chain('s', 'y', 'Identity')}",
        f"z = Gemm(x, w) s = Sigmoid(z) {chain('s', 'y', 'Transpose <perm = [0, 1]>')}",
    ],
    ids=["weight", "network", "logits", "scores", "transposes"],
)
def test_deep_graphs(tmp_path, body):
    assert fold_onnx(write(tmp_path / "m.onnx", body, {"y": 3}), AFFINE, tmp_path / "out.onnx").way == "weights"
