"""Writing files so that a kill half-way loses nothing, and reading safetensors with clear errors."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from logn.base.strict_json import Buffer, parse_typed
from logn.errors import InputError

T = TypeVar("T")
# Which command makes the files of each format, for whoever gives the wrong one.
WRITERS = {
    "logn.statistics": "`logn collect`",
    "logn.affine": "`logn fit`",
    "logn.comparison": "`logn compare -o`",
    "logn.classifier": "`logn predict`",
}
# Errors of writing, which name no file by themselves: a full disk, a quota, a limit on the size of files.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def staging_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new folder beside `target`, from which a rename is one step; whatever is left in it at the end is removed.

    Its name is random and it is ours alone, so that no other process, and no link that somebody put there, is in the
    way.

    Example:
        >>> with staging_folder("model.onnx") as folder:
        ...     folder.parent.samefile("."), folder.name.endswith(".partial")
        (True, True)
    """
    import tempfile  # only those who write load it

    place = Path(target)
    try:
        folder = tempfile.TemporaryDirectory(
            prefix=f".{place.stem[:40]}.", suffix=".partial", dir=place.parent, ignore_cleanup_errors=True
        )
    except OSError as error:
        error.filename = str(place)  # the name that the user knows
        raise
    with folder as name:
        yield Path(name)


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], *, overwrite: bool = True) -> Iterator[Path]:
    """Give a temporary path for a file or a folder; on success it takes the place of `path`, on an error it is removed.

    Args:
        path: Where to write.
        overwrite: Whether to replace a file that is there at the end; if not, it stays and the new one is removed.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with atomic_path(target) as temporary:
        ...     _ = temporary.write_text("done")
        >>> target.read_text()
        'done'
    """
    target = Path(path)
    require_place(target)
    with staging_folder(target) as folder:
        temporary = folder / target.name
        try:
            yield temporary
            put_files({temporary: target}, overwrite=overwrite)
        except OSError as error:
            if error.filename in (temporary, str(temporary)) or (error.filename is None and error.errno in _NO_ROOM):
                error.filename = str(target)
            raise


def put_files(targets: Mapping[Path, Path], *, overwrite: bool) -> None:
    """Give files or folders that lie in a staging folder their names.

    If the process is killed in between, no file has the last name, so that a model never lies beside the weights of
    another.

    Args:
        targets: The name of each, the main file last.
        overwrite: Whether to replace files; if not, a file that appeared during the run stays.
    """
    *_, main = targets.values()
    for target in targets.values():
        if not overwrite and os.path.lexists(target):
            raise _exists(target)
    if len(targets) > 1 and overwrite:
        main.unlink(missing_ok=True)
    for source, target in targets.items():
        os.replace(source, target)


