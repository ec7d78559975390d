"""The folder of a run, which goes away again when nothing came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def run_folder(path: Path) -> Iterator[None]:
    """Make a folder for a block; if the block fails and left it empty, what was made is removed.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "runs" / "a"
        >>> with run_folder(folder):
        ...     raise OSError("no such image")
        Traceback (most recent call last):
        ...
        OSError: no such image
        >>> folder.parent.exists()
        False
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        _remove_empty(missing)
        raise


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:  # the innermost first
        try:
            folder.rmdir()
        except OSError:
            return  # something is in it, or another process was quicker
