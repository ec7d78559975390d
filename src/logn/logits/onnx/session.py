"""Running ONNX models in onnxruntime: with inner tensors as outputs, on inputs that fit their declared shapes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, MissingExtraError
from logn.logits.onnx.graph import OnnxGraph

Arrays = dict[str, npt.NDArray[Any]]

# Image sizes to try, one after the other, where a model leaves its own open.
OPEN_SIZES = (64, 224, 640, 320, 416, 512, 300)
# Errors come back as exceptions; onnxruntime would print them as well.
_FATAL_ONLY = 4


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