def write_text(path: str | os.PathLike[str], text: str, *, overwrite: bool = True) -> None:
    r"""Write text as UTF-8 in one atomic step, with the same bytes on every system: lines end as they do in the text.

    Half of a pair of surrogates, as cut-off emoji have in JSON, and bytes of a file name that are no text have no code
    in UTF-8: they are written as escapes, which JSON reads back.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> write_text(target, "猫 \ud83d")
        >>> target.read_text(encoding="utf-8")
        '猫 \\ud83d'
    """
    with atomic_path(path, overwrite=overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write arrays and text metadata to `path` in one atomic step; the same content gives the same bytes."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.writelines(_safetensors_parts(tensors, metadata))  # save_file makes files that only their owner may read


def safetensors_to_bytes(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """What `write_safetensors` would write, as bytes."""
    return b"".join(_safetensors_parts(tensors, metadata))


def _safetensors_parts(
    tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> tuple[bytes, bytes, memoryview]:
    """The length of the header, the header in order (the library has another one each time), and the arrays."""
    data = save({name: np.require(array, requirements="C") for name, array in tensors.items()}, metadata=dict(metadata))
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format wants the arrays to start at a multiple of 8
    return len(text).to_bytes(8, "little"), text, memoryview(data)[end:]


def read_safetensors(
    path: str | os.PathLike[str], *, expected_format: str, schema: int, leave: Collection[str] = ()
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the arrays and the metadata of a file that LogN wrote; refuse any other file with a clear sentence.

    Args:
        path: The file.
        expected_format: What it must name as its format.
        schema: The version of the format.
        leave: Arrays that are not read, because they may be larger than the memory.
    """
    require_file(path)
    try:
        with safe_open(os.fspath(path), framework="np") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys() if name not in leave}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"`{path}` is not a valid safetensors file: {error}.") from error
    _check_kind(path, metadata, expected_format, schema)
    return tensors, metadata


def safetensors_from_bytes(
    data: bytes, *, name: str, expected_format: str, schema: int
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The opposite of `safetensors_to_bytes`, as strict as `read_safetensors`; `name` is that of the argument."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InputError(f"Expected `{name}` to be bytes, but got {type(data).__name__}.")
    data = bytes(data)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise InputError(f"`{name}` is not a valid safetensors file: {error}.") from error
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    _check_kind(name, metadata, expected_format, schema)
    # The arrays of the library are views on bytes, which cannot be written to.
    return {key: array.copy() for key, array in tensors.items()}, metadata


def read_typed(path: str | os.PathLike[str], kind: type[T]) -> T:
    """Read a JSON file into a type, as `parse_typed` does; the file is mapped, not copied."""
    return parse_typed(mapped_bytes(path), kind, os.fspath(path))


def mapped_bytes(path: str | os.PathLike[str]) -> Buffer:
    """The bytes of a file, mapped into memory: a file of a gigabyte takes none of its own."""
    require_file(path)
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


def require_file(path: str | os.PathLike[str], kind: str = "a file") -> None:
    """Refuse a path where there is no file, and say what there is.

    Example:
        >>> require_file("nowhere.npy")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `nowhere.npy` does not exist.
    """
    if not Path(path).exists():
        raise InputError(f"`{path}` does not exist.")
    if not Path(path).is_file():
        raise InputError(f"`{path}` is {_what_is_at(Path(path))}, not {kind}.")


def require_place(path: str | os.PathLike[str]) -> None:
    """Refuse a path where no file can be put: no folder around it, or a folder, a pipe or a device in its place.

    Example:
        >>> require_place("nowhere/a.npy")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: The folder of `nowhere/a.npy` does not exist: create `nowhere` first.
    """
    target = Path(path)
    if target.parent.is_file():
        raise InputError(f"`{target}` cannot be written: `{target.parent}` is a file.")
    if not target.parent.is_dir():
        raise InputError(f"The folder of `{target}` does not exist: create `{target.parent}` first.")
    # A rename would put a file in the place of /dev/null, for everybody.
    if target.exists() and not target.is_file():
        raise InputError(f"`{target}` cannot be written: it is {_what_is_at(target)}.")


def check_new(*paths: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Refuse to write where something is already, a dangling link included.

    Args:
        paths: Where files will be written.
        overwrite: Allow to replace files; a folder is never replaced.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     check_new(file.name, overwrite=True)
        ...     check_new(file.name)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `...` exists already: choose another `output`, or pass `overwrite` to \
replace it.
    """
    for path in map(Path, paths):
        if path.is_dir():
            raise InputError(f"`{path}` is a folder: choose another `output`.")
        if not overwrite and (path.exists() or path.is_symlink()):
            raise _exists(path)


def _exists(path: Path) -> InputError:
    return InputError(f"`{path}` exists already: choose another `output`, or pass `overwrite` to replace it.")


def refuse_inputs(outputs: Sequence[Path], inputs: Iterable[str | os.PathLike[str] | None]) -> None:
    """Refuse outputs that would replace an input or a file in an input folder, and two outputs of one name.

    Args:
        outputs: Where files will be written.
        inputs: What is read; what is no file or folder, such as the name of a method, is passed over.

    Example:
        >>> refuse_inputs([Path("a.json"), Path("./a.json")], [])
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Two outputs are `a.json`: choose another name for one of them.
    """
    places = [file_identity(path) for path in outputs]
    for path, place in zip(outputs, places, strict=True):
        if places.count(place) > 1:
            raise InputError(f"Two outputs are `{path}`: choose another name for one of them.")
    present = {place: path for place, path in zip(places, outputs, strict=True) if path.exists()}
    for source in inputs if present else ():
        if source is None or not os.path.exists(source):
            continue
        if (taken := present.get(file_identity(source))) is not None:
            raise InputError(f"`{taken}` is one of the inputs: choose another name for the output.")
        folder = Path(source).resolve() if os.path.isdir(source) else None
        inside = next((path for path in present.values() if folder in path.resolve().parents), None)
        if inside is not None:
            raise InputError(f"`{inside}` lies in `{source}`, one of the inputs: choose another name for the output.")


def file_identity(path: str | os.PathLike[str]) -> tuple[int, int] | str:
    """What two names of one file have in common, through symbolic and hard links; its path where there is no file.

    Example:
        >>> file_identity("nowhere/../a.npy") == file_identity("a.npy")
        True
    """
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def _what_is_at(path: Path) -> str:
    return "a folder" if path.is_dir() else "a pipe or a device"


def format_of(path: str | os.PathLike[str]) -> str | None:
    """The format that a file of ours names; empty for other safetensors files, None for what is none.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "other.safetensors"
        >>> write_safetensors(file, {}, {"format": "logn.affine"})
        >>> format_of(file)
        'logn.affine'
    """
    try:
        with safe_open(str(path), framework="np") as file:
            metadata: dict[str, str] = dict(file.metadata() or {})
            return metadata.get("format", "")
    except (SafetensorError, OSError):
        return None


def _check_kind(name: str | os.PathLike[str], metadata: Mapping[str, str], expected_format: str, schema: int) -> None:
    if metadata.get("format") != expected_format:
        actual = f"`{metadata['format']}`" if "format" in metadata else "a file of another program"
        writer = WRITERS.get(expected_format)
        hint = f": pass what {writer} writes" if writer else ""
        raise InputError(f"`{name}` is {actual}, not `{expected_format}`{hint}.")
    if metadata.get("schema") != str(schema):
        raise InputError(
            f"`{name}` has schema {metadata.get('schema')}, but this version of LogN reads {schema}: make it again."
        )
