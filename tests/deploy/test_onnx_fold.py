"""Folding into ONNX graphs written by hand: every form of the class layer, and all that is refused."""

import json
import os
import sys

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from logn.calibrators.affine import ClassAffine
from logn.deploy import onnx_fold
from logn.deploy.onnx_fold import METADATA_KEY, Proof, compare_logits, fold_onnx
from logn.errors import InputError, MissingExtraError

CLASSES = 3
AFFINE = ClassAffine([0.5, 2.0, -1.5], [1.0, -2.0, 0.25], method="example", settings={"strength": 2})
GENERATOR = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    GENERATOR.bit_generator.state = np.random.default_rng(7).bit_generator.state


def random(*shape):
    return GENERATOR.normal(size=shape).astype(np.float32)


def write(path, body, *, weights, inputs="float[N, 4] x", outputs="float[N, 3] y", opset=17):
    """Write a model from the text of its nodes; gives the path."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.checker.check_model(model)
    onnx.save_model(model, str(path))
    return path


def run(path, feed, tensor=None):
    """All outputs of a model, or one tensor inside of it."""
    model = onnx.load(str(path))
    if tensor is not None:
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name=tensor))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, feed)
    return results[0] if tensor is not None else results


@pytest.fixture
def folded(tmp_path):
    """Write a model, fold, and check by hand that its logits are the map of those before; gives the report."""

    def fold(body, tensor, *, feed=None, axis=-1, tolerance=1e-5, affine=AFFINE, options=None, **model):
        source = write(tmp_path / "model.onnx", body, **model)
        before = source.read_bytes()
        report = fold_onnx(source, affine, tmp_path / "out.onnx", overwrite=True, **(options or {}))
        feed = feed or {"x": random(5, 4)}
        expected = affine(run(source, feed, tensor).astype(np.float64), axis=axis)
        actual = run(tmp_path / "out.onnx", feed, tensor)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
        assert source.read_bytes() == before
        assert report.largest_difference <= tolerance * max(1.0, report.largest_logit)
        assert report.rows > 0
        return report

    return fold


@pytest.mark.parametrize("attributes", ["", "transB = 1, ", "alpha = 0.5, beta = 3.0, ", "beta = 0.0, transB = 1, "])
@pytest.mark.parametrize("bias", [None, (3,), (1, 3), (1,), ()], ids=str)
def test_gemm(folded, attributes, bias):
    weights = {"w": random(3, 4) if "transB" in attributes else random(4, 3)}
    if bias is not None:
        weights["b"] = random(*bias) if bias else np.array(0.5, np.float32)
    names = ", ".join(("x", *weights))
    report = folded(f"y = Gemm <{attributes}transA = 0> ({names})", "y", weights=weights)
    assert report.way == "weights"
    assert report.layers == ("w",)


@pytest.mark.parametrize(
    "body", ["p = MatMul(x, w) y = Add(p, b)", "p = MatMul(x, w) y = Add(b, p)", "y = MatMul(x, w)"]
)
def test_matmul_with_its_bias_on_either_side_or_none(folded, body):
    weights = {"w": random(4, 3)} | ({"b": random(3)} if "b" in body else {})
    feed = {"x": random(2, 5, 4)}
    report = folded(body, "y", weights=weights, feed=feed, inputs="float[N, 5, 4] x", outputs="float[N, 5, 3] y")
    assert report.way == "weights"


@pytest.mark.parametrize("order", ["anchor * classes + class", "class * anchors + anchor"])
def test_the_layout_of_the_anchors_is_measured(folded, order):
    tiled = order.startswith("anchor")
    shape, permutation = ([0, 2, 3, -1], [0, 3, 1, 2]) if tiled else ([0, 3, 2, -1], [0, 3, 2, 1])
    weights = {"w": random(6, 4, 3, 3), "s": np.array(shape), "t": np.array([0, -1, 3])}
    body = f"""z = Conv <pads = [1, 1, 1, 1]> (x, w) r = Reshape(z, s)
    p = Transpose <perm = {permutation}> (r) l = Reshape(p, t) y = Sigmoid(l)"""
    report = folded(
        body,
        "l",
        weights=weights,
        feed={"x": random(2, 4, 5, 5)},
        inputs="float[N, 4, 5, 5] x",
        outputs="float[N, M, 3] y",
    )
    assert (report.way, report.layers, report.activation) == ("weights", ("w",), "sigmoid")


def test_a_class_axis_that_is_not_the_last(folded):
    weights = {"w": random(3, 4, 1, 1), "b": random(3)}
    report = folded(
        "z = Conv(x, w, b) y = Sigmoid(z)",
        "z",
        axis=1,
        weights=weights,
        feed={"x": random(2, 4, 3, 3)},  # as high and wide as there are classes
        inputs="float[N, 4, 3, 3] x",
        outputs="float[N, 3, 3, 3] y",
    )
    assert report.axis == -3


def test_a_fixed_temperature_and_offset_behind_the_layer(folded):
    weights = {"w": random(4, 3), "t": np.array(20.0, np.float32), "o": np.array([3.0], np.float32)}
    report = folded("z = Gemm(x, w) s = Mul(t, z) l = Sub(o, s) y = Softmax(l)", "l", weights=weights, tolerance=1e-4)
    assert report.way == "weights"


def test_a_shared_initialiser_is_folded_once(folded, tmp_path):
    weights = {"w": random(4, 3), "b": random(3)}
    body = """p = Gemm(x, w, b) q = Gemm(v, w, b) l = Concat <axis = 0> (p, q) y = Softmax(l)"""
    feed = {"x": random(2, 4), "v": random(3, 4)}
    folded(body, "l", weights=weights, feed=feed, inputs="float[N, 4] x, float[M, 4] v", outputs="float[K, 3] y")
    names = [tensor.name for tensor in onnx.load(str(tmp_path / "out.onnx")).graph.initializer]
    assert sorted(names) == ["b", "w"]


def test_a_tied_initialiser_gets_a_copy(folded, tmp_path):
    weights = {"w": random(4, 3), "b": random(3), "u": random(3, 2)}
    body = "z = Gemm(x, w, b) y = Softmax(z) e = MatMul(x, w) other = MatMul(e, u)"
    outputs = "float[N, 3] y, float[N, 2] other"
    report = folded(body, "z", weights=weights, outputs=outputs)
    feed = {"x": random(5, 4)}
    assert report.way == "weights"
    np.testing.assert_array_equal(
        run(tmp_path / "model.onnx", feed, "other"), run(tmp_path / "out.onnx", feed, "other")
    )


def test_weights_behind_identity_transpose_and_constant_nodes(folded):
    weights = {"w": random(3, 4)}
    body = """i = Identity(w) t = Transpose <perm = [1, 0]> (i) p = MatMul(x, t)
    b = Constant <value_floats = [1.0, 2.0, 3.0]> () z = Add(p, b) y = Softmax(z)"""
    assert folded(body, "z", weights=weights).way == "weights"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("n = ReduceL2 <axes = [0]> (w) d = Div(w, n) z = MatMul(x, d) y = Softmax(z)", "computed (Div)"),
        ("p = Gemm(x, w) q = Gemm(x, v) z = Add(p, q) y = Sigmoid(z)", "from Add"),
        (  # which channels are logits is another question for each input
            "j = Gemm(x, joint) m = ReduceMean <axes = [0], keepdims = 0> (x) best, i = TopK(m, three) "
            "z = Gather <axis = 1> (j, i) y = Sigmoid(z)",
            "only a part",
        ),
    ],
    ids=["cosine", "sum of two layers", "chosen channels"],
)
def test_nodes_are_put_in_where_weights_cannot_take_the_map(folded, tmp_path, body, reason):
    weights = {"w": random(4, 3), "v": random(4, 3), "joint": random(4, 6)}
    weights |= {"three": np.array([3])}
    weights = {
        name: array
        for name, array in weights.items()
        if name in body.replace("(", " ").replace(",", " ").replace(")", " ").split()
    }
    report = folded(body, "z", weights=weights)
    assert report.way == "nodes"
    assert reason in report.reason
    kinds = [node.op_type for node in onnx.load(str(tmp_path / "out.onnx")).graph.node]
    assert kinds[-3:-1] == ["Mul", "Add"]


def test_a_part_of_a_joint_layer_gets_the_map_and_the_rest_of_it_stays(folded, tmp_path):
    weights = {"joint": random(4, 6), "two": np.array([2]), "five": np.array([5]), "one": np.array([1])}
    body = "j = Gemm(x, joint) z = Slice(j, two, five, one) y = Sigmoid(z)"
    report = folded(body, "z", weights=weights)
    assert (report.way, report.layers) == ("weights", ("joint",))
    feed = {"x": random(5, 4)}
    before, after = (run(tmp_path / name, feed, "j") for name in ("model.onnx", "out.onnx"))
    np.testing.assert_array_equal(after[:, [0, 1, 5]], before[:, [0, 1, 5]])
    old, new = (len(onnx.load(str(tmp_path / name)).graph.node) for name in ("model.onnx", "out.onnx"))
    assert new == old


@pytest.mark.parametrize("bias", ["Add(c, b)", "Add(b, c)"])
def test_a_convolution_whose_bias_is_added_by_a_node_of_its_own(folded, tmp_path, bias):
    """As TensorFlow's exports have it."""
    report = folded(
        f"c = Conv(x, w) z = {bias} y = Sigmoid(z)",
        "z",
        axis=1,
        weights={"w": random(3, 4, 1, 1), "b": random(1, 3, 1, 1)},
        feed={"x": random(2, 4, 5, 6)},
        inputs="float[N, 4, 5, 6] x",
        outputs="float[N, 3, 5, 6] y",
    )
    assert (report.way, report.layers) == ("weights", ("w",))
    assert [node.op_type for node in onnx.load(str(tmp_path / "out.onnx")).graph.node] == ["Conv", "Add", "Sigmoid"]


