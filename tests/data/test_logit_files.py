"""Reading dumped logits: what comes out equals what NumPy reads, and bad files are refused by name."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from logn.data import logit_files as shards_module
from logn.data.logit_files import find_shards, open_shards, read_array, read_blocks
from logn.errors import InputError


def _logits(shape=(37, 5), dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def _write(path, array):
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.name.endswith("packed.npz"):
        np.savez_compressed(path, scores=array)
    elif path.suffix == ".npz":
        np.savez(path, scores=array)
    else:
        save_file({"scores": array}, path)
    return path


def _read(path, key=None, **options):
    [shard] = open_shards([path], key)
    batches = [batch.copy() for block in read_blocks(shard, **options) for batch in block.read_batches()]
    return np.concatenate(batches), batches


@pytest.fixture(params=["a.npy", "a.npz", "a.packed.npz", "a.safetensors"])
def name(request):
    return request.param


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("block_bytes", [1, 200, 16 * 2**20])
def test_every_format_gives_back_the_rows(tmp_path, monkeypatch, name, dtype, block_bytes):
    monkeypatch.setattr(shards_module, "_BLOCK_BYTES", block_bytes)
    expected = _logits(dtype=dtype)
    rows, batches = _read(_write(tmp_path / name, expected), batch_rows=8)
    np.testing.assert_array_equal(rows, expected)
    assert rows.dtype == dtype
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 5]


@pytest.mark.parametrize(("largest", "lengths"), [(6 * 5 * 4, [6, 6, 6]), (4 * 5 * 4, [4, 2, 4, 2, 4, 2])])
def test_images_with_proposals_are_one_batch_each_and_cut_above_a_limit(tmp_path, monkeypatch, name, largest, lengths):
    monkeypatch.setattr(shards_module, "_LARGEST_BATCH_BYTES", largest)
    expected = _logits((3, 6, 5))
    rows, batches = _read(_write(tmp_path / name, expected), batch_rows=2)
    np.testing.assert_array_equal(rows, expected.reshape(-1, 5))
    assert [len(batch) for batch in batches] == lengths


def test_bfloat16_without_torch(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    tensor = torch.randn(9, 4).to(torch.bfloat16)
    save_torch({"logits": tensor}, tmp_path / "a.safetensors")
    rows, _ = _read(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(rows, tensor.float().numpy())


def test_big_endian_files_become_native(tmp_path):
    expected = _logits()
    np.save(tmp_path / "a.npy", expected.astype(">f4"))
    rows, _ = _read(tmp_path / "a.npy")
    assert rows.dtype.isnative
    np.testing.assert_array_equal(rows, expected)


def test_the_array_named_logits_or_the_key_is_taken(tmp_path):
    first, second = _logits(), _logits((4, 5)) + 1
    np.savez(tmp_path / "a.npz", logits=first, other=second)
    np.testing.assert_array_equal(_read(tmp_path / "a.npz")[0], first)
    np.testing.assert_array_equal(_read(tmp_path / "a.npz", key="other")[0], second)
    save_file({"x": first, "y": second}, tmp_path / "a.safetensors")
    np.testing.assert_array_equal(_read(tmp_path / "a.safetensors", key="y")[0], second)
    with pytest.raises(InputError, match=r"a\.safetensors.*`key`"):
        open_shards([tmp_path / "a.safetensors"])
    with pytest.raises(InputError, match="`z`"):
        open_shards([tmp_path / "a.safetensors"], "z")


def test_of_many_arrays_those_like_the_key_are_named(tmp_path):
    names = [f"model.stage{number}.weight" for number in range(50)] + ["model.head.weight"]
    save_file({name: _logits() for name in names}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=r"did you mean `model\.head\.weight`"):
        open_shards([tmp_path / "a.safetensors"], "head.weight")


def test_the_same_file_is_found_once_and_order_is_kept(tmp_path):
    for name in ("b.npy", "a.npy", "c.npz", "readme.md"):
        (tmp_path / name).touch()
    paths = find_shards([tmp_path / "b.npy", f"{tmp_path}/*.npy", tmp_path])
    assert [path.name for path in paths] == ["b.npy", "a.npy", "c.npz"]


def test_a_file_whose_name_looks_like_a_glob_is_found(tmp_path):
    (tmp_path / "run[1].npy").touch()
    assert [path.name for path in find_shards([tmp_path / "run[1].npy"])] == ["run[1].npy"]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["nothing*.npy"], r"nothing\*\.npy` matches no \.npy"),
        (["empty"], r"matches no \.npy"),
        ([""], r"matches no \.npy"),  # a variable that is not set is not this folder
        ([], "at least one"),
    ],
)
def test_a_pattern_without_files_is_refused(tmp_path, monkeypatch, patterns, message):
    _write(tmp_path / "a.npy", _logits())
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        find_shards(patterns)


def test_shards_of_other_classes_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", _logits((3, 5)))
    np.save(tmp_path / "b.npy", _logits((3, 6)))
    with pytest.raises(InputError, match=r"b\.npy` has 6 columns, but `.*a\.npy` has 5"):
        open_shards([tmp_path / "a.npy", tmp_path / "b.npy"])


def _truncate(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


def _raw_safetensors(**changes):
    """A file of (3, 4) numbers whose header is changed."""
    entry = {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]} | changes
    header = json.dumps({"logits": entry}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(64)


def _two_arrays(path):
    path.write_bytes(_write(path, _logits()).read_bytes() * 2)


# What is in the file: an array, bytes, or what a function does to its path.
BAD_FILES = {
    "integers": ("x.npy", np.zeros((3, 4), int), "int64"),
    "objects": ("x.npy", lambda path: np.save(path, np.array([[None]]), allow_pickle=True), "x.npy"),
    "structured": ("x.npy", np.zeros(3, [("名", "f4")]), "x.npy"),
    "empty": ("x.npy", np.zeros((0, 4)), r"\(0, 4\)"),
    "one axis": ("x.npy", np.zeros(4), r"\(rows, classes\)"),
    "two arrays": ("x.npy", _two_arrays, "behind"),
    "cut npy": ("x.npy", lambda path: _truncate(_write(path, _logits()), 200), "x.npy"),
    "cut npy header": ("x.npy", lambda path: _truncate(_write(path, _logits()), 40), "x.npy"),
    "npz as npy": ("x.npy", lambda path: _write(path.with_suffix(".npz"), _logits()).rename(path), "x.npy"),
    "cut npz": ("x.npz", lambda path: _truncate(_write(path, _logits()), 300), "x.npz"),
    "cut safetensors": ("x.safetensors", lambda path: _truncate(_write(path, _logits()), 300), "x.safetensors"),
    "zero bytes": ("x.safetensors", b"", "x.safetensors"),
    "text as npy": ("x.npy", b"count,mean\n", "x.npy"),
    "text as npz": ("x.npz", b"count,mean\n", "x.npz"),
    "text as safetensors": ("x.safetensors", b"count,mean, and so on\n", "x.safetensors"),
    "list as safetensors": ("x.safetensors", struct.pack("<Q", 2) + b"[]", "x.safetensors"),
    "integer safetensors": ("x.safetensors", np.zeros((3, 4), np.int32), "I32"),
    "another place": ("x.safetensors", _raw_safetensors(data_offsets=[0, 8]), "x.safetensors"),
    "bytes behind": ("x.safetensors", _raw_safetensors(), "x.safetensors"),
    "links that go round": ("x.npy", lambda path: path.symlink_to(path), "does not exist"),
    "no file": ("x.npy", lambda path: None, "does not exist"),
    "suffix": ("x.pt", b"", r"\.npy, \.npz, \.safetensors"),
}


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")  # which a name that is not ASCII takes
@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_in_one_sentence_that_names_them(tmp_path, case):
    name, content, sentence = BAD_FILES[case]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        (_write if isinstance(content, np.ndarray) else lambda path, make: make(path))(tmp_path / name, content)
    with pytest.raises(InputError, match=sentence) as caught:
        open_shards(find_shards([tmp_path / name]))
    assert str(tmp_path / name) in str(caught.value)


def test_damaged_archives_are_named(tmp_path):
    whole = _write(tmp_path / "a.packed.npz", _logits((4000, 5))).read_bytes()
    for start in (60, 20_000):  # in the header of the array, and in its numbers
        (tmp_path / "a.npz").write_bytes(whole[:start] + b"\xff" * 100 + whole[start + 100 :])
        for read in (_read, read_array):
            with pytest.raises(InputError, match=r"a\.npz"):
                read(tmp_path / "a.npz")


@pytest.mark.parametrize("shape", [(6, 5), (3, 2, 5)])
def test_rows_of_an_array_in_fortran_order(tmp_path, shape):
    expected = _logits(shape)
    np.save(tmp_path / "a.npy", np.asfortranarray(expected))
    np.testing.assert_array_equal(_read(tmp_path / "a.npy", batch_rows=4)[0], expected.reshape(-1, 5))


def test_hidden_files_of_a_folder_are_no_shards(tmp_path):
    for name in ("a.npy", ".a.4711.partial.npy", "._a.npy"):
        np.save(tmp_path / name, _logits())
    assert [path.name for path in find_shards([tmp_path])] == ["a.npy"]


def test_a_file_that_shrinks_meanwhile_is_noticed(tmp_path):
    [shard] = open_shards([_write(tmp_path / "a.npy", _logits())])
    [block] = read_blocks(shard)
    np.save(tmp_path / "a.npy", np.zeros((1, 5), np.float32))
    with pytest.raises(InputError, match=r"a\.npy"):
        list(block.read_batches())
