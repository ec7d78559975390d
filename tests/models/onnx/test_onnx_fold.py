"""Folding into ONNX graphs written by hand: every form of the class layer, and what is refused."""

import json
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.made.onnx_graphs import run_graph, write_graph

from logn.base.arrays import softmax
from logn.errors import InputError, MissingExtraError
from logn.methods.affine import ClassAffine
from logn.models.onnx import fold as onnx_fold
from logn.models.onnx.fold import METADATA_KEY, fold_onnx
from logn.models.write import Proof
from logn.statistics.head import Head

AFFINE = ClassAffine([0.5, 2.0, -1.5], [1.0, -2.0, 0.25], method="example", settings={"strength": 2})
COSINE = "n = ReduceL2 <axes = [0]> (w) d = Div(w, n) z = MatMul(x, d) y = Softmax(z)"


def random(*shape):
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def weights_of(path):
    """What the file stores, without what folds put there."""
    stored = onnx.load(str(path)).graph.initializer
    return {tensor.name: tensor.SerializeToString() for tensor in stored if not tensor.name.startswith("logn_")}


@pytest.fixture
def folded(tmp_path):
    """Write a model, fold, and check by hand that its logits are the map of those before; gives the report."""

    def fold(
        body,
        tensor,
        outputs="float[N, 3] y",
        *,
        feed=None,
        axis=-1,
        tolerance=1e-5,
        affine=AFFINE,
        options=None,
        **model,
    ):
        source = write_graph(tmp_path / "model.onnx", body, outputs, **model)
        before = source.read_bytes()
        report = fold_onnx(source, affine, tmp_path / "out.onnx", overwrite=True, **(options or {}))
        feed = {"x": random(5, 4)} if feed is None else feed
        expected = affine(run_graph(source, feed, tensor).astype(np.float64), axis=axis)
        actual = run_graph(tmp_path / "out.onnx", feed, tensor)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
        assert source.read_bytes() == before
        assert weights_of(tmp_path / "out.onnx") == weights_of(source)
        assert report.largest_difference <= tolerance * max(1.0, report.largest_logit)
        assert report.rows > 0
        return report

    return fold


@pytest.fixture
def source(tmp_path):
    return write_graph(tmp_path / "m.onnx", "y = Gemm(x, w)", w=(4, 3))


@pytest.mark.parametrize("attributes", ["", "alpha = 0.5, beta = 3.0, transB = 1, "])
@pytest.mark.parametrize("bias", [None, (3,), (1,)], ids=str)
def test_gemm(folded, attributes, bias):
    weights = {"w": (3, 4) if "transB" in attributes else (4, 3)} | ({} if bias is None else {"b": bias})
    folded(f"y = Gemm <{attributes}transA = 0> ({', '.join(('x', *weights))})", "y", **weights)


@pytest.mark.parametrize(
    "body", ["p = MatMul(x, w) y = Add(p, b)", "p = MatMul(x, w) y = Add(b, p)", "y = MatMul(x, w)"]
)
def test_matmul_with_its_bias_on_either_side_or_none(folded, body):
    weights = {"w": (4, 3)} | ({"b": (3,)} if "b" in body else {})
    feed = {"x": random(2, 5, 4)}
    folded(body, "y", "float[N, 5, 3] y", feed=feed, inputs="float[N, 5, 4] x", **weights)


@pytest.mark.parametrize("order", ["anchor * classes + class", "class * anchors + anchor"])
def test_the_layout_of_the_anchors_is_measured(folded, order):
    tiled = order.startswith("anchor")
    shape, permutation = ([0, 2, 3, -1], [0, 3, 1, 2]) if tiled else ([0, 3, 2, -1], [0, 3, 2, 1])
    body = f"""z = Conv <pads = [1, 1, 1, 1]> (x, w) r = Reshape(z, s)
    p = Transpose <perm = {permutation}> (r) l = Reshape(p, t) y = Sigmoid(l)"""
    model = {"w": (6, 4, 3, 3), "s": np.array(shape), "t": np.array([0, -1, 3]), "inputs": "float[N, 4, 5, 5] x"}
    report = folded(body, "l", "float[N, M, 3] y", feed={"x": random(2, 4, 5, 5)}, **model)
    assert (report.axis, report.activation) == (-1, "sigmoid")