def test_inserted_nodes_reach_everybody_who_reads_the_logits(folded, tmp_path):
    body = "n = ReduceL2 <axes = [0]> (w) d = Div(w, n) z = MatMul(x, d) y = Softmax(z)"
    folded(body, "z", weights={"w": random(4, 3)}, outputs="float[N, 3] y, float[N, 3] z")
    feed = {"x": random(5, 4)}
    probabilities, logits = run(tmp_path / "out.onnx", feed)
    np.testing.assert_allclose(probabilities, np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), rtol=1e-5)


def test_half_precision(folded, tmp_path):
    weights = {"w": random(4, 3).astype(np.float16), "b": random(3).astype(np.float16)}
    body = "h = Cast <to = 10> (x) z = Gemm(h, w, b) c = Cast <to = 1> (z) y = Softmax(c)"
    report = folded(body, "c", weights=weights, tolerance=2e-2)
    assert report.way == "weights"
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load(str(tmp_path / "out.onnx")).graph.initializer}
    assert kinds == {"w": TensorProto.FLOAT16, "b": TensorProto.FLOAT16}


def test_half_precision_with_more_channels_than_it_can_count(folded):
    classes = 1100
    affine = ClassAffine(np.linspace(0.5, 1.5, classes), np.linspace(-1, 1, classes))
    weights = {"w": (random(2 * classes, 4) / 4).astype(np.float16), "s": np.array([-1, classes])}
    body = "h = Cast <to = 10> (x) z = Gemm <transB = 1> (h, w) l = Reshape(z, s) y = Sigmoid(l)"
    report = folded(body, "l", weights=weights, tolerance=2e-2, affine=affine, outputs=f"float16[M, {classes}] y")
    assert report.way == "weights"


