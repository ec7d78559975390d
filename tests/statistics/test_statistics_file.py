"""The statistics file: what goes in comes out, and what is not valid is refused."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save, save_file

import logn
from logn.statistics.moments import StatisticsMetadata
from logn.statistics.sums import VECTORS

META = StatisticsMetadata(
    class_names=("bg", "naïve", "<script>"),
    background=0,
    activation="softmax",
    layer="head",
    population="images",
    fingerprint="ab12",
)


@pytest.fixture
def moments():
    result = logn.ClassMoments(3, sample_rows=4, metadata=META)
    for seed in range(3):
        result.update(np.random.default_rng(seed).normal(size=(5, 3)))
    return result


def test_round_trip(moments, tmp_path):
    moments.save(tmp_path / "x.safetensors")
    loaded = logn.ClassMoments.load(tmp_path / "x.safetensors")
    assert loaded.metadata == META
    for name in ("count", "mean", "m2", "skipped", "sample"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(moments, name))
    more = np.random.default_rng(9).normal(size=(5, 3))
    for each in (loaded, moments):
        each.update(more)
    np.testing.assert_allclose(loaded.variance, moments.variance, rtol=1e-12)
    assert loaded.sample.shape == moments.sample.shape


def test_a_flipped_bit_anywhere_is_noticed(moments, tmp_path):
    path = tmp_path / "x.safetensors"
    moments.save(path)
    content = path.read_bytes()
    changed_silently = []
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        try:
            logn.ClassMoments.load(path)
        except logn.InputError:
            continue
        changed_silently.append(content[position : position + 1])
    # Only the name of the entry that holds the checksum, without which a file is read as it is, and the padding.
    assert b"".join(changed_silently).strip() in (b"", b"checksum")
    mean = content.index(moments.mean.tobytes())
    path.write_bytes(content[: mean + 6] + bytes([content[mean + 6] ^ 1]) + content[mean + 7 :])
    with pytest.raises(logn.InputError, match=r"x\.safetensors` to be as it was written, but its checksum differs"):
        logn.ClassMoments.load(path)


def test_saving_leaves_no_other_file(moments, tmp_path):
    moments.save(tmp_path / "x.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_missing_folder_is_named(moments, tmp_path):
    with pytest.raises(logn.InputError, match="Expected the folder of"):
        moments.save(tmp_path / "nowhere" / "x.safetensors")


def test_no_file_a_text_file_and_a_truncated_file(moments, tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(logn.InputError, match="to be a file, but there is none"):
        logn.ClassMoments.load(path)
    path.write_text("hello")
    with pytest.raises(logn.InputError, match="to be a safetensors file"):
        logn.ClassMoments.load(path)
    moments.save(path)
    whole = path.read_bytes()
    for size in (0, 7, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(logn.InputError, match="to be a safetensors file"):
            logn.ClassMoments.load(path)


def test_a_file_of_another_format_or_schema(moments, tmp_path):
    path = tmp_path / "x.safetensors"
    logn.ClassAffine.identity(3).save(path)
    with pytest.raises(logn.InputError, match=r"to hold `logn.statistics`, but it says 'logn.affine'"):
        logn.ClassMoments.load(path)
    save_file({"count": np.ones(3)}, path)
    with pytest.raises(logn.InputError, match="no format name"):
        logn.ClassMoments.load(path)
    save_file({"count": np.ones(3)}, path, metadata={"format": "logn.statistics", "schema": "99"})
    with pytest.raises(logn.InputError, match="schema 3, but it has '99'"):
        logn.ClassMoments.load(path)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("mean", np.array([0.0, np.nan, 0.0]), "`mean` is not finite for class 1"),
        ("count", np.array([5.0, -5.0, 5.0]), "`count` is negative for class 1"),
        ("count", np.array([5.0, 5.5, 5.0]), "`count` is not a whole number for class 1"),
        ("count", np.array([5.0, 1.0, 5.0]), "`m2` is not 0 though fewer than two values were seen for class 1"),
        ("m2", np.ones(2), "should be one float64 per class"),
        ("m2", np.ones(3, np.float32), "should be one float64 per class"),
        ("m2", None, "`m2` is missing"),
        ("sample_keys", None, "go together"),
        ("sample_capacity", None, "go together"),
        ("sample_capacity", np.array([3]), r"should be float16 \(at most 3, 3\)"),
        ("sample_rows", np.ones((4, 2), np.float16), "should be float16"),
        ("sample_rows", np.full((4, 3), np.nan, np.float16), "`sample_rows` is not finite"),
    ],
)
def test_damaged_content_is_named(moments, tmp_path, name, value, words):
    path = tmp_path / "x.safetensors"
    moments.save(path)
    tensors = load_file(path)
    assert set(VECTORS) <= set(tensors)
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    metadata = {"format": "logn.statistics", "schema": "3", **META.to_text()}
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(logn.InputError, match=words):
        logn.ClassMoments.load(path)


def test_a_failed_save_keeps_the_old_file(moments, tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    moments.save(path)
    before = path.read_bytes()

    def fail(*_arguments, **_keywords):
        raise OSError("disk full")

    monkeypatch.setattr("logn.files.save", fail)
    with pytest.raises(OSError, match="disk full"):
        moments.save(path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_bytes_are_those_of_the_file(moments, tmp_path):
    moments.save(tmp_path / "x.safetensors")
    assert moments.to_bytes() == (tmp_path / "x.safetensors").read_bytes()
    loaded = logn.ClassMoments.from_bytes(moments.to_bytes())
    assert loaded.to_bytes() == moments.to_bytes()
    loaded.update(np.ones((4, 3)))  # what came as bytes can be added to
    assert loaded.count.tolist() == [19.0] * 3


def test_bytes_that_are_no_statistics(moments):
    whole = moments.to_bytes()
    for size in (0, 7, 40, len(whole) // 2, len(whole) - 1):
        with pytest.raises(logn.InputError, match=r"^Expected `data` to be a safetensors file, but it cannot be read"):
            logn.ClassMoments.from_bytes(whole[:size])
    with pytest.raises(logn.InputError, match=r"^Expected `data` to be bytes, but got str\.$"):
        logn.ClassMoments.from_bytes("statistics")
    with pytest.raises(logn.InputError, match=r"`data` to hold `logn\.statistics`, but it says 'no format name'"):
        logn.ClassMoments.from_bytes(save({"count": np.ones(3)}))
    newer = save({"count": np.ones(3)}, metadata={"format": "logn.statistics", "schema": "99"})
    with pytest.raises(logn.InputError, match="`data` to have schema 3, but it has '99'; make it again"):
        logn.ClassMoments.from_bytes(newer)
    damaged = save({"count": np.ones(3)}, metadata={"format": "logn.statistics", "schema": "3"})
    with pytest.raises(logn.InputError, match="`data` to hold valid statistics, but it does not: `mean` is missing"):
        logn.ClassMoments.from_bytes(damaged)