def test_a_class_axis_that_is_not_the_last(folded):
    feed = {"x": random(2, 4, 3, 3)}  # as high and wide as there are classes
    model = {"inputs": "float[N, 4, 3, 3] x", "w": (3, 4, 1, 1), "b": (3,)}
    report = folded("z = Conv(x, w, b) y = Sigmoid(z)", "z", "float[N, 3, 3, 3] y", axis=1, feed=feed, **model)
    assert report.axis == -3


WV = {"w": (4, 3), "v": (4, 3)}
TWO = "z = Gemm(x, w) p = Softmax(z) y = Identity(p) q = Gemm(x, v) box = Sigmoid(q)"
BOXES = "float[N, 3] y, float[N, 3] box"
GRAPHS = {  # the tensor of the logits, the body, the rest
    "a temperature and an offset": (
        "l", "z = Gemm(x, w) s = Mul(t, z) l = Sub(o, s) y = Softmax(l)",
        {"w": (4, 3), "t": np.float32(20.0), "o": np.float32([3.0]), "tolerance": 1e-4},
    ),
    "identity, transpose and constant nodes": (
        "z", """i = Identity(w) t = Transpose <perm = [1, 0]> (i) p = MatMul(x, t)
        b = Constant <value_floats = [1.0, 2.0, 3.0]> () z = Add(p, b) y = Softmax(z)""", {"w": (3, 4)},
    ),
    "a cosine": ("z", COSINE, {"w": (4, 3)}),
    "a sum of layers": ("z", "p = Gemm(x, w) q = Gemm(x, v) z = Add(p, q) y = Sigmoid(z)", WV),
    "chosen channels": (  # which channels are logits is another question for each input
        "z", """j = Gemm(x, joint) m = ReduceMean <axes = [0], keepdims = 0> (x) best, i = TopK(m, three)
        z = Gather <axis = 1> (j, i) y = Sigmoid(z)""", {"joint": (4, 6), "three": np.array([3])},
    ),
    "softmax of an old opset": ("z", "z = Gemm(x, w) y = Softmax(z)", {"w": (4, 3), "opset": 11}),
    "scores that are named": ("z", TWO, {**WV, "outputs": BOXES, "options": {"tensor": "y"}}),
    "an activation that is named": ("q", TWO, {**WV, "outputs": BOXES, "options": {"activation": "sigmoid"}}),
    "a background speaks for the softmax": (
        "z", TWO, {**WV, "outputs": BOXES, "affine": ClassAffine([1.0, 2.0, 3.0], [0.0, 1, 2], Head(background=0))},
    ),
    "gates inside of the network": (
        "z", """g = Gemm(x, v) s = Sigmoid(g) h = Mul(g, s) a = Gemm(h, u) e = Sigmoid(a) k = Mul(e, h)
        z = Gemm(k, w) y = Softmax(z)""", {"v": (4, 3), "u": (3, 3), "w": (3, 3)},
    ),
    "the mean of two heads": (  # distilled transformers: the attention behind it is as wide as the classes
        "y", """a = MatMul(x, k) s = Softmax(a) h = MatMul(s, m) p = Gemm(h, w, b) q = Gemm(h, v) t = Add(p, q)
        y = Div(t, two)""",
        {**WV, "k": (4, 3), "m": (3, 4), "b": (3,), "two": np.float32(2), "options": {"tensor": "y"}},
    ),
    "attention as wide as the classes": (
        "y", """t = Transpose <perm = [1, 0]> (x) a = MatMul(x, t) s = Softmax(a) h = MatMul(s, x)
        p = Gemm(h, w) q = Gemm(h, v) y = Add(p, q)""",
        {**WV, "inputs": "float[3, 4] x", "outputs": "float[3, 3] y", "feed": {"x": random(3, 4)}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_where_the_map_goes(folded, name):
    tensor, body, model = GRAPHS[name]
    assert folded(body, tensor, **model).tensors == (tensor,)


def test_a_shared_initialiser(folded):
    body = "p = Gemm(x, w, b) q = Gemm(v, w, b) l = Concat <axis = 0> (p, q) y = Softmax(l)"
    feed = {"x": random(2, 4), "v": random(3, 4)}
    folded(body, "l", "float[K, 3] y", feed=feed, inputs="float[N, 4] x, float[M, 4] v", w=(4, 3), b=(3,))


def test_a_tied_initialiser_stays_for_its_other_reader(folded, tmp_path):
    body = "z = Gemm(x, w, b) y = Softmax(z) e = MatMul(x, w) other = MatMul(e, u)"
    folded(body, "z", "float[N, 3] y, float[N, 2] other", w=(4, 3), b=(3,), u=(3, 2))
    feed = {"x": random(5, 4)}
    np.testing.assert_array_equal(*(run_graph(tmp_path / name, feed, "other") for name in ("model.onnx", "out.onnx")))


def test_a_part_of_a_joint_layer_gets_the_map_and_the_rest_of_it_stays(folded, tmp_path):
    body = "j = Gemm(x, joint) z = Slice(j, two, five, one) y = Sigmoid(z)"
    folded(body, "z", joint=(4, 6), two=np.array([2]), five=np.array([5]), one=np.array([1]))
    before, after = (run_graph(tmp_path / name, {"x": random(5, 4)}, "j") for name in ("model.onnx", "out.onnx"))
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("bias", ["Add(c, b)", "Add(b, c)"])
def test_a_convolution_whose_bias_is_added_by_a_node_of_its_own(folded, bias):
    """As TensorFlow's exports have it."""
    model = {"feed": {"x": random(2, 4, 5, 6)}, "inputs": "float[N, 4, 5, 6] x", "w": (3, 4, 1, 1), "b": (1, 3, 1, 1)}
    folded(f"c = Conv(x, w) z = {bias} y = Sigmoid(z)", "z", "float[N, 3, 5, 6] y", axis=1, **model)


def test_inserted_nodes_reach_everybody_who_reads_the_logits(folded, tmp_path):
    folded(COSINE, "z", "float[N, 3] y, float[N, 3] z", w=(4, 3))
    found = run_graph(tmp_path / "out.onnx", {"x": random(5, 4)})
    np.testing.assert_allclose(found["y"], softmax(found["z"]), rtol=1e-5)


def test_half_precision(folded):
    weights = {"w": random(4, 3).astype(np.float16), "b": random(3).astype(np.float16)}
    body = "h = Cast <to = 10> (x) z = Gemm(h, w, b) c = Cast <to = 1> (z) y = Softmax(c)"
    folded(body, "c", **weights)


def test_half_precision_with_more_channels_than_it_can_count(folded):
    classes = 1100
    affine = ClassAffine(np.linspace(0.5, 1.5, classes), np.linspace(-1, 1, classes))
    weights = {"w": (random(2 * classes, 4) / 4).astype(np.float16), "s": np.array([-1, classes])}
    body = "h = Cast <to = 10> (x) z = Gemm <transB = 1> (h, w) l = Reshape(z, s) y = Sigmoid(l)"
    folded(body, "l", f"float16[M, {classes}] y", tolerance=2e-2, affine=affine, **weights)


def test_an_output_computed_from_scores_is_not_taken_for_logits_without_asking(tmp_path, refused):
    source = write_graph(tmp_path / "m.onnx", "z = Gemm(x, w) s = Softmax(z) y = MatMul(s, m)", w=(4, 3), m=(3, 3))
    refused(source, "`tensor`: `z`.*`y`")
    refused(source, "`y`.*`z`", activation="softmax", tensor="z")


def test_levels_of_a_pyramid_may_be_named_together(tmp_path, refused):
    body = "p = Gemm(x, w) r = Sigmoid(p) q = Gemm(x, v) t = Sigmoid(q) y = Concat <axis = 0> (r, t)"
    source = write_graph(tmp_path / "m.onnx", body, w=(4, 3), v=(4, 3))
    refused(source, "`tensor`: `p`.*`q`")
    assert fold_onnx(source, AFFINE, tmp_path / "out.onnx", tensor=["p", "q"]).tensors == ("p", "q")


def test_a_choice_among_samples_ends_the_way_back_to_inner_activations(tmp_path, refused):
    """Masks are computed for the boxes that the scores chose; the scores are not inside of the mask head."""
    body = """z = Gemm(x, w) s = Sigmoid(z) best = ReduceMax <axes = [1], keepdims = 0> (s) v, i = TopK(best, two)
    f = Gather(x, i) m = Gemm(f, u) y = Sigmoid(m)"""
    model = {"w": (4, 3), "u": (4, 3), "two": np.array([2]), "inputs": "float[6, 4] x"}
    refused(write_graph(tmp_path / "m.onnx", body, "float[2, 3] y", **model), r"several tensors .*: `z` .* `m`")


def test_external_data_stays_external(tmp_path):
    plain = write_graph(tmp_path / "plain.onnx", "z = Gemm(x, w, b) y = Softmax(z)", w=(4, 3), b=(3,))
    model = onnx.load(str(plain))
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "m.data")
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    before = (tmp_path / "m.data").read_bytes()
    fold_onnx(tmp_path / "m.onnx", AFFINE, tmp_path / "out.onnx")
    assert (tmp_path / "m.data").read_bytes() == before
    written = onnx.load(str(tmp_path / "out.onnx"), load_external_data=False)
    places = {tensor.name: tensor.data_location for tensor in written.graph.initializer}
    assert (places["w"], places["b"]) == (TensorProto.EXTERNAL, TensorProto.DEFAULT)
    assert os.stat(tmp_path / "out.onnx.data").st_mode == os.stat(tmp_path / "out.onnx").st_mode
    feed = {"x": random(5, 4)}
    session = onnxruntime.InferenceSession(str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"])
    expected = softmax(AFFINE(run_graph(plain, feed, "z").astype(np.float64)))
    np.testing.assert_allclose(session.run(None, feed)[0], expected, atol=1e-6)
    names = ["m.data", "m.onnx", "out.onnx", "out.onnx.data", "plain.onnx"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_the_file_says_what_was_folded_and_refuses_another_fold(tmp_path, source, refused):
    fold_onnx(source, AFFINE, tmp_path / "once.onnx")
    (entry,) = [item for item in onnx.load(str(tmp_path / "once.onnx")).metadata_props if item.key == METADATA_KEY]
    (record,) = json.loads(entry.value)
    assert (record["method"], record["settings"]) == ("example", {"strength": 2})
    refused(tmp_path / "once.onnx", r"has a map folded into it already \(example\)")


@pytest.mark.parametrize("name", ["a cosine", "a temperature and an offset", "a sum of layers", "chosen channels"])
def test_a_map_and_its_inverse_folded_one_after_the_other_change_nothing(tmp_path, name):
    """The nodes of the second fold got the names of those of the first, which no runtime loads."""
    tensor, body, model = GRAPHS[name]
    source = write_graph(tmp_path / "m.onnx", body, **{key: model[key] for key in model.keys() - {"tolerance"}})
    for number, affine in enumerate([AFFINE, AFFINE.inverse(), AFFINE, AFFINE.inverse()]):
        done = fold_onnx(source, affine, tmp_path / f"{number}.onnx", allow_refold=True)
        assert done.tensors == (tensor,)
        source = done.output_path
    feed = {"x": random(5, 4)}
    before, after = (run_graph(tmp_path / file, feed, "y") for file in ("m.onnx", "3.onnx"))
    np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"m\.onnx", {"affine": ClassAffine.identity(5)}),
        ("`logits`", {"tensor": "logits"}),
        ("`inputs`", {"inputs": {"images": random(9, 4)}}),
        (r"m\.onnx", {"inputs": {"x": random(9, 5)}}),
    ],
)
def test_what_does_not_fit_the_model_is_refused(source, refused, message, options):
    refused(source, message, **options)


def test_a_model_without_logits_is_refused(tmp_path, refused):
    source = write_graph(tmp_path / "m.onnx", "y = Relu(x)", "float[N, 4] y")
    refused(source, r"m\.onnx")


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "missing", "missing data"])
def test_damaged_files_are_refused(tmp_path, source, refused, damage):
    content = {"truncated": source.read_bytes()[:-20], "empty": b"", "text": b"not a model\n"}
    if damage in content:
        source.write_bytes(content[damage])
    elif damage == "missing":
        source.unlink()
    else:
        model = onnx.load(str(source))
        onnx.external_data_helper.set_external_data(model.graph.initializer[0], "m.data")
        onnx.save_model(model, str(source))
        (tmp_path / "m.data").unlink()
    refused(source, r"m\.onnx")


