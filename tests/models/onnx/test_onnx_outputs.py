"""ONNX files with several outputs: which are the class logits, and that a fold changes nothing else."""

import itertools
import re

import numpy as np
import onnx
import pytest
from tests.made.onnx_graphs import run_graph, write_graph

from logn.base.arrays import softmax
from logn.errors import InputError, LogNWarning
from logn.methods.affine import ClassAffine
from logn.models.onnx.file import read_onnx
from logn.models.onnx.fold import fold_onnx
from logn.models.onnx.locate import Wanted, locate
from logn.statistics.head import Head

AFFINE = ClassAffine([0.5, 2.0, 1.5], [1.0, -2.0, 0.25], method="example")
SHAPES = {
    "w": (4, 3), "v": (4, 3), "u": (3, 3), "wide": (4, 8), "deep": (8, 3), "two": (4, 2), "joint": (7, 3), "box": (3, 4)
}  # fmt: skip


def write(path, body, outputs, **more):
    """A model of the nodes `body`, with random weights under the names of SHAPES and the scalar T = 2."""
    weights = SHAPES | {"T": np.float32(2.0), **more}
    read = set(re.findall(r"\w+", body))
    given = ", ".join(f"float[N, {width}] {name}" for name, width in outputs.items())
    return write_graph(path, body, given, **{name: array for name, array in weights.items() if name in read})


def run(path):
    return run_graph(path, {"x": np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)})


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
    assert locate(read_onnx(source), Wanted()).logits.tensors == (logits,)
    assert fold_onnx(source, AFFINE, tmp_path / "out.onnx").tensors == (logits,)
    before, after = run(source), run(tmp_path / "out.onnx")
    for name in outputs:
        if not name.startswith(("logits", "scores", "class")):
            np.testing.assert_allclose(after[name], before[name], rtol=1e-6)


def test_activated_boxes_are_not_taken_for_the_classes_of_the_same_layer(tmp_path):
    body = "j = Gemm(x, seven) b, out = Split <axis = 1> (j, parts) boxes = Sigmoid(b)"
    source = write(tmp_path / "m.onnx", body, {"boxes": 4, "out": 3}, seven=(4, 7), parts=np.array([4, 3]))
    assert locate(read_onnx(source), Wanted()).logits.tensors == ("out",)


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
    with pytest.raises(InputError, match=f"several tensors that may be class logits.*: {candidates}"):
        locate(read_onnx(source), Wanted())


def recorded_at(layer, fingerprint):
    return AFFINE.with_head(Head(layer=layer, source=fingerprint))


def test_the_map_goes_where_its_statistics_were_recorded(tmp_path, refused):
    source = write(tmp_path / "m.onnx", "a = Gemm(x, v) h = Relu(a) b = Gemm(h, u)", {"a": 3, "b": 3})
    digest = read_onnx(source).digest
    assert fold_onnx(source, recorded_at("b", digest), tmp_path / "b.onnx").tensors == ("b",)
    before, after = run(source), run(tmp_path / "b.onnx")
    np.testing.assert_array_equal(after["a"], before["a"])
    np.testing.assert_allclose(after["b"], AFFINE(before["b"]), rtol=1e-5, atol=1e-5)
    refused(source, r"recorded at `a`, not at the logits `b` of", recorded_at("a", digest), tensor="b")
    refused(source, "was recorded at `gone`", recorded_at("gone", digest), tensor="b")
    refused(source, "output `b` would change too: another layer computes it", recorded_at("a", digest))


def test_a_second_fold_is_refused_by_the_metadata_and_without_them_by_the_fingerprint(tmp_path, refused):
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", {"y": 3})
    affine = recorded_at("y", read_onnx(source).digest)
    fold_onnx(source, affine, tmp_path / "once.onnx")
    model = onnx.load(str(tmp_path / "once.onnx"))
    assert [entry.key for entry in model.metadata_props] == ["logn.folded"]
    refused(tmp_path / "once.onnx", "has a map folded into it", affine)
    del model.metadata_props[:]  # as some optimisers do
    onnx.save_model(model, str(tmp_path / "bare.onnx"))
    refused(tmp_path / "bare.onnx", r"The weights differ .* in `.*bare.onnx`", affine)
    assert fold_onnx(tmp_path / "bare.onnx", affine, tmp_path / "twice.onnx", allow_refold=True).tensors == ("y",)


