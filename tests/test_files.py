"""Files appear whole or not at all, and errors name the file that was asked for."""

import pytest

from logn.files import atomic_path


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
