"""Reading dumped logits: what comes out equals what NumPy reads, and bad files are refused by name."""

import json
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from logn.errors import InputError
from logn.logits import dumped as shards_module
from logn.logits.dumped import find_shards, open_shards, read_array, read_blocks


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


def test_images_with_proposals_are_one_batch_each(tmp_path, name):
    expected = _logits((4, 6, 5))
    rows, batches = _read(_write(tmp_path / name, expected), batch_rows=2)
    np.testing.assert_array_equal(rows, expected.reshape(-1, 5))
    assert [len(batch) for batch in batches] == [6, 6, 6, 6]


def test_an_image_above_the_limit_is_cut_at_its_own_rows(tmp_path, monkeypatch, name):
    monkeypatch.setattr(shards_module, "_LARGEST_BATCH_BYTES", 4 * 5 * 4)
    expected = _logits((3, 6, 5))
    rows, batches = _read(_write(tmp_path / name, expected))
    np.testing.assert_array_equal(rows, expected.reshape(-1, 5))
    assert [len(batch) for batch in batches] == [4, 2, 4, 2, 4, 2]


@settings(deadline=None)
@given(
    rows=st.integers(1, 60),
    batch_rows=st.integers(1, 20),
    block_bytes=st.integers(1, 400),
    cut=st.integers(0, 60),
)
def test_reading_can_go_on_after_any_block(tmp_path_factory, rows, batch_rows, block_bytes, cut):
    folder = tmp_path_factory.mktemp("shards")
    expected = _logits((rows, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "_BLOCK_BYTES", block_bytes)
        for name in ("a.npy", "a.packed.npz"):
            [shard] = open_shards([_write(folder / name, expected)])
            blocks = list(read_blocks(shard, batch_rows=batch_rows))
            resume = blocks[min(cut, len(blocks) - 1)].stop
            later = list(read_blocks(shard, batch_rows=batch_rows, first_row=resume))
            assert [block.batches for block in later] == [block.batches for block in blocks if block.start >= resume]
            for block in later:
                got = np.concatenate(list(block.read_batches()))
                np.testing.assert_array_equal(got, expected[block.start : block.stop])


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
    with pytest.raises(InputError, match=r"`key`.*a\.safetensors.*x, y"):
        open_shards([tmp_path / "a.safetensors"])
    with pytest.raises(InputError, match=r"an array `z`, but it holds: x, y"):
        open_shards([tmp_path / "a.safetensors"], "z")


def test_of_many_arrays_those_like_the_key_are_named(tmp_path):
    names = [f"model.stage{number}.weight" for number in range(50)] + ["model.head.weight"]
    save_file({name: _logits() for name in names}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=r"but it holds: model\.head\.weight, .* and 43 more\.$"):
        open_shards([tmp_path / "a.safetensors"], "head.weight")


def test_the_same_file_is_found_once_and_order_is_kept(tmp_path):
    for name in ("b.npy", "a.npy", "c.npz", "readme.md"):
        (tmp_path / name).touch()
    paths = find_shards([tmp_path / "b.npy", f"{tmp_path}/*.npy", tmp_path])
    assert [path.name for path in paths] == ["b.npy", "a.npy", "c.npz"]


def test_a_file_whose_name_looks_like_a_glob_is_found(tmp_path):
    (tmp_path / "run[1].npy").touch()
    assert [path.name for path in find_shards([tmp_path / "run[1].npy"])] == ["run[1].npy"]


def test_a_pattern_without_files_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"nothing\*\.npy` to match"):
        find_shards([tmp_path / "nothing*.npy"])
    with pytest.raises(InputError, match="matches none"):
        find_shards([tmp_path])
    with pytest.raises(InputError, match="at least one"):
        find_shards([])


def test_shards_of_other_classes_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", _logits((3, 5)))
    np.save(tmp_path / "b.npy", _logits((3, 6)))
    with pytest.raises(InputError, match=r"`.*b\.npy` to have 5 classes like `.*a\.npy`, but it has 6"):
        open_shards([tmp_path / "a.npy", tmp_path / "b.npy"])


def _truncate(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    return path


def _raw_safetensors(path, **changes):
    """Write a file of (3, 4) numbers whose header says something else."""
    entry = {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]} | changes
    header = json.dumps({"logits": entry}).encode()
    (path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))


