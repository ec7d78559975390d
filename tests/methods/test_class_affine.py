"""ClassAffine: its algebra, its files, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

import logn
from logn.statistics.head import Head

CLASSES = 5
SCALES = hnp.arrays(np.float64, CLASSES, elements=st.floats(0.05, 20.0))
SHIFTS = hnp.arrays(np.float64, CLASSES, elements=st.floats(-50, 50))
LOGITS = hnp.arrays(np.float64, (3, CLASSES), elements=st.floats(-100, 100))
AFFINES = st.builds(logn.ClassAffine, SCALES, SHIFTS)
IDENTITY = logn.ClassAffine.identity(3)


@given(first=AFFINES, second=AFFINES, logits=LOGITS)
def test_inverses_undo_and_then_is_one_after_the_other(first, second, logits, tmp_path_factory):
    before = logits.copy()
    np.testing.assert_allclose(first.inverse()(first(logits)), logits, rtol=1e-9, atol=1e-9 * 1e3)
    np.testing.assert_allclose(first.then(second)(logits), second(first(logits)), rtol=1e-12, atol=1e-9)
    np.testing.assert_array_equal(logits, before)
    np.testing.assert_array_equal(logn.ClassAffine.identity(CLASSES)(logits), logits)
    path = tmp_path_factory.mktemp("affine") / "a.safetensors"
    first.save(path)
    assert logn.ClassAffine.load(path) == first


def test_the_record_survives_the_file(tmp_path):
    made = logn.methods.norcal([100, 10, 1], background=0)
    made.save(tmp_path / "a.safetensors")
    loaded = logn.ClassAffine.load(tmp_path / "a.safetensors")
    assert (loaded.method, loaded.settings, loaded.background) == ("norcal", made.settings, 0)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_any_axis_may_be_the_class(axis):
    affine = logn.ClassAffine(np.arange(1.0, 6), np.arange(5.0))
    logits = np.random.default_rng(0).normal(size=(4, 3, 5))
    moved = np.moveaxis(logits, -1, axis)
    np.testing.assert_allclose(np.moveaxis(affine(moved, axis=axis), axis, -1), affine(logits))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_come_back_in_their_precision(dtype):
    affine = logn.ClassAffine([2.0, 3.0], [1.0, -1.0])
    logits = np.array([[1.0, 2.0]], dtype)
    assert affine(logits).dtype == dtype
    np.testing.assert_array_equal(affine(logits), [[3.0, 5.0]])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_come_back_in_their_precision_and_pass_gradients(name):
    torch = pytest.importorskip("torch")
    affine = logn.ClassAffine([2.0, 3.0], [1.0, -1.0])
    logits = torch.tensor([[1.0, 2.0]], dtype=getattr(torch, name), requires_grad=True)
    mapped = affine(logits)
    assert mapped.dtype == logits.dtype
    assert mapped.tolist() == [[3.0, 5.0]]
    mapped.sum().backward()
    assert logits.grad.tolist() == [[2.0, 3.0]]
    # In half precision 1000.3 would be 1000.5 or 1000.0 before the 1000 is taken away: rounded once, it is not.
    half = torch.tensor([[1000.0]], dtype=getattr(torch, name))
    once = logn.ClassAffine([1.0003], [-1000.0])
    assert once(half).item() == pytest.approx(0.3, rel=1e-2)
    if name != "bfloat16":
        assert once(half.numpy()).item() == pytest.approx(0.3, rel=1e-2)


def test_maps_of_other_backgrounds_are_not_equal():
    first, last = (logn.ClassAffine.identity(3, Head(background=background)) for background in (0, -1))
    assert first != last
    assert first == logn.ClassAffine(np.ones(3), np.zeros(3), head=Head(background=0), method="otherwise made")


def test_the_parts_cannot_be_changed():
    scale = np.array([1.0, 2.0])
    affine = logn.ClassAffine(scale, [0.0, 0.0])
    scale[0] = 5.0
    assert affine.scale[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        affine.scale[0] = 3.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: logn.ClassAffine([1.0], [1.0, 2.0]), "of one length"),
        (lambda: logn.ClassAffine([1.0, np.nan], [0.0, 0.0]), "`scale` to be finite, but got nan for column 1"),
        (lambda: logn.ClassAffine([1.0, 1.0], [np.inf, 0.0]), "`shift` to be finite, but got inf for column 0"),
        (lambda: logn.ClassAffine([1.0, 0.0], [0.0, 0.0]), "0 for column 1"),
        (lambda: logn.ClassAffine([], []), "one number per class"),
        (lambda: logn.ClassAffine([[1.0]], [[0.0]]), "one number per class"),
        (lambda: IDENTITY(np.ones((2, 4))), "3 columns on axis -1"),
        (lambda: IDENTITY(np.float64(1.0)), "3 columns on axis -1"),
        (lambda: IDENTITY(np.ones((2, 3)), axis=2), "3 columns on axis 2"),
        (lambda: IDENTITY(np.ones((2, 3), int)), "floating point"),
        (lambda: IDENTITY.then(logn.ClassAffine.identity(3, Head(background=-1))), "3 columns with background None"),
        (lambda: IDENTITY.then(logn.ClassAffine.identity(4)), "but got 4 with None"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(logn.InputError, match=words):
        call()


def test_files_that_are_no_map(tmp_path):
    path = tmp_path / "a.safetensors"
    logn.ClassMoments(2).save(path)
    with pytest.raises(
        logn.InputError, match=r"is `logn\.statistics`, not `logn\.affine`: pass what `logn fit` writes"
    ):
        logn.ClassAffine.load(path)
    save_file({}, path, metadata={"format": "logn.affine", "schema": "9"})
    with pytest.raises(logn.InputError, match="has schema 9, but this version of LogN reads 3"):
        logn.ClassAffine.load(path)
    head = {"format": "logn.affine", "schema": "3", "method": "", "settings": "{}", "head": "null"}
    for tensors, words in (
        ({}, "'shift' is missing"),
        ({"shift": np.full(2, np.nan)}, "Expected `shift` to be finite"),
    ):
        save_file({"scale": np.ones(2), **tensors}, path, metadata=head)
        with pytest.raises(logn.InputError, match=f"is not a valid map: {words}"):
            logn.ClassAffine.load(path)