def test_overflow_of_half_precision_is_refused(tmp_path):
    source = write(
        tmp_path / "m.onnx",
        "y = Gemm(x, w)",
        weights={"w": np.full((4, 3), 100, np.float16)},
        inputs="float16[N, 4] x",
        outputs="float16[N, 3] y",
    )
    with pytest.raises(InputError, match="`w` to fit into float16, but it overflows"):
        fold_onnx(source, ClassAffine([1.0, 1e4, 1.0], [0.0] * 3), tmp_path / "out.onnx")


def test_softmax_of_an_old_opset(folded):
    folded("z = Gemm(x, w) y = Softmax(z)", "z", weights={"w": random(4, 3)}, opset=11)


def test_a_scores_output_may_be_named(folded):
    body = "z = Gemm(x, w) p = Softmax(z) y = Identity(p) q = Gemm(x, v) box = Sigmoid(q)"
    outputs = "float[N, 3] y, float[N, 3] box"
    weights = {"w": random(4, 3), "v": random(4, 3)}
    report = folded(body, "z", weights=weights, outputs=outputs, options={"tensor": "y"})
    assert report.tensors == ("z",)
    assert folded(body, "q", weights=weights, outputs=outputs, options={"activation": "sigmoid"}).tensors == ("q",)


def test_a_background_speaks_for_the_softmax(folded):
    body = "z = Gemm(x, w) y = Softmax(z) q = Gemm(x, v) box = Sigmoid(q)"
    affine = ClassAffine([1.0, 2.0, 3.0], [0.0, 1.0, 2.0], background=0)
    outputs = "float[N, 3] y, float[N, 3] box"
    assert folded(body, "z", weights={"w": random(4, 3), "v": random(4, 3)}, outputs=outputs, affine=affine)