def test_a_proof_that_fails_leaves_nothing_behind(tmp_path, source, monkeypatch):
    (tmp_path / "out.onnx").write_text("what was there before")
    monkeypatch.setattr(Proof, "of", lambda *arguments, **options: Proof(0.5, 1.0, 1e-4, 5))
    with pytest.raises(InputError, match=r"is off by 0\.5"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "out.onnx"]
    assert (tmp_path / "out.onnx").read_text() == "what was there before"


def test_the_proof_sees_numbers_in_wrong_places(source, refused, monkeypatch):
    """The proof compares with the map itself, not with what was put in."""
    right = onnx_fold._Copy.store
    monkeypatch.setattr(onnx_fold._Copy, "store", lambda copy, wish, value: right(copy, wish, value[::-1]))
    refused(source, "is off by")


@pytest.mark.parametrize(
    ("output", "message"), [("m.onnx", r"m\.onnx"), ("", "is a folder"), ("no/out.onnx", r"no/out\.onnx")]
)
def test_paths_that_cannot_be_written_are_refused(tmp_path, source, output, message):
    with pytest.raises(InputError, match=message):
        fold_onnx(source, AFFINE, tmp_path / output)


def test_inputs_may_be_given(tmp_path, source):
    assert fold_onnx(source, AFFINE, tmp_path / "out.onnx", inputs={"x": random(9, 4)}).rows == 9
    several = [{"x": random(rows, 4)} for rows in (9, 5, 2)]
    assert fold_onnx(source, AFFINE, tmp_path / "several.onnx", inputs=several).rows == 9 + 5 + 2


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(tmp_path, source, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"`{package}`.*logn\[onnx\]"):
        fold_onnx(source, AFFINE, tmp_path / "out.onnx")


