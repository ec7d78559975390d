"""The statistics file: what goes in comes out, and what is not valid is refused."""

import numpy as np
import pytest
from safetensors.numpy import load, save
from tests.conftest import moments_of

import logn
from logn.statistics.head import Head

META = Head(
    names=("bg", "naïve", "<script>"),
    background=0,
    activation="softmax",
    layer="head",
    population="images",
    source="torch:ab12",
)
HEAD = {"format": "logn.statistics", "schema": "5", "head": META.to_json()}
MORE = np.random.default_rng(9).normal(size=(5, 3))


@pytest.fixture
def moments():
    rows = np.concatenate([np.random.default_rng(seed).normal(size=(5, 3)) for seed in range(3)])
    return moments_of(
        rows, 3, sample_rows=4, **{name: value for name, value in vars(META).items() if name != "num_columns"}
    )


def test_files_and_bytes_give_back_what_they_got(moments, tmp_path):
    path = tmp_path / "x.safetensors"
    moments.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]
    assert moments.to_bytes() == path.read_bytes()
    copies = logn.ClassMoments.load(path), logn.ClassMoments.from_bytes(moments.to_bytes())
    assert all(loaded.head == META and loaded.to_bytes() == moments.to_bytes() for loaded in copies)
    moments.update(MORE)
    for loaded in copies:
        loaded.update(MORE)
        np.testing.assert_allclose(loaded.variance, moments.variance, rtol=1e-12)
        np.testing.assert_array_equal(loaded.mean_probability, moments.mean_probability)
        assert loaded.sample.shape == moments.sample.shape


def test_paths_and_objects_that_hold_no_statistics(moments, tmp_path):
    with pytest.raises(logn.InputError, match=r"The folder of .* does not exist"):
        moments.save(tmp_path / "nowhere" / "x.safetensors")
    with pytest.raises(logn.InputError, match=r"x\.safetensors` does not exist"):
        logn.ClassMoments.load(tmp_path / "x.safetensors")
    with pytest.raises(logn.InputError, match=r"^Expected `data` to be bytes, but got str\.$"):
        logn.ClassMoments.from_bytes("statistics")


def cut(size):
    return lambda whole: whole[:size]


def changed(**arrays):
    """The same file with other arrays; None leaves one out."""

    def make(whole):
        tensors = load(whole) | arrays
        return save({name: array for name, array in tensors.items() if array is not None}, metadata=HEAD)

    return make


def headed(**metadata):
    return lambda whole: save({"count": np.ones(3)}, metadata=metadata)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        *((cut(size), "") for size in (0, 7, 40, -200, -1)),
        (lambda whole: b"hello", ""),
        (headed(), "logn.statistics"),
        (headed(format="logn.affine"), "logn.affine"),
        (headed(format="logn.statistics", schema="99"), "schema 99"),
        (headed(format="logn.statistics", schema="5"), "`head`|`mean`"),
        (headed(format="logn.statistics", schema="5", head=META.to_json()), "`mean`"),
        (changed(mean=np.array([0.0, np.nan, 0.0])), "`mean`"),
        (changed(count=np.array([5.0, -5.0, 5.0])), "`count`.* class 1"),
        (changed(count=np.array([5.0, 5.5, 5.0])), "`count`.* class 1"),
        (changed(count=np.array([5.0, 1.0, 5.0])), "`m2`.* class 1"),
        (changed(**{name: np.zeros(2) for name in ("count", "mean", "m2", "skipped")}), "`head`"),
        *((changed(m2=values), "`m2`") for values in (None, np.ones(2), np.ones(3, np.float32))),
        (changed(sample_keys=None), "`sample_keys`|`sample_rows`"),
        (changed(sample_capacity=None), "`sample_capacity`"),
        (changed(sample_capacity=np.array([3])), "`sample_keys`"),
        (changed(sample_rows=np.ones((4, 2), np.float16)), "`sample_rows`"),
        (changed(sample_rows=np.full((4, 3), np.nan, np.float16)), "`sample_rows`"),
        *(
            (changed(probability_rows=np.array(rows)), "`probability_rows`")
            for rows in ([1.5], [-1.0], [np.nan], [15.0] * 2)
        ),
        (changed(probability_rows=None), "`probability_rows`"),
        *((changed(softmax_sum=values), "`softmax_sum`") for values in (np.ones(2), np.ones(3, np.float32))),
        (changed(softmax_sum=np.array([1.0, np.nan, 1.0])), "`softmax_sum`"),
        (changed(softmax_sum=np.array([1.0, 16.0, 1.0])), "`probability_rows`"),
    ],
)
def test_what_is_not_valid_is_named(moments, tmp_path, content, named):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content(moments.to_bytes()))
    with pytest.raises(logn.InputError, match=rf"^`.*x\.safetensors` .*({named})"):
        logn.ClassMoments.load(path)
    with pytest.raises(logn.InputError, match=rf"^`data` .*({named})"):
        logn.ClassMoments.from_bytes(path.read_bytes())


def test_a_failed_save_keeps_the_old_file(moments, tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    moments.save(path)
    before = path.read_bytes()

    def fail(*_arguments, **_keywords):
        raise OSError("disk full")

    monkeypatch.setattr("logn.base.files.save", fail)
    with pytest.raises(OSError, match="disk full"):
        moments.save(path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