def test_gates_and_attention_inside_of_the_network_are_passed_over(folded):
    body = """g = Gemm(x, v) s = Sigmoid(g) h = Mul(g, s) a = Gemm(h, u) e = Sigmoid(a) k = Mul(e, h)
    z = Gemm(k, w) y = Softmax(z)"""
    report = folded(body, "z", weights={"v": random(4, 3), "u": random(3, 3), "w": random(3, 3)})
    assert report.layers == ("w",)


def test_an_output_that_is_the_mean_of_two_heads(folded):
    """Distilled transformers: the output is no layer's, and the attention behind it is as wide as the classes."""
    body = """a = MatMul(x, k) s = Softmax(a) h = MatMul(s, v) p = Gemm(h, w, b) q = Gemm(h, u) m = Add(p, q)
    y = Div(m, two)"""
    weights = {"k": random(4, 3), "v": random(3, 4), "w": random(4, 3), "b": random(3), "u": random(4, 3)}
    weights["two"] = np.array(2, np.float32)
    report = folded(body, "y", weights=weights, options={"tensor": "y"})
    assert (report.way, report.tensors) == ("nodes", ("y",))


def test_attention_as_wide_as_the_classes_is_passed_over(folded):
    body = """t = Transpose <perm = [1, 0]> (x) a = MatMul(x, t) s = Softmax(a) h = MatMul(s, x)
    p = Gemm(h, w) q = Gemm(h, u) y = Add(p, q)"""
    weights = {"w": random(4, 3), "u": random(4, 3)}
    model = {"inputs": "float[3, 4] x", "outputs": "float[3, 3] y", "feed": {"x": random(3, 4)}}
    report = folded(body, "y", weights=weights, **model)
    assert (report.way, report.tensors) == ("nodes", ("y",))