def test_the_map_of_a_torch_layer_goes_behind_the_weights_of_that_name(tmp_path, refused):
    """An export keeps the names of the parameters."""
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w) z = Gemm(x, v)", {"y": 3, "z": 3})
    model = onnx.load(str(source))
    for tensor, node, name in zip(model.graph.initializer, model.graph.node, "ab", strict=True):
        tensor.name = node.input[1] = f"{name}.weight"
    onnx.save_model(model, str(source))
    for layer, tensor in (("a", "y"), ("b", "z")):
        report = fold_onnx(source, recorded_at(layer, "1c2d"), tmp_path / f"{layer}.onnx")
        assert report.tensors == (tensor,)
    refused(source, "several tensors that may be", recorded_at("c", "1c2d"))
    inner = write_graph(tmp_path / "inner.onnx", "h = Gemm(x, a) r = Relu(h) y = Gemm(r, b)", a=(4, 3), b=(3, 3))
    model = onnx.load(str(inner))  # the parser of old versions reads no dots
    for tensor, node in zip(model.graph.initializer, (model.graph.node[0], model.graph.node[2]), strict=True):
        tensor.name = node.input[1] = f"{tensor.name}.weight"
    onnx.save_model(model, str(inner))
    refused(inner, "recorded at `a`, not at the logits `y` .* name the output of that layer", recorded_at("a", "1c2d"))


def test_the_map_is_one_of_the_logits_behind_a_temperature(tmp_path):
    """An output of the logits before it stays as it is, with a warning."""
    source = write(tmp_path / "m.onnx", "z = Gemm(x, w) t = Div(z, T) y = Softmax(t)", {"z": 3, "y": 3})
    with pytest.warns(LogNWarning, match="`z`"):
        assert fold_onnx(source, AFFINE, tmp_path / "out.onnx").tensors == ("t",)
    before, after = run(source), run(tmp_path / "out.onnx")
    np.testing.assert_array_equal(after["z"], before["z"])
    np.testing.assert_allclose(after["y"], softmax(AFFINE(before["z"] / 2)), rtol=1e-4, atol=1e-5)


def test_the_map_of_a_torch_layer_before_a_temperature_is_refused_unless_that_tensor_is_named(tmp_path, refused):
    source = write(tmp_path / "m.onnx", "z = Gemm(x, w) t = Div(z, T) y = Softmax(t)", {"y": 3})
    refused(source, r"recorded at `fc`.*`t`.*`z`", recorded_at("fc", "1c2d"))
    assert fold_onnx(source, recorded_at("fc", "1c2d"), tmp_path / "out.onnx", tensor="z").tensors == ("z",)


def test_a_temperature_that_is_no_scalar_of_the_file_is_refused_with_the_way_out(tmp_path):
    source = write(tmp_path / "m.onnx", "z = Gemm(x, w) q = Exp(T) t = Div(z, q) y = Softmax(t)", {"y": 3})
    with pytest.raises(InputError, match=r"`t` \(softmax \(1, 3\)\) comes from Div\. .* name it as `tensor`"):
        locate(read_onnx(source), Wanted())
    assert locate(read_onnx(source), Wanted(tensors=("t",))).logits.num_columns == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("boxes = Gemm(logits, box)", "`boxes` would change too: another layer computes it from the logits `logits`"),
        ("p = Softmax(logits) boxes = MatMul(p, box)", "another layer computes it from the logits `logits`"),
        ("p = Sigmoid(logits) boxes = Mul(p, logits)", "`boxes` would change too: it is computed from `logits`"),
    ],
)
def test_logits_that_feed_another_output_are_refused(tmp_path, refused, body, message):
    outputs = {"logits": 3, "boxes": 3 if "Mul(p, l" in body else 4}
    source = write(tmp_path / "m.onnx", f"logits = Gemm(x, w) {body}", outputs)
    refused(source, message)


def test_an_output_that_reads_the_class_layer_before_the_logits_stays(tmp_path):
    body = "z = Gemm(x, w) t = Div(z, T) y = Softmax(t) h = Relu(z) boxes = Gemm(h, box)"
    source = write(tmp_path / "m.onnx", body, {"y": 3, "boxes": 4})
    fold_onnx(source, AFFINE, tmp_path / "out.onnx")
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
    assert fold_onnx(write(tmp_path / "m.onnx", body, {"y": 3}), AFFINE, tmp_path / "out.onnx").rows > 0
