"""Files appear whole or not at all, and errors name the file that was asked for."""

import errno
import os

import numpy as np
import pytest

from logn.base.files import atomic_path, read_safetensors, staging_folder, write_safetensors, write_text
from logn.errors import InputError


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


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    """As root, a rename would put a file in the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "file").write_text("")
    for target, reason in (
        (pipe, "it is a pipe or a device"),
        (tmp_path, "it is a folder"),
        (tmp_path / "file" / "x", "`.*file` is a file"),
    ):
        with pytest.raises(InputError, match=f"cannot be written: {reason}"), atomic_path(target):
            pass


def test_a_full_disk_is_told_with_the_file(tmp_path):
    target = tmp_path / "a.txt"
    with pytest.raises(OSError, match="full") as caught, atomic_path(target):
        raise OSError(errno.ENOSPC, "full")
    assert caught.value.filename == str(target)


def test_a_name_that_is_too_long_is_told_as_it_was_given(tmp_path):
    longest, target = tmp_path / f"{'y' * 251}.txt", tmp_path / f"{'y' * 252}.txt"
    with pytest.raises(OSError, match="too long") as caught, atomic_path(target) as temporary:
        temporary.write_text("")
    assert str(caught.value.filename) == str(target)
    with atomic_path(longest) as temporary:
        temporary.write_text("")
    assert list(tmp_path.iterdir()) == [longest]


def test_a_folder_where_nothing_may_be_written_is_told_with_the_file(tmp_path, monkeypatch):
    def refuse(name, mode=0o777):
        raise PermissionError(errno.EACCES, "denied", name)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(PermissionError) as caught, atomic_path(tmp_path / "a.txt"):
        pass
    assert caught.value.filename == str(tmp_path / "a.txt")


def test_a_link_in_the_way_is_replaced_and_never_followed(tmp_path):
    """Nobody can foresee where the file is written before it has its name: two writers at once have two places."""
    kept, target = tmp_path / "kept.txt", tmp_path / "a.txt"
    kept.write_text("kept")
    target.symlink_to(kept)
    with atomic_path(target) as temporary, atomic_path(target) as other:
        assert temporary.parent != other.parent
        assert {temporary.parent.parent, other.parent.parent} == {tmp_path}
        temporary.write_text("new")
        other.write_text("lost")
    assert (kept.read_text(), target.read_text(), target.is_symlink()) == ("kept", "new", False)
    assert sorted(tmp_path.iterdir()) == [target, kept]


def test_a_folder_appears_in_one_step_with_the_usual_permissions(tmp_path):
    (tmp_path / "usual").mkdir()
    with atomic_path(tmp_path / "model") as temporary:
        temporary.mkdir()
        (temporary / "a.txt").write_text("a")
        assert not (tmp_path / "model").exists()
    assert (tmp_path / "model" / "a.txt").read_text() == "a"
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "usual"]


def test_temporary_names_cannot_be_guessed_or_opened_by_others(tmp_path):
    with staging_folder(tmp_path / "a.json") as first, staging_folder(tmp_path / "a.json") as second:
        assert first != second
        assert os.name == "nt" or first.stat().st_mode & 0o777 == 0o700
    victim = tmp_path / "victim"
    victim.write_text("old")
    (tmp_path / "a.json").symlink_to(victim)
    write_text(tmp_path / "a.json", "new")  # takes the place of the link
    assert (victim.read_text(), (tmp_path / "a.json").read_text()) == ("old", "new")
