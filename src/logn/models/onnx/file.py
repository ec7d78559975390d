"""ONNX files: reading them, who makes and who reads each tensor, and running them in onnxruntime."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from logn.base.files import require_file
from logn.errors import InputError, MissingExtraError

Arrays = dict[str, npt.NDArray[Any]]

# Files that engines make from a model.
if TYPE_CHECKING:
    from logn.models.onnx.locate import Located

_ENGINES = {
    ".engine": "an engine of TensorRT",
    ".mlmodel": "a model of Core ML",
    ".mlpackage": "a model of Core ML",
    ".ort": "a file of onnxruntime's own format",
    ".plan": "an engine of TensorRT",
    ".tflite": "a LiteRT (TFLite) file",
    ".xml": "a model of OpenVINO",
}
# What can stand between an initialiser and the layer that reads it without computing anything.
_CONSTANT_STEPS = ("Identity", "Transpose", "Cast")
# Choices by comparing values: what follows depends on which samples were chosen, not smoothly on the values.
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
_LENGTHS = ("Shape", "Size")
_WEIGHTED = frozenset(("Gemm", "MatMul", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN"))
# How a value reaches a tensor: as it is, as the choice of other values, or through another layer.
VALUE, CHOICE, LAYER = "value", "choice", "layer"
SELECTIONS = frozenset(("TopK", "NonMaxSuppression", "ArgMax", "ArgMin", "NonZero", *_LENGTHS, *_COMPARISONS))
# What only detectors have that choose among their boxes.
SUPPRESSION = "NonMaxSuppression"
# Their other inputs say where to take values from, and are no values themselves.
PLACED = frozenset(
    ("Gather", "GatherND", "GatherElements", "Slice", "Split", "Reshape", "Expand", "Tile", "Pad", "Resize", "RoiAlign")
)
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
        located: The class logits that were found in it, and what a run to find them gave; None before that.
    """

    path: Path
    model: Any
    data_files: tuple[str, ...] = ()
    external: frozenset[str] = frozenset()
    located: Located | None = field(default=None, repr=False)

    @functools.cached_property
    def graph(self) -> OnnxGraph:
        """An index over the model, which must not be changed through it."""
        return OnnxGraph(self.model)

    @functools.cached_property
    def inputs(self) -> list[InputSpec]:
        """What the model says about its inputs."""
        return model_inputs(self.model)


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
        self.__dict__.pop("readers", None)
        graph = self.model.graph
        self.nodes = list(graph.node)
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.producers = {name: node for node in self.nodes for name in node.output if name}
        self.order = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        self.input_names = {value.name for value in graph.input} - self.initializers.keys()
        self.outputs = [value.name for value in graph.output]

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

    @property
    def opset(self) -> int:
        """Version of the standard operators."""
        versions = [entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")]
        return int(versions[0]) if versions else 1

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """The value of a tensor that is stored in the file, or None when it is computed."""
        from onnx import numpy_helper

        steps: list[Any] = []
        while (node := self.producers.get(name)) is not None and node.op_type in _CONSTANT_STEPS:
            steps.append(node)
            name = node.input[0]
        value: npt.NDArray[Any] | None = None
        if name in self.initializers:
            value = np.asarray(numpy_helper.to_array(self.initializers[name]))
        elif node is not None and node.op_type == "Constant":
            value = _constant_of_node(node)
        for step in reversed(steps):
            value = None if value is None else _constant_step(step, value)
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
        return bool(self.input_names & self._walk_back([name], lambda node: () if node.op_type in _LENGTHS else None))

    def ancestors(self, names: Iterable[str], *, values_only: bool = False) -> set[str]:
        """All tensors that `names` are computed from, themselves included.

        Args:
            names: Where to start.
            values_only: Leave out what only decides where values are taken from: indices, shapes, boxes.
        """
        return self._walk_back(names, _value_inputs if values_only else lambda node: None)

    def _walk_back(self, names: Iterable[str], inputs_of: Any) -> set[str]:
        """Follow the inputs that `inputs_of` gives for a node, all of them where it gives None."""
        seen, waiting = set(names), list(names)
        while waiting:
            node: Any = self.producers.get(waiting.pop())
            inputs = () if node is None else inputs_of(node)
            for name in (*node.input, *captured_names(node)) if inputs is None else inputs:
                if name and name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return seen


def _value_inputs(node: Any) -> Sequence[str] | None:
    if node.op_type in PLACED:
        return [node.input[0]]
    return () if node.op_type in SELECTIONS else None


def attribute(node: Any, name: str, default: Any) -> Any:
    """The value of a node's attribute, or `default` when it is not there."""
    from onnx import helper

    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), default)


def _constant_of_node(node: Any) -> npt.NDArray[Any] | None:
    """The array of a Constant node; None for kinds that are no numbers."""
    from onnx import numpy_helper

    for item in node.attribute:
        if item.name == "value":
            return np.asarray(numpy_helper.to_array(item.t))
        if item.name in ("value_float", "value_floats", "value_int", "value_ints"):
            return np.asarray(attribute(node, item.name, None))
    return None


def _constant_step(node: Any, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    from onnx import helper

    if node.op_type == "Transpose":
        return value.transpose(attribute(node, "perm", None))
    if node.op_type == "Cast":
        return value.astype(helper.tensor_dtype_to_np_dtype(attribute(node, "to", 1)))
    return value


def _subgraphs(node: Any) -> Iterator[Any]:
    """The graphs inside of a node: the branches of an If, the body of a Loop or Scan."""
    for item in node.attribute:
        yield from (item.g, *item.graphs) if item.HasField("g") or item.graphs else ()


def captured_names(node: Any) -> Iterator[str]:
    """Names that the subgraphs of a node (If, Loop, Scan) read from outside or inside of them."""
    for graph in _subgraphs(node):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from inner.input
            yield from captured_names(inner)


def reached_from(graph: OnnxGraph, tensors: Iterable[str]) -> dict[str, set[str]]:
    """All tensors that depend on `tensors`, and how: by VALUE, CHOICE or LAYER.

    Args:
        graph: The graph, whose nodes stand in the order in which they run.
        tensors: Where to start.
    """
    reached: dict[str, set[str]] = {name: {VALUE} for name in tensors}
    for node in graph.nodes:
        ways: set[str] = set()
        for position, name in enumerate(node.input):
            ways |= _passed_on(graph, node, position, reached.get(name, set()))
        if any(name in reached for name in captured_names(node)):
            ways.add(CHOICE)  # a Loop or an If over scores chooses boxes
        for name in node.output if ways else ():
            reached[name] = reached.get(name, set()) | ways
    return reached


def _passed_on(graph: OnnxGraph, node: Any, position: int, ways: set[str]) -> set[str]:
    if not ways:
        return ways
    if node.op_type in _LENGTHS:
        return ways & {CHOICE}  # a map changes no shape, a choice may
    if node.op_type in SELECTIONS or (node.op_type in PLACED and position > 0):
        return {CHOICE}
    if VALUE in ways and node.op_type in _WEIGHTED:
        others = [name for place, name in enumerate(node.input) if name and place != position]
        if any(graph.is_fixed(name) for name in others):  # with a weight; a product of two results is none
            return ways | {LAYER}
    return ways


def operators(nodes: Iterable[Any]) -> Iterator[str]:
    """The operators of nodes, and of all that is inside of them."""
    for node in nodes:
        yield node.op_type
        for graph in _subgraphs(node):
            yield from operators(graph.node)


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

    def __init__(
        self, model: Any, name: str, *, provider: str = "CPUExecutionProvider", optimised: bool = True
    ) -> None:
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


def exposing(model: Any, tensors: Sequence[str], *, only: bool = False) -> Any:
    """A copy of `model` with `tensors` as further outputs.

    Args:
        model: An `onnx.ModelProto`.
        tensors: Names of inner tensors.
        only: Drop the model's own outputs, and all nodes, weights and inputs that `tensors` do not need.
    """
    import onnx

    copy = onnx.ModelProto()
    if only:
        _copy_needed(model, tensors, copy)
    else:
        copy.CopyFrom(model)
    present = {value.name for value in copy.graph.output}
    # The type is left out: onnxruntime finds it, and the exporters do not always write it down.
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(tensors) if name not in present)
    return copy


def _copy_needed(model: Any, tensors: Sequence[str], copy: Any) -> None:
    needed, graph = OnnxGraph(model).ancestors(tensors), model.graph
    copy.ir_version = model.ir_version
    copy.opset_import.extend(model.opset_import)
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