BAD_FILES = {
    "integers": (lambda path: np.save(path / "x.npy", np.zeros((3, 4), int)), "x.npy", "int64"),
    "objects": (
        lambda path: np.save(path / "x.npy", np.array([[None]]), allow_pickle=True),
        "x.npy",
        "object",
    ),
    "structured": (lambda path: np.save(path / "x.npy", np.zeros(3, [("名", "f4")])), "x.npy", "another kind"),
    "fortran": (lambda path: np.save(path / "x.npy", np.asfortranarray(_logits())), "x.npy", "Fortran"),
    "empty": (lambda path: np.save(path / "x.npy", np.zeros((0, 4))), "x.npy", r"at least one row.*\(0, 4\)"),
    "one axis": (lambda path: np.save(path / "x.npy", np.zeros(4)), "x.npy", r"\(rows, classes\)"),
    "cut npy": (
        lambda path: _truncate(_write(path / "x.npy", _logits()), 200),
        "x.npy",
        "668 bytes are missing",
    ),
    "cut npy header": (
        lambda path: _truncate(_write(path / "x.npy", _logits()), 40),
        "x.npy",
        "cannot be read",
    ),
    "cut npz": (lambda path: _truncate(_write(path / "x.npz", _logits()), 300), "x.npz", "cannot be read"),
    "zero bytes": (lambda path: (path / "x.safetensors").touch(), "x.safetensors", "cannot be read"),
    "text as npy": (lambda path: (path / "x.npy").write_text("count,mean\n"), "x.npy", "cannot be read"),
    "text as npz": (lambda path: (path / "x.npz").write_text("count,mean\n"), "x.npz", "cannot be read"),
    "text as safetensors": (
        lambda path: (path / "x.safetensors").write_text("count,mean, and so on\n"),
        "x.safetensors",
        "cannot be read",
    ),
    "list as safetensors": (
        lambda path: (path / "x.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]"),
        "x.safetensors",
        "cannot be read",
    ),
    "incomplete entry": (
        lambda path: (path / "x.safetensors").write_bytes(struct.pack("<Q", 10) + json.dumps({"a": [1]}).encode()),
        "x.safetensors",
        "not complete",
    ),
    "cut safetensors": (
        lambda path: _truncate(_write(path / "x.safetensors", _logits()), 300),
        "x.safetensors",
        "bytes are missing",
    ),
    "integer safetensors": (
        lambda path: save_file({"a": np.zeros((3, 4), np.int32)}, path / "x.safetensors"),
        "x.safetensors",
        "holds I32",
    ),
    "another place": (
        lambda path: _raw_safetensors(path, data_offsets=[0, 8]),
        "x.safetensors",
        "does not fit its shape",
    ),
    "a place before": (lambda path: _raw_safetensors(path, data_offsets=[-8, 40]), "x.safetensors", "does not fit"),
    "words for a place": (
        lambda path: _raw_safetensors(path, data_offsets=["a", "b"]),
        "x.safetensors",
        "does not fit",
    ),
    "half a place": (lambda path: _raw_safetensors(path, data_offsets=[0]), "x.safetensors", "not complete"),
    "truth for a length": (lambda path: _raw_safetensors(path, shape=[True, 12]), "x.safetensors", "does not fit"),
    "links that go round": (lambda path: (path / "x.npy").symlink_to(path / "x.npy"), "x.npy", "does not exist"),
    "no file": (lambda path: None, "x.npy", "does not exist"),
    "suffix": (lambda path: (path / "x.pt").touch(), "x.pt", r"end in one of \.npy, \.npz, \.safetensors"),
}


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")  # which a name that is not ASCII takes
@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_in_one_sentence_that_names_them(tmp_path, case):
    make, name, sentence = BAD_FILES[case]
    make(tmp_path)
    with pytest.raises(InputError, match=sentence) as caught:
        open_shards(find_shards([tmp_path / name]))
    assert str(tmp_path / name) in str(caught.value)


def test_a_damaged_compressed_file_is_noticed_while_reading(tmp_path):
    path = _write(tmp_path / "a.packed.npz", _logits((4000, 5)))
    with zipfile.ZipFile(path) as archive:
        start = archive.infolist()[0].header_offset + 2000
    content = bytearray(path.read_bytes())
    content[start : start + 50] = bytes(50)
    path.write_bytes(content)
    [shard] = open_shards([path])
    with pytest.raises(InputError, match=r"a\.packed\.npz.*cannot be read"):
        list(read_blocks(shard))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_is_told_alike_of_every_compression(tmp_path, method):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.write(_write(tmp_path / "a.npy", _logits((4000, 5))), "scores.npy")
    whole = path.read_bytes()
    for start in (100, 20_000):  # in the header of the array, and in its numbers
        path.write_bytes(whole[:start] + b"\xff" * 100 + whole[start + 100 :])
        with pytest.raises(InputError, match=r"a\.npz` to be a \.npz file, but it cannot be read"):
            _read(path)
        with pytest.raises(InputError, match=r"a\.npz` to be a \.npz file, but it cannot be read"):
            read_array(path)


def test_a_variable_that_is_not_set_is_not_this_folder(tmp_path, monkeypatch):
    _write(tmp_path / "a.npy", _logits())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="it matches none"):
        find_shards([""])


def test_a_file_that_shrinks_meanwhile_is_noticed(tmp_path):
    [shard] = open_shards([_write(tmp_path / "a.npy", _logits())])
    [block] = read_blocks(shard)
    np.save(tmp_path / "a.npy", np.zeros((1, 5), np.float32))
    with pytest.raises(InputError, match="changed while it was read"):
        list(block.read_batches())
