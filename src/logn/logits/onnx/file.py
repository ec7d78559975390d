"""ONNX files: reading them, who makes and who reads each tensor, and running them in onnxruntime."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, MissingExtraError
from logn.files import require_file

# What can stand between an initialiser and the layer that reads it without computing anything.
_CONSTANT_STEPS = ("Identity", "Transpose", "Cast")
# Choices by comparing values: what follows depends on which samples were chosen, not smoothly on the values.
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
SELECTIONS = frozenset(("TopK", "NonMaxSuppression", "ArgMax", "ArgMin", "NonZero", "Shape", "Size", *_COMPARISONS))
# What only detectors have that choose among their boxes.
SUPPRESSION = "NonMaxSuppression"
# Their other inputs say where to take values from, and are no values themselves.
PLACED = frozenset(
    ("Gather", "GatherND", "GatherElements", "Slice", "Split", "Reshape", "Expand", "Tile", "Pad", "Resize", "RoiAlign")
)

Arrays = dict[str, npt.NDArray[Any]]

# Image sizes to try, one after the other, where a model leaves its own open.
OPEN_SIZES = (64, 224, 640, 320, 416, 512, 300)
# Errors come back as exceptions; onnxruntime would print them as well.
_FATAL_ONLY = 4
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

    The kind is named since the digest of a torch model (`logn.logits.layer`) can never equal it, even where the
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


class OnnxGraph:
    """An index over the main graph of a model, which it does not change by itself.

    Args:
        model: An `onnx.ModelProto` with all weights in memory.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.refresh()

    def refresh(self) -> None:
        """Read the graph again, after a change of its nodes."""
        model = self.model
        for cached in ("readers", "input_names"):
            self.__dict__.pop(cached, None)
        self.nodes = list(model.graph.node)
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self.producers = {name: node for node in self.nodes for name in node.output if name}
        self.order = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        self.inputs = [value for value in model.graph.input if value.name not in self.initializers]
        self.outputs = [value.name for value in model.graph.output]

    @functools.cached_property
    def readers(self) -> dict[str, list[tuple[Any, int]]]:
        """The nodes that read each tensor, with the position; a reader inside a subgraph counts for its outer node."""
        readers: dict[str, list[tuple[Any, int]]] = {}
        for node in self.nodes:
            for position, name in enumerate(node.input):
                readers.setdefault(name, []).append((node, position))
            for name in captured_names(node):
                readers.setdefault(name, []).append((node, -1))
        return readers

    @functools.cached_property
    def opset(self) -> int:
        """Version of the standard operators."""
        versions = [entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")]
        return int(versions[0]) if versions else 1

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """The value of a tensor that is stored in the file, or None when it is computed."""
        from onnx import numpy_helper

        steps: list[Any] = []
        while name not in self.initializers:
            node = self.producers.get(name)
            if node is None or node.domain not in ("", "ai.onnx"):
                return None
            if node.op_type == "Constant":
                value = constant_of_node(node)
                break
            if node.op_type not in _CONSTANT_STEPS:
                return None
            steps.append(node)
            name = node.input[0]
        else:
            value = np.asarray(numpy_helper.to_array(self.initializers[name]))
        for node in reversed(steps):
            value = None if value is None else _constant_step(node, value)
        return value

    def scalar(self, name: str) -> float | None:
        """The value of a stored tensor of one element, else None."""
        stored = self.initializers.get(name)
        if stored is not None and int(np.prod(stored.dims)) != 1:  # do not unpack large weights to find this out
            return None
        value = self.constant(name)
        if value is None or value.size != 1 or not np.issubdtype(value.dtype, np.number):
            return None
        return float(value.reshape(()))

    def is_fixed(self, name: str) -> bool:
        """Whether a tensor is the same for all inputs: nothing on the way to it depends on them."""
        return not self.input_names & self.ancestors([name])

    def depends_on_values(self, name: str) -> bool:
        """Whether a tensor depends on the values of an input, and not only on the shape of it."""
        found, waiting = {name}, [name]
        while waiting:
            place = waiting.pop()
            if place in self.input_names:
                return True
            node = self.producers.get(place)
            if node is not None and node.op_type not in ("Shape", "Size"):
                waiting.extend(new for new in _all_inputs(node) if new and new not in found)
                found.update(_all_inputs(node))
        return False

    @functools.cached_property
    def input_names(self) -> set[str]:
        """Names of the model's inputs."""
        return {value.name for value in self.inputs}

    def ancestors(self, names: Iterable[str], *, values_only: bool = False) -> set[str]:
        """All tensors that `names` are computed from, themselves included.

        Args:
            names: Where to start.
            values_only: Leave out what only decides where values are taken from: indices, shapes, boxes.
        """
        found, waiting = set(names), list(names)
        while waiting:
            node = self.producers.get(waiting.pop())
            for name in () if node is None else _value_inputs(node) if values_only else _all_inputs(node):
                if name and name not in found:
                    found.add(name)
                    waiting.append(name)
        return found


def _all_inputs(node: Any) -> Iterator[str]:
    yield from node.input
    yield from captured_names(node)


def _value_inputs(node: Any) -> Iterator[str]:
    if node.op_type in PLACED:
        yield node.input[0]
    elif node.op_type not in SELECTIONS:
        yield from _all_inputs(node)


def attribute(node: Any, name: str, default: Any) -> Any:
    """The value of a node's attribute, or `default` when it is not there."""
    from onnx import helper

    for item in node.attribute:
        if item.name == name:
            return helper.get_attribute_value(item)
    return default


def constant_of_node(node: Any) -> npt.NDArray[Any] | None:
    """The array of a Constant node; None for kinds that are no numbers."""
    from onnx import numpy_helper

    for item in node.attribute:
        if item.name == "value":
            return np.asarray(numpy_helper.to_array(item.t))
        if item.name in ("value_float", "value_floats", "value_int", "value_ints"):
            return np.asarray(attribute(node, item.name, None))
    return None


def subgraphs(node: Any) -> Iterator[Any]:
    """The graphs inside of a node: the branches of an If, the body of a Loop or Scan."""
    for item in node.attribute:
        yield from (item.g, *item.graphs) if item.HasField("g") or item.graphs else ()


def captured_names(node: Any) -> Iterator[str]:
    """Names that the subgraphs of a node (If, Loop, Scan) read from outside or inside of them."""
    for graph in subgraphs(node):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from inner.input
            yield from captured_names(inner)


def operators(nodes: Iterable[Any]) -> Iterator[str]:
    """The operators of nodes, and of all that is inside of them."""
    for node in nodes:
        yield node.op_type
        for graph in subgraphs(node):
            yield from operators(graph.node)


def _constant_step(node: Any, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    from onnx import helper

    if node.op_type == "Transpose":
        return value.transpose(attribute(node, "perm", None))
    if node.op_type == "Cast":
        return value.astype(helper.tensor_dtype_to_np_dtype(attribute(node, "to", 1)))
    return value


def import_onnxruntime() -> Any:
    """The `onnxruntime` package, or an error that says what to install."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", extra="onnx") from error
    return onnxruntime


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

    specs = []
    for value in OnnxGraph(model).inputs:
        if not value.type.HasField("tensor_type"):
            raise InputError(f"Expected the input `{value.name}` to be a tensor, but it is of another kind.")
        kind = value.type.tensor_type
        shape = tuple(axis.dim_value if axis.dim_value > 0 else axis.dim_param or None for axis in kind.shape.dim)
        specs.append(InputSpec(value.name, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)), shape))
    return specs


def with_shapes(specs: Sequence[InputSpec], shapes: Mapping[str, tuple[int, ...]]) -> list[InputSpec]:
    """The inputs with some of their shapes given.

    Example:
        >>> spec = InputSpec("images", np.dtype("float32"), ("batch", 3, None, None))
        >>> with_shapes([spec], {"images": (1, 3, 64, 64)})[0].shape
        (1, 3, 64, 64)
    """
    names = [spec.name for spec in specs]
    for name in shapes:
        if name not in names:
            raise InputError(f"Expected the name of an input ({', '.join(names)}), but got {name!r}.")
    return [replace(spec, shape=shapes.get(spec.name, spec.shape)) for spec in specs]


class OnnxSession:
    """A model loaded into onnxruntime; one above the 2 GiB of a protobuf message goes through a file.

    Args:
        model: An `onnx.ModelProto`, or the path of a file.
        name: What error messages call it.
        provider: Where it runs, by onnxruntime's name.
        optimised: Whether to optimise the graph first, which takes longer than a single run.
    """

    def __init__(
        self, model: Any, name: str, *, provider: str = "CPUExecutionProvider", optimised: bool = True
    ) -> None:
        runtime = import_onnxruntime()
        known = runtime.get_available_providers()
        if provider not in known:
            raise InputError(f"Expected `provider` to be one of {', '.join(known)}, but got {provider!r}.")
        options = runtime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        if not optimised:
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.name = name
        try:
            self._session = _start(runtime, model, options, [provider])
        except Exception as error:  # onnxruntime's errors have no common class of their own
            raise InputError(f"Expected `{name}` to load in onnxruntime, but it does not: {_reason(error)}.") from error
        self.inputs = self._session.get_inputs()
        self.output_values = self._session.get_outputs()
        self.outputs = [value.name for value in self.output_values]

    def run(self, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str] | None = None) -> Arrays:
        """Run once; inputs that the model does not have are left out."""
        wanted = list(outputs) if outputs is not None else self.outputs
        feed = {value.name: inputs[value.name] for value in self.inputs if value.name in inputs}
        try:
            results = self._session.run(wanted, feed)
        except Exception as error:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in feed.items())
            raise InputError(
                f"Expected `{self.name}` to run in onnxruntime on {shapes}, but it does not: {_reason(error)}."
            ) from error
        return dict(zip(wanted, results, strict=True))


def _start(runtime: Any, model: Any, options: Any, providers: list[str]) -> Any:
    if isinstance(model, str | Path):
        return runtime.InferenceSession(str(model), options, providers=providers)
    message = _message(model)
    if message is not None:
        return runtime.InferenceSession(message, options, providers=providers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        _save_in_two_files(model, path)
        return runtime.InferenceSession(str(path), options, providers=providers)


def _message(model: Any) -> bytes | None:
    try:
        return bytes(model.SerializeToString())
    except Exception:  # protobuf's way to say that it is larger than a message can be
        return None


def _save_in_two_files(model: Any, path: Path) -> None:
    """Write the weights next to the model; they leave its message."""
    import onnx

    for tensor in model.graph.initializer:
        if tensor.HasField("raw_data"):
            onnx.external_data_helper.set_external_data(tensor, "model.data")
    onnx.save_model(model, str(path))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= 300 else f"{text[:297]}..."


def exposing(model: Any, tensors: Sequence[str], *, only: bool = False) -> Any:
    """A copy of `model` with `tensors` as further outputs.

    Args:
        model: An `onnx.ModelProto`.
        tensors: Names of inner tensors.
        only: Drop the model's own outputs, and all nodes, weights and inputs that `tensors` do not need.
    """
    import onnx

    copy = onnx.ModelProto()
    if not only:
        copy.CopyFrom(model)
    else:
        _copy_needed(model, tensors, copy)
    present = {value.name for value in copy.graph.output}
    # The type is left out: onnxruntime finds it, and the exporters do not always write it down.
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(tensors) if name not in present)
    return copy


def _copy_needed(model: Any, tensors: Sequence[str], copy: Any) -> None:
    needed = OnnxGraph(model).ancestors(tensors)
    copy.ir_version = model.ir_version
    copy.opset_import.extend(model.opset_import)
    graph = model.graph
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


def run_somehow(
    session: OnnxSession, specs: Sequence[InputSpec], given: Mapping[str, npt.NDArray[Any]] | None
) -> tuple[Arrays, Arrays]:
    """Run on `given` inputs, or on random ones of the first size that the model accepts; both are returned."""
    if given is not None:
        absent = [spec.name for spec in specs if spec.name not in given]
        if absent:
            raise InputError(
                f"Expected `inputs` to hold every input of `{session.name}`, but `{absent[0]}` is missing."
            )
        return dict(given), session.run(given)
    failure: InputError | None = None
    for size in OPEN_SIZES if any(spec.is_open for spec in specs) else OPEN_SIZES[:1]:
        inputs = random_inputs(specs, size=size)
        try:
            return inputs, session.run(inputs)
        except InputError as error:
            failure = failure or error
    raise InputError(f"{str(failure).rstrip('.')}; give `inputs` that it accepts.")
