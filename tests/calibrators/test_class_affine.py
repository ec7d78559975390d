"""ClassAffine: its algebra, its files, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

import logn

CLASSES = 5
SCALES = hnp.arrays(np.float64, CLASSES, elements=st.floats(0.05, 20.0))
SHIFTS = hnp.arrays(np.float64, CLASSES, elements=st.floats(-50, 50))
LOGITS = hnp.arrays(np.float64, (3, CLASSES), elements=st.floats(-100, 100))
AFFINES = st.builds(logn.ClassAffine, SCALES, SHIFTS)


@given(affine=AFFINES, logits=LOGITS)
def test_the_inverse_undoes(affine, logits):
    np.testing.assert_allclose(affine.inverse()(affine(logits)), logits, rtol=1e-9, atol=1e-9 * 1e3)


@given(first=AFFINES, second=AFFINES, logits=LOGITS)
def test_then_is_one_after_the_other(first, second, logits):
    np.testing.assert_allclose(first.then(second)(logits), second(first(logits)), rtol=1e-12, atol=1e-9)


@given(affine=AFFINES, logits=LOGITS)
def test_inputs_stay_and_the_identity_changes_nothing(affine, logits):
    before = logits.copy()
    affine(logits)
    np.testing.assert_array_equal(logits, before)
    np.testing.assert_array_equal(logn.ClassAffine.identity(CLASSES)(logits), logits)


@given(affine=AFFINES)
def test_files_give_back_what_they_got(affine, tmp_path_factory):
    path = tmp_path_factory.mktemp("affine") / "a.safetensors"
    affine.save(path)
    assert logn.ClassAffine.load(path) == affine


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


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(name):
    torch = pytest.importorskip("torch")
    affine = logn.ClassAffine([1.0003], [-1000.0])
    # In half precision 1000.3 would be 1000.5 or 1000.0 before the 1000 is taken away.
    logits = torch.tensor([[1000.0]], dtype=getattr(torch, name))
    assert affine(logits).item() == pytest.approx(0.3, rel=1e-2)
    if name == "float16":
        assert affine(logits.numpy()).item() == pytest.approx(0.3, rel=1e-2)


def test_maps_of_other_backgrounds_are_not_equal():
    first, last = (logn.ClassAffine.identity(3, background=background) for background in (0, -1))
    assert first != last
    assert first == logn.ClassAffine(np.ones(3), np.zeros(3), 0, method="otherwise made")


def test_the_parts_cannot_be_changed():
    scale = np.array([1.0, 2.0])
    affine = logn.ClassAffine(scale, [0.0, 0.0])
    scale[0] = 5.0
    assert affine.scale[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        affine.scale[0] = 3.0


@pytest.mark.parametrize(
    ("scale", "shift", "words"),
    [
        ([1.0], [1.0, 2.0], "of one length"),
        ([1.0, np.nan], [0.0, 0.0], "`scale` to be finite, but got nan for column 1"),
        ([1.0, 1.0], [np.inf, 0.0], "`shift` to be finite, but got inf for column 0"),
        ([1.0, 0.0], [0.0, 0.0], "0 for column 1"),
        ([], [], "one number per class"),
        ([[1.0]], [[0.0]], "one number per class"),
    ],
)
def test_bad_parts_are_refused(scale, shift, words):
    with pytest.raises(logn.InputError, match=words):
        logn.ClassAffine(scale, shift)


@pytest.mark.parametrize("logits", [np.ones((2, 4)), np.float64(1.0)])
def test_another_width_is_refused(logits):
    with pytest.raises(logn.InputError, match="3 columns on axis -1"):
        logn.ClassAffine.identity(3)(logits)


def test_whole_numbers_are_refused():
    with pytest.raises(logn.InputError, match="floating point"):
        logn.ClassAffine.identity(3)(np.ones((2, 3), int))


def test_maps_of_other_columns_do_not_compose():
    with pytest.raises(logn.InputError, match="with background 0"):
        logn.ClassAffine.identity(3, background=0).then(logn.ClassAffine.identity(3, background=-1))


def test_files_that_are_no_map(tmp_path):
    path = tmp_path / "a.safetensors"
    logn.ClassMoments(2).save(path)
    with pytest.raises(
        logn.InputError, match=r"is `logn\.statistics`, not `logn\.affine`: pass what `logn fit` writes"
    ):
        logn.ClassAffine.load(path)
    head = {
        "format": "logn.affine",
        "schema": "2",
        "background": "null",
        "method": "",
        "settings": "{}",
        "source": "null",
    }
    save_file({"scale": np.ones(2)}, path, metadata=head)
    with pytest.raises(logn.InputError, match="is not a valid map: 'shift' is missing"):
        logn.ClassAffine.load(path)
    save_file({"scale": np.ones(2), "shift": np.full(2, np.nan)}, path, metadata=head)
    with pytest.raises(logn.InputError, match="valid map"):
        logn.ClassAffine.load(path)
