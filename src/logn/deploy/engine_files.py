"""Files of inference engines: a map goes into the model before it is converted to them."""

from __future__ import annotations

import os
from pathlib import Path

_KINDS = {
    ".engine": "an engine of TensorRT",
    ".mlmodel": "a model of Core ML",
    ".mlpackage": "a model of Core ML",
    ".ort": "a file of onnxruntime's own format",
    ".plan": "an engine of TensorRT",
    ".tflite": "a LiteRT (TFLite) file",
    ".xml": "a model of OpenVINO",
}


def engine_file(path: str | os.PathLike[str]) -> str | None:
    """What an engine's file is, and what to do instead; None for any other file.

    Example:
        >>> engine_file("model.tflite")
        'a LiteRT (TFLite) file, which is made from another: fold the model before it is converted'
        >>> engine_file("model.onnx") is None
        True
    """
    kind = _KINDS.get(Path(path).suffix.lower())
    return None if kind is None else f"{kind}, which is made from another: fold the model before it is converted"
