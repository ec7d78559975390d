"""Files appear whole or not at all, and errors name the file that was asked for."""

import numpy as np
import pytest

from logn.files import atomic_path, read_safetensors, write_safetensors


def test_an_error_names_the_file_and_leaves_nothing(tmp_path):
    target = tmp_path / "out" / "a.txt"
    target.parent.mkdir()
    with pytest.raises(FileNotFoundError) as caught, atomic_path(target) as temporary:
        (temporary.parent / "gone" / "x").write_text("")
    assert caught.value.filename.endswith("x")  # another file keeps its own name
    with pytest.raises(FileNotFoundError) as caught, atomic_path(target) as temporary:
        temporary.read_text()
    assert caught.value.filename == str(target)
    assert list(target.parent.iterdir()) == []


def test_the_same_content_gives_the_same_bytes(tmp_path):
    """So that files of two runs can be compared, or kept by their checksum."""
    arrays = {"b": np.arange(3.0), "a": np.ones((2, 2), np.float16), "none": np.zeros(0)}
    metadata = {"format": "logn.affine", "schema": "1"} | {f"naïve {number}": "猫" for number in range(9)}
    contents = set()
    for number in range(5):
        path = tmp_path / f"{number}.safetensors"
        write_safetensors(path, arrays, metadata)
        contents.add(path.read_bytes())
    assert len(contents) == 1
    stored, text = read_safetensors(path, expected_format="logn.affine", schema=1)
    assert text == metadata
    assert all(np.array_equal(stored[name], arrays[name]) for name in arrays)
