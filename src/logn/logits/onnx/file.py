"""Reading ONNX files: whole models with their external data, a digest, and one clear sentence for a damaged file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logn.errors import InputError, MissingExtraError
from logn.files import require_file


@dataclass(frozen=True)
class OnnxFile:
    """A model in memory and where it came from.

    Attributes:
        path: The file.
        model: The `onnx.ModelProto`, all weights inside.
        data_files: Files next to it that held weights, relative to its folder; empty for a model in one file.
        external: Names of the weights that they held.
    """

    path: Path
    model: Any
    data_files: tuple[str, ...] = ()
    external: frozenset[str] = frozenset()


def import_onnx() -> Any:
    """The `onnx` package, or an error that says what to install."""
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx", extra="onnx") from error
    return onnx


def read_onnx(path: str | os.PathLike[str]) -> OnnxFile:
    """Read a model with all its weights; a file that is missing, truncated or no model is refused.

    Example:
        >>> read_onnx("no-such-model.onnx")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `no-such-model.onnx` to be a file, but there is none.
    """
    onnx = import_onnx()
    path = Path(path)
    require_file(path)
    try:
        model = onnx.load(str(path), load_external_data=False)
        places = _external_places(model)
        if places:
            onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # protobuf, onnx and the system each have errors of their own for a damaged file
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise InputError(f"Expected `{path}` to be a whole ONNX model, but it cannot be read: {reason}.") from error
    if not model.graph.node:
        raise InputError(f"Expected `{path}` to be a whole ONNX model, but it has no nodes.")
    if model.functions:  # what a function holds is not seen from the graph
        import onnx.inliner

        model = onnx.inliner.inline_local_functions(model)
    return OnnxFile(path, model, tuple(sorted(set(places.values()))), frozenset(places))


def onnx_digest(file: OnnxFile) -> str:
    """SHA-256 of the file's bytes, and of its data files' where it has any, behind "onnx:".

    The kind is named since the digest of a torch model (`logn.logits.fingerprint`) can never equal it, even where the
    file was exported from that model. Older statistics lack it, and are then not compared with an ONNX file.
    """
    digest = hashlib.sha256()
    for path in (file.path, *(file.path.parent / name for name in file.data_files)):
        with path.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return f"onnx:{digest.hexdigest()}"


def _external_places(model: Any) -> dict[str, str]:
    """The data file of each initialiser that has one."""
    from onnx import TensorProto

    return {
        tensor.name: next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }
