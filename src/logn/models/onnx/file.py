"""ONNX files: reading them, and running them in onnxruntime."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.files import require_file
from logn.errors import InputError, MissingExtraError
from logn.models.onnx.graph import OnnxGraph
from logn.models.onnx.inputs import OPEN_SIZES, Arrays, InputSpec, model_inputs, random_inputs

CPU = "CPUExecutionProvider"
# Files that engines make from a model.
_ENGINES = {
    ".engine": "an engine of TensorRT",
    ".mlmodel": "a model of Core ML",
    ".mlpackage": "a model of Core ML",
    ".ort": "a file of onnxruntime's own format",
    ".plan": "an engine of TensorRT",
    ".tflite": "a LiteRT (TFLite) file",
    ".xml": "a model of OpenVINO",
}
# Errors come back as exceptions; onnxruntime would print them as well.
_FATAL_ONLY = 4


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """A model in memory and where it came from.

    Attributes:
        path: The file.
        model: The `onnx.ModelProto`, all weights inside; it does not change.
        external: The data file of each weight that was in one, relative to the model's folder.
        content_hash: The SHA-256 object of the file's bytes.
    """

    path: Path
    model: Any
    external: Mapping[str, str]
    content_hash: Any

    @functools.cached_property
    def graph(self) -> OnnxGraph:
        """An index over the model."""
        return OnnxGraph(self.model)

    @functools.cached_property
    def inputs(self) -> list[InputSpec]:
        """What the model says about its inputs."""
        return model_inputs(self.model)

    @property
    def data_files(self) -> list[Path]:
        """Files that hold weights beside it; none for a model in one file."""
        return [self.path.parent / name for name in sorted({*self.external.values()})]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the file's bytes, and of its data files' where it has any, behind "onnx:".

        The kind is named since the digest of a torch model (`logn.models.layer.fingerprint`) can never equal it, even
        where the file was exported from that model.
        """
        digest = self.content_hash.copy()
        for path in self.data_files:
            with path.open("rb") as stream:
                hashlib.file_digest(stream, lambda: digest)
        return f"onnx:{digest.hexdigest()}"

    def session(
        self, tensors: Sequence[str] = (), *, only: bool = False, provider: str = CPU, optimised: bool = True
    ) -> OnnxSession:
        """Load it into onnxruntime, with inner tensors as further outputs.

        Args:
            tensors: Their names.
            only: Drop the model's own outputs, and all nodes, weights and inputs that `tensors` do not need.
            provider: Where it runs, by onnxruntime's name.
            optimised: Whether to optimise the graph first, which takes longer than a single run.
        """
        import onnx

        copy = onnx.ModelProto()
        if only:
            needed, graph = self.graph.ancestors(tensors), self.model.graph
            copy.ir_version = self.model.ir_version
            copy.opset_import.extend(self.model.opset_import)
            copy.graph.name = graph.name
            copy.graph.node.extend(node for node in graph.node if needed.intersection(node.output))
            copy.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
            copy.graph.sparse_initializer.extend(graph.sparse_initializer)
            copy.graph.input.extend(value for value in graph.input if value.name in needed)
            copy.graph.output.extend(value for value in graph.output if value.name in tensors)
        else:
            copy.CopyFrom(self.model)
        present = {value.name for value in copy.graph.output}
        # The type is left out: onnxruntime finds it, and the exporters do not always write it down.
        added = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(tensors) if name not in present]
        copy.graph.output.extend(added)
        return OnnxSession(copy, str(self.path), provider=provider, optimised=optimised)

    def run(self, tensors: Sequence[str], inputs: Arrays | None = None, *, only: bool = False) -> tuple[Arrays, Arrays]:
        """Run it once on `inputs`, or on random ones of the first size that it accepts; both are returned."""
        session = self.session(tensors, only=only, optimised=False)
        if inputs is not None:
            absent = [spec.name for spec in self.inputs if spec.name not in inputs]
            if absent:
                raise InputError(f"`inputs` lacks `{absent[0]}`, an input of `{self.path}`.")
            return inputs, session.run(inputs)
        failures: list[InputError] = []
        for size in OPEN_SIZES if any(spec.is_open for spec in self.inputs) else OPEN_SIZES[:1]:
            inputs = random_inputs(self.inputs, size=size)
            try:
                return inputs, session.run(inputs)
            except InputError as error:
                failures.append(error)
        raise InputError(f"{str(failures[0]).rstrip('.')}; pass `inputs` that it accepts.")


