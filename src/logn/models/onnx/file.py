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

Arrays = dict[str, npt.NDArray[Any]]

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
# Image sizes to try, one after the other, where a model leaves its own open.
OPEN_SIZES = (64, 224, 640, 320, 416, 512, 300)
# Errors come back as exceptions; onnxruntime would print them as well.
_FATAL_ONLY = 4


@dataclass(eq=False)
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

    @functools.cached_property
    def graph(self) -> OnnxGraph:
        """An index over the model, which must not be changed through it."""
        return OnnxGraph(self.model)

    @functools.cached_property
    def inputs(self) -> list[InputSpec]:
        """What the model says about its inputs."""
        return model_inputs(self.model)

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
            _copy_needed(self, tensors, copy)
        else:
            copy.CopyFrom(self.model)
        present = {value.name for value in copy.graph.output}
        # The type is left out: onnxruntime finds it, and the exporters do not always write it down.
        added = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(tensors) if name not in present]
        copy.graph.output.extend(added)
        return OnnxSession(copy, str(self.path), provider=provider, optimised=optimised)


def read_onnx(path: str | os.PathLike[str] | OnnxFile) -> OnnxFile:
    """Read a model with all its weights; a file that is missing, truncated or no model is refused.

    Args:
        path: The file; one that was read already is returned as it is.

    Example:
        >>> read_onnx("no-such-model.onnx")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `no-such-model.onnx` does not exist.
    """
    if isinstance(path, OnnxFile):
        return path
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx", extra="onnx") from error
    path = Path(path)
    require_file(path)
    try:
        model = onnx.load(str(path), load_external_data=False)
        data_files = _external_data(model)
        if data_files:
            onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # protobuf, onnx and the system each have errors of their own for a damaged file
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise InputError(f"`{path}` cannot be read as an ONNX model: {reason}.") from error
    if not model.graph.node:
        raise InputError(f"`{path}` cannot be read as an ONNX model: it has no nodes.")
    _unlist_weights(model)
    if model.functions:  # what a function holds is not seen from the graph
        import onnx.inliner

        model = onnx.inliner.inline_local_functions(model)
    return OnnxFile(path, model, tuple(sorted(set(data_files.values()))), frozenset(data_files))


def _unlist_weights(model: Any) -> None:
    """Take the weights off the inputs, where formats before version 4 list them; there nobody can put in others."""
    if model.ir_version < 4:
        model.ir_version = 4
        stored = {tensor.name for tensor in model.graph.initializer}
        for value in [value for value in model.graph.input if value.name in stored]:
            model.graph.input.remove(value)


def _external_data(model: Any) -> dict[str, str]:
    """The data file of each initialiser that has one."""
    from onnx import TensorProto

    return {
        tensor.name: next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }


def data_files(path: Path) -> list[Path]:
    """The files that hold weights of an ONNX file beside it; none if it cannot be read."""
    try:
        import onnx

        model = onnx.load(str(path), load_external_data=False)
    except Exception:  # opening it will tell what is wrong
        return []
    return [path.parent / name for name in sorted(set(_external_data(model).values()))]


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


def onnx_digest(file: OnnxFile) -> str:
    """SHA-256 of the file's bytes, and of its data files' where it has any, behind "onnx:".

    The kind is named since the digest of a torch model (`logn.models.layer.fingerprint`) can never equal it, even where
    the file was exported from that model.
    """
    digest = hashlib.sha256()
    for path in (file.path, *(file.path.parent / name for name in file.data_files)):
        with path.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return f"onnx:{digest.hexdigest()}"