def test_an_output_computed_from_scores_is_not_taken_for_logits_without_asking(tmp_path):
    body = "z = Gemm(x, w) s = Softmax(z) y = MatMul(s, m)"
    source = write(tmp_path / "m.onnx", body, weights={"w": random(4, 3), "m": random(3, 3)})
    with pytest.raises(InputError, match=r"several fit: `z` \(softmax \(1, 3\)\), `y` \(output \(1, 3\)\)"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx")
    with pytest.raises(InputError, match="the output `y` is computed from the logits `z` by another layer"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx", activation="softmax", tensor="z")


def test_levels_of_a_pyramid_may_be_named_together(tmp_path):
    body = "p = Gemm(x, w) r = Sigmoid(p) q = Gemm(x, v) t = Sigmoid(q) y = Concat <axis = 0> (r, t)"
    source = write(tmp_path / "m.onnx", body, weights={"w": random(4, 3), "v": random(4, 3)})
    with pytest.raises(InputError, match=r"but several fit: `p` \(sigmoid .*`q` .*; name its `tensor`\."):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
    report = fold_onnx(source, AFFINE, tmp_path / "out.onnx", tensor=["p", "q"])
    assert report.layers == ("w", "v")


def test_a_choice_among_samples_ends_the_way_back_to_inner_activations(tmp_path):
    """Masks are computed for the boxes that the scores chose; the scores are not inside of the mask head."""
    body = """z = Gemm(x, w) s = Sigmoid(z) best = ReduceMax <axes = [1], keepdims = 0> (s) v, i = TopK(best, two)
    f = Gather(x, i) m = Gemm(f, u) y = Sigmoid(m)"""
    weights = {"w": random(4, 3), "u": random(4, 3), "two": np.array([2])}
    source = write(tmp_path / "m.onnx", body, weights=weights, inputs="float[6, 4] x", outputs="float[2, 3] y")
    with pytest.raises(InputError, match=r"several fit: `z` .* `m`"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx")


def test_external_data_stays_external(tmp_path):
    write(tmp_path / "plain.onnx", "z = Gemm(x, w, b) y = Softmax(z)", weights={"w": random(4, 3), "b": random(3)})
    model = onnx.load(str(tmp_path / "plain.onnx"))
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "m.data")
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    before = (tmp_path / "m.data").read_bytes()
    fold_onnx(tmp_path / "m.onnx", AFFINE, tmp_path / "out.onnx")
    assert (tmp_path / "m.data").read_bytes() == before
    written = onnx.load(str(tmp_path / "out.onnx"), load_external_data=False)
    places = {tensor.name: tensor.data_location for tensor in written.graph.initializer}
    assert places == {"w": TensorProto.EXTERNAL, "b": TensorProto.DEFAULT}
    assert os.stat(tmp_path / "out.onnx.data").st_mode == os.stat(tmp_path / "out.onnx").st_mode
    feed = {"x": random(5, 4)}
    session = onnxruntime.InferenceSession(str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"])
    expected = AFFINE(run(tmp_path / "plain.onnx", feed, "z").astype(np.float64))
    exponentials = np.exp(expected - expected.max(-1, keepdims=True))
    np.testing.assert_allclose(
        session.run(None, feed)[0], exponentials / exponentials.sum(-1, keepdims=True), atol=1e-6
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "m.data",
        "m.onnx",
        "out.onnx",
        "out.onnx.data",
        "plain.onnx",
    ]


def test_the_file_says_what_was_folded_and_refuses_another_fold(tmp_path):
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", weights={"w": random(4, 3)})
    fold_onnx(source, AFFINE, tmp_path / "once.onnx")
    (entry,) = [item for item in onnx.load(str(tmp_path / "once.onnx")).metadata_props if item.key == METADATA_KEY]
    (record,) = json.loads(entry.value)
    assert (record["method"], record["settings"]) == ("example", {"strength": 2})
    with pytest.raises(InputError, match="to have no map folded into it, but it has one"):
        fold_onnx(tmp_path / "once.onnx", AFFINE, tmp_path / "twice.onnx")
    assert not (tmp_path / "twice.onnx").exists()
    fold_onnx(tmp_path / "once.onnx", AFFINE.inverse(), tmp_path / "undone.onnx", allow_refold=True)
    feed = {"x": random(5, 4)}
    np.testing.assert_allclose(run(tmp_path / "undone.onnx", feed)[0], run(source, feed)[0], atol=1e-5)


def test_a_map_of_another_width_is_refused(tmp_path):
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", weights={"w": random(4, 3)})
    with pytest.raises(InputError, match=r"class logits, of 5 classes, but .* are 3 long"):
        fold_onnx(source, ClassAffine.identity(5), tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_model_without_logits_is_refused(tmp_path):
    source = write(tmp_path / "m.onnx", "y = Relu(x)", weights={}, outputs="float[N, 4] y")
    with pytest.raises(InputError, match="class logits, of 3 classes, but nothing in it could be logits"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx")


def test_a_tensor_that_is_not_there_is_refused(tmp_path):
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", weights={"w": random(4, 3)})
    with pytest.raises(InputError, match="has no `logits`; outputs: y"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx", tensor="logits")


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "missing"])
def test_damaged_files_are_refused(tmp_path, damage):
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", weights={"w": random(4, 3)})
    content = {"truncated": source.read_bytes()[:-20], "empty": b"", "text": b"not a model\n", "missing": None}[damage]
    source.unlink()
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(InputError, match=r"`.*m\.onnx` (to be a whole ONNX model|does not exist)"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_missing_external_data_is_refused(tmp_path):
    model = onnx.load(str(write(tmp_path / "m.onnx", "y = Gemm(x, w)", weights={"w": random(4, 3)})))
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "m.data")
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    (tmp_path / "m.data").unlink()
    with pytest.raises(InputError, match=r"to be a whole ONNX model, but it cannot be read"):
        fold_onnx(tmp_path / "m.onnx", AFFINE, tmp_path / "out.onnx")


def test_a_proof_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", weights={"w": random(4, 3)})
    (tmp_path / "out.onnx").write_text("what was there before")
    monkeypatch.setattr(onnx_fold._Trial, "prove", lambda *arguments: Proof(0.5, 1.0, 1e-4, 5))
    with pytest.raises(InputError, match=r"is off by 0\.5 .*nothing was written"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "out.onnx"]
    assert (tmp_path / "out.onnx").read_text() == "what was there before"


def test_the_proof_sees_a_wrong_layout(tmp_path, monkeypatch):
    """The proof is at the logits, not at the layer: classes in the wrong places do not pass it."""
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", weights={"w": random(4, 3)})
    right = onnx_fold._fold_weights
    swapped = ClassAffine(AFFINE.scale[::-1], AFFINE.shift[::-1])
    monkeypatch.setattr(onnx_fold, "_fold_weights", lambda model, logits, affine: right(model, logits, swapped))
    with pytest.raises(InputError, match="nothing was written"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx")


def test_paths_that_cannot_be_written_are_refused(tmp_path):
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", weights={"w": random(4, 3)})
    with pytest.raises(InputError, match="to be another file than the model"):
        fold_onnx(source, AFFINE, source)
    with pytest.raises(InputError, match="Expected the folder of"):
        fold_onnx(source, AFFINE, tmp_path / "no" / "out.onnx")


def test_inputs_may_be_given_and_must_fit(tmp_path):
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", weights={"w": random(4, 3)})
    assert fold_onnx(source, AFFINE, tmp_path / "out.onnx", inputs={"x": random(9, 4)}).rows == 9
    several = [{"x": random(rows, 4)} for rows in (9, 5, 2)]
    assert fold_onnx(source, AFFINE, tmp_path / "several.onnx", inputs=several).rows == 9 + 5 + 2
    with pytest.raises(InputError, match="`x` is missing"):
        fold_onnx(source, AFFINE, tmp_path / "no.onnx", inputs={"images": random(9, 4)})
    with pytest.raises(InputError, match=r"to run in onnxruntime on x \(9, 5\), but it does not"):
        fold_onnx(source, AFFINE, tmp_path / "no.onnx", inputs={"x": random(9, 5)})


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, package):
    source = write(tmp_path / "m.onnx", "y = Gemm(x, w)", weights={"w": random(4, 3)})
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf'`{package}` is not installed: run pip install "logn\[onnx\]"'):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx")


def _gemm(path, kind=np.float32):
    name = "float" if kind == np.float32 else "float16"
    weights = {"w": random(4, 3).astype(kind), "b": random(3).astype(kind)}
    values = {"inputs": f"{name}[N, 4] x", "outputs": f"{name}[N, 3] y"}
    return write(path, "z = Gemm(x, w, b) y = Softmax(z)", weights=weights, **values)


def test_a_trial_input_that_gives_no_numbers_proves_nothing(tmp_path):
    """NaN equals nothing and differs from nothing: the file was written, as proven to a difference of 0."""
    source = _gemm(tmp_path / "model.onnx")
    feed = {"x": np.full((2, 4), np.nan, np.float32)}
    with pytest.raises(InputError, match="to give logits on the trial images, but it gave none"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx", inputs=feed)
    assert not (tmp_path / "out.onnx").exists()
    feed["x"][1] = 1.0
    assert fold_onnx(source, AFFINE, tmp_path / "out.onnx", inputs=feed).rows == 1


@pytest.mark.parametrize("insert", [False, True])
def test_a_map_too_large_for_half_precision_is_refused(tmp_path, insert):
    """The weights would become infinities of both signs, and their sum NaN."""
    source = _gemm(tmp_path / "model.onnx", np.float16)
    affine = ClassAffine([1e6, 1e6, 1e6], [0.0, 0.0, 0.0])
    with pytest.raises(InputError):
        fold_onnx(source, affine, tmp_path / "out.onnx", insert=insert)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("before", "after", "holds", "rows"),
    [
        ([[1.0, 2.0]], [[1.0, np.nan]], False, 1),
        ([[1.0, -np.inf]], [[1.0, -np.inf]], True, 1),  # a class that the model masks out
        ([[1.0, -np.inf]], [[1.0, np.inf]], False, 1),
        ([[1.0, np.nan]], [[1.0, np.nan]], True, 0),
        ([[np.nan, np.nan], [3.0, 4.0]], [[np.nan, 7.0], [3.0, 4.0]], True, 1),
    ],
)
def test_what_is_no_number_is_compared_as_such(before, after, holds, rows):
    logits, mapped = np.array(before), np.array(after)
    proof = compare_logits({"z": logits}, {"z": mapped}, ["z"], -1, ClassAffine.identity(2))
    assert (proof.holds, proof.rows) == (holds, rows)
    assert np.isfinite(proof.tolerance)


@pytest.mark.parametrize(("half", "allowed"), [(False, 1e-4), (True, 1e-2)])
@pytest.mark.parametrize(("largest", "unit"), [(0.1, 1.0), (1.0, 1.0), (50.0, 50.0)])
def test_a_proof_allows_so_much_of_the_largest_logit_or_of_one(half, allowed, largest, unit):
    logits = np.array([[largest, -largest / 2]])
    for share, holds in ((0.9, True), (1.1, False)):
        moved = logits + np.array([[0.0, share * allowed * unit]])
        proof = compare_logits({"z": logits}, {"z": moved}, ["z"], -1, ClassAffine.identity(2), half=half)
        assert proof.holds == holds


@pytest.mark.parametrize("value", ["5", "{", "null", '["x"]', '{"a": 1}'])
def test_a_mark_that_cannot_be_read_still_counts(tmp_path, value):
    source = _gemm(tmp_path / "model.onnx")
    model = onnx.load(str(source))
    helper.set_model_props(model, {METADATA_KEY: value})
    onnx.save_model(model, str(source))
    with pytest.raises(InputError, match="it has one \\(unreadable\\)"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx")
