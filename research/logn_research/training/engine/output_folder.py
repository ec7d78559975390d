"""The output folder of a run, which is removed if the run fails before it writes anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def output_folder(path: Path) -> Iterator[None]:
    """Make a folder for the block; if the block fails and leaves it empty, every folder made here is removed.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "runs" / "a"
        >>> with output_folder(folder):
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