@dataclass(frozen=True)
class InputSpec:
    """What a model says about one of its inputs.

    Attributes:
        name: Its name.
        dtype: Its type as NumPy has it.
        shape: Its lengths; a text or None for one that is open.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]

    @property
    def is_open(self) -> bool:
        """Whether the model leaves a length open."""
        return any(not isinstance(length, int) for length in self.shape)


def model_inputs(model: Any) -> list[InputSpec]:
    """The inputs of an `onnx.ModelProto`."""
    from onnx import helper

    stored, specs = {tensor.name for tensor in model.graph.initializer}, []
    for value in (value for value in model.graph.input if value.name not in stored):
        if not value.type.HasField("tensor_type"):
            raise InputError(f"The input `{value.name}` of the model is not a tensor.")
        kind = value.type.tensor_type
        shape = tuple(axis.dim_value if axis.dim_value > 0 else axis.dim_param or None for axis in kind.shape.dim)
        specs.append(InputSpec(value.name, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)), shape))
    return specs


class OnnxSession:
    """A model loaded into onnxruntime; one above the 2 GiB of a protobuf message is refused.

    Args:
        model: An `onnx.ModelProto`.
        name: What error messages call it.
        provider: Where it runs, by onnxruntime's name.
        optimised: Whether to optimise the graph first, which takes longer than a single run.
    """

    def __init__(self, model: Any, name: str, *, provider: str = CPU, optimised: bool = True) -> None:
        try:
            import onnxruntime as runtime
        except ImportError as error:
            raise MissingExtraError("onnxruntime", extra="onnx") from error
        known = runtime.get_available_providers()
        if provider not in known:
            raise InputError(f"Expected `provider` to be one of {', '.join(known)}, but got {provider!r}.")
        options = runtime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        if not optimised:
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.name = name
        try:
            self._session = runtime.InferenceSession(model.SerializeToString(), options, providers=[provider])
        except Exception as error:  # onnxruntime's and protobuf's errors have no common class
            raise InputError(f"`{name}` does not load in onnxruntime: {_reason(error)}.") from error
        self.inputs = self._session.get_inputs()
        self.outputs = self._session.get_outputs()
        overridable = self._session.get_overridable_initializers()
        self._names = {value.name for value in (*self.inputs, *overridable)}

    def run(self, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str] | None = None) -> Arrays:
        """Run once; inputs that the model does not have are left out."""
        wanted = list(outputs) if outputs is not None else [value.name for value in self.outputs]
        feed = {name: array for name, array in inputs.items() if name in self._names}
        try:
            results = self._session.run(wanted, feed)
        except Exception as error:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in feed.items())
            raise InputError(f"`{self.name}` does not run in onnxruntime on {shapes}: {_reason(error)}.") from error
        return dict(zip(wanted, results, strict=True))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= 300 else f"{text[:297]}..."


def _copy_needed(file: OnnxFile, tensors: Sequence[str], copy: Any) -> None:
    needed, graph = file.graph.ancestors(tensors), file.model.graph
    copy.ir_version = file.model.ir_version
    copy.opset_import.extend(file.model.opset_import)
    copy.graph.name = graph.name
    copy.graph.node.extend(node for node in graph.node if needed.intersection(node.output))
    copy.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
    copy.graph.sparse_initializer.extend(graph.sparse_initializer)
    copy.graph.input.extend(value for value in graph.input if value.name in needed)
    copy.graph.output.extend(value for value in graph.output if value.name in tensors)


def random_inputs(specs: Sequence[InputSpec], *, size: int = OPEN_SIZES[0], seed: int = 0) -> Arrays:
    """Random values for the inputs of a model: 0 to 1 for floats, ones for whole numbers (masks, ids).

    Args:
        specs: The inputs.
        size: Height and width, where the model leaves them open.
        seed: Of the random numbers.

    Example:
        >>> image = InputSpec("images", np.dtype("float32"), ("batch", 3, None, None))
        >>> random_inputs([image], size=32)["images"].shape
        (1, 3, 32, 32)
    """
    generator = np.random.default_rng(seed)
    values: Arrays = {}
    for spec in specs:
        shape = _closed_shape(spec.shape, size)
        if np.issubdtype(spec.dtype, np.floating):
            values[spec.name] = generator.random(shape).astype(spec.dtype)
        elif spec.dtype == np.uint8:  # a picture
            values[spec.name] = generator.integers(0, 256, shape, dtype=np.uint8)
        else:
            values[spec.name] = np.ones(shape, spec.dtype)
    return values


def _closed_shape(shape: Sequence[int | str | None], size: int) -> tuple[int, ...]:
    """A shape without open ends: one image of three channels, `size` high and wide."""
    guess = {3: (3, size, size), 4: (1, 3, size, size)}.get(len(shape), (1,) + (size,) * (len(shape) - 1))
    if len(shape) == 4 and shape[3] in (1, 3):
        guess = (1, size, size, 3)
    return tuple(length if isinstance(length, int) else guess[axis] for axis, length in enumerate(shape))


def run_somehow(session: OnnxSession, specs: Sequence[InputSpec], given: Arrays | None) -> tuple[Arrays, Arrays]:
    """Run on `given` inputs, or on random ones of the first size that the model accepts; both are returned."""
    if given is not None:
        absent = [spec.name for spec in specs if spec.name not in given]
        if absent:
            raise InputError(f"`inputs` lacks `{absent[0]}`, an input of `{session.name}`.")
        return given, session.run(given)
    failure: InputError | None = None
    for size in OPEN_SIZES if any(spec.is_open for spec in specs) else OPEN_SIZES[:1]:
        inputs = random_inputs(specs, size=size)
        try:
            return inputs, session.run(inputs)
        except InputError as error:
            failure = failure or error
    raise InputError(f"{str(failure).rstrip('.')}; pass `inputs` that it accepts.")