def read_onnx(path: str | os.PathLike[str]) -> OnnxFile:
    """Read a model with all its weights; a file that is missing, truncated or no model is refused.

    Example:
        >>> read_onnx("no-such-model.onnx")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `no-such-model.onnx` does not exist.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx", extra="onnx") from error
    path = Path(path)
    require_file(path)
    try:
        content = path.read_bytes()
        model = onnx.load_model_from_string(content)
        external = _external(model)
        if external:
            onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # protobuf, onnx and the system each have errors of their own for a damaged file
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise InputError(f"`{path}` cannot be read as an ONNX model: {reason}.") from error
    if not model.graph.node:
        raise InputError(f"`{path}` cannot be read as an ONNX model: it has no nodes.")
    if model.ir_version < 4:  # lists the weights as inputs, too, where nobody can put in others
        model.ir_version = 4
        stored = {tensor.name for tensor in model.graph.initializer}
        for value in [value for value in model.graph.input if value.name in stored]:
            model.graph.input.remove(value)
    if model.functions:  # what a function holds is not seen from the graph
        import onnx.inliner

        model = onnx.inliner.inline_local_functions(model)
    return OnnxFile(path, model, external, hashlib.sha256(content))


def _external(model: Any) -> dict[str, str]:
    """The data file of each weight that has one."""
    from onnx import TensorProto

    return {
        tensor.name: next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }


def files_beside(path: Path) -> list[Path]:
    """The files beside an ONNX file that hold its weights; none if it cannot be read."""
    try:
        import onnx

        model = onnx.load(str(path), load_external_data=False)
    except Exception:  # opening it will tell what is wrong
        return []
    return [path.parent / name for name in sorted({*_external(model).values()})]


def engine_file(path: str | os.PathLike[str]) -> str | None:
    """What an engine's file is, and what to do instead; None for any other file.

    Example:
        >>> engine_file("model.tflite")
        'a LiteRT (TFLite) file, which is made from another: fold the model before it is converted'
        >>> engine_file("model.onnx") is None
        True
    """
    kind = _ENGINES.get(Path(path).suffix.lower())
    return None if kind is None else f"{kind}, which is made from another: fold the model before it is converted"


class OnnxSession:
    """A model loaded into onnxruntime; one above the 2 GiB of a protobuf message is refused.

    Args:
        model: An `onnx.ModelProto`.
        name: What error messages call it.
        provider: Where it runs, by onnxruntime's name.
        optimised: Whether to optimise the graph first.
    """

    def __init__(self, model: Any, name: str, *, provider: str = CPU, optimised: bool = True) -> None:
        try:
            import onnxruntime as runtime
        except ImportError as error:
            raise MissingExtraError("onnxruntime", extra="onnx") from error
        available = runtime.get_available_providers()
        if provider not in available:
            raise InputError(f"Expected `provider` to be one of {', '.join(available)}, but got {provider!r}.")
        options = runtime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        if not optimised:
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.name = name
        try:
            self._session = runtime.InferenceSession(model.SerializeToString(), options, providers=[provider])
        except Exception as error:  # onnxruntime's and protobuf's errors have no common class
            raise InputError(f"`{name}` does not load in onnxruntime: {_reason(error)}.") from error
        self._inputs = {value.name for value in self._session.get_inputs()}
        self._outputs = [value.name for value in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str] | None = None) -> Arrays:
        """Run once; inputs that the model does not have are left out."""
        wanted = self._outputs if outputs is None else list(outputs)
        feed = {name: array for name, array in inputs.items() if name in self._inputs}
        try:
            results = self._session.run(wanted, feed)
        except Exception as error:
            shapes = ", ".join(f"{name} {np.shape(array)}" for name, array in feed.items())
            raise InputError(f"`{self.name}` does not run in onnxruntime on {shapes}: {_reason(error)}.") from error
        return dict(zip(wanted, results, strict=True))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= 300 else f"{text[:297]}..."