def test_a_trial_input_that_gives_no_numbers_proves_nothing(tmp_path, source, refused):
    """NaN equals nothing and differs from nothing: the file was written, as proven to a difference of 0."""
    feed = {"x": np.full((2, 4), np.nan, np.float32)}
    refused(source, "gave no logits on the trial images", inputs=feed)
    feed["x"][1] = 1.0
    assert fold_onnx(source, AFFINE, tmp_path / "out.onnx", inputs=feed).rows == 1


def test_a_map_too_large_for_half_precision_is_refused(tmp_path, refused):
    """The logits would become infinities of both signs."""
    model = {"inputs": "float16[N, 4] x", "w": random(4, 3).astype(np.float16)}
    source = write_graph(tmp_path / "m.onnx", "z = Gemm(x, w) y = Softmax(z)", "float16[N, 3] y", **model)
    refused(source, "is off by inf", affine=ClassAffine([1e6, 1e6, 1e6], [0.0, 0.0, 0.0]))


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
    proof = Proof.of([(np.array(before), np.array(after))])
    assert (proof.holds, proof.rows, bool(np.isfinite(proof.tolerance))) == (holds, rows, True)


@pytest.mark.parametrize(("half", "allowed"), [(False, 1e-4), (True, 1e-2)])
@pytest.mark.parametrize(("largest", "unit"), [(0.1, 1.0), (1.0, 1.0), (50.0, 50.0)])
def test_a_proof_allows_so_much_of_the_largest_logit_or_of_one(half, allowed, largest, unit):
    logits = np.array([[largest, -largest / 2]])
    for share, holds in ((0.9, True), (1.1, False)):
        moved = logits + np.array([[0.0, share * allowed * unit]])
        assert Proof.of([(logits, moved)], half=half).holds == holds


@pytest.mark.parametrize("value", ["5", "{", "null", '["x"]', '{"a": 1}'])
def test_a_mark_that_cannot_be_read_still_counts(source, refused, value):
    model = onnx.load(str(source))
    helper.set_model_props(model, {METADATA_KEY: value})
    onnx.save_model(model, str(source))
    refused(source, r"folded into it already \(unreadable\)")


def test_weights_that_an_old_file_lists_as_inputs(tmp_path):
    """Version 3 of the format lists all weights as inputs; such files were refused as if the fold had failed."""

    weights = {"w": np.random.default_rng(0).normal(size=(3, 3, 1, 1)), "b": np.zeros(3)}
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        helper.make_node("Conv", ["p", "w", "b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=1),
    ]
    shapes = {"x": ["N", 3, 8, 8], "w": [3, 3, 1, 1], "b": [3]}
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    stored = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, ["N", 3])], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    onnx.save_model(model, str(tmp_path / "old.onnx"))
    affine = ClassAffine([2.0, 1.0, 1.0], [0.0, 1.0, 2.0])
    assert fold_onnx(tmp_path / "old.onnx", affine, tmp_path / "new.onnx").tensors == ("z",)
    onnx.checker.check_model(str(tmp_path / "new.onnx"))
