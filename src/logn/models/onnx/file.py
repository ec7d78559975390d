"""ONNX files: reading them, their inputs, and running them in onnxruntime."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.files import require_file
from logn.errors import InputError, MissingExtraError
from logn.models.onnx.graph import OnnxGraph
from logn.models.preprocessing import Preprocessing

Arrays = dict[str, npt.NDArray[Any]]

CPU = "CPUExecutionProvider"
# Image sizes to try, one after the other, where a model leaves its own open.
OPEN_SIZES = (64, 224, 640, 320, 416, 512, 300)
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

    @property
    def takes_images(self) -> bool:
        """Whether images fit: three or four axes, and three channels first or last."""
        channels = [self.shape[axis] for axis in (-1, -3)] if len(self.shape) in (3, 4) else []
        fits = any(length == 3 or not isinstance(length, int) for length in channels)
        return fits and (np.issubdtype(self.dtype, np.floating) or self.dtype == np.uint8)


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
        guess = {3: (3, size, size), 4: (1, 3, size, size)}.get(len(spec.shape), (1, *[size] * (len(spec.shape) - 1)))
        if len(spec.shape) == 4 and spec.shape[3] in (1, 3):
            guess = (1, size, size, 3)
        shape = [length if isinstance(length, int) else guess[axis] for axis, length in enumerate(spec.shape)]
        if np.issubdtype(spec.dtype, np.floating):
            values[spec.name] = generator.random(shape).astype(spec.dtype)
        elif spec.dtype == np.uint8:  # a picture
            values[spec.name] = generator.integers(0, 256, shape, dtype=np.uint8)
        else:
            values[spec.name] = np.ones(shape, spec.dtype)
    return values


class ImageInput:
    """The input of a model that takes images, and how they are prepared for it.

    Args:
        specs: All inputs of the model.
        preprocessing: What is known of the images; size, layout and type are taken from the model where it states them,
            and what contradicts it is refused.
    """

    def __init__(self, specs: Sequence[InputSpec], preprocessing: Preprocessing) -> None:
        fitting = [spec for spec in specs if spec.takes_images]
        if not fitting:
            listed = ", ".join(f"{spec.name} {spec.shape}" for spec in specs)
            raise InputError(f"The model has no input for images; its inputs are {listed}.")
        self.spec = spec = fitting[0]
        self.others = [other for other in specs if other is not spec]
        channels_last = spec.shape[-1] == 3 and spec.shape[-3] != 3
        order = (preprocessing.layout or ("HWC" if channels_last else "CHW")).removeprefix("N")
        # Height and width, as axes and as the model has them.
        self._axes = (-2, -1) if order == "CHW" else (-3, -2)
        declared = tuple(spec.shape[axis] for axis in self._axes)
        if preprocessing.dtype not in (None, str(spec.dtype)):
            raise InputError(
                f"Expected `dtype` to be {spec.dtype}, which `{spec.name}` takes, but got {preprocessing.dtype}."
            )
        size = preprocessing.size or declared
        if any(isinstance(length, int) and length != side for length, side in zip(declared, size, strict=True)):
            raise InputError(f"Expected `size` to be {declared}, which `{spec.name}` takes, but got {size}.")
        height, width = size
        whole = (height, width) if isinstance(height, int) and isinstance(width, int) else None
        layout = f"N{order}" if self.has_batches else order
        self.preprocessing = replace(preprocessing, size=whole, layout=layout, dtype=str(spec.dtype))

    @property
    def has_batches(self) -> bool:
        """Whether the model takes several images at once, on an axis of their own."""
        return len(self.spec.shape) == 4

    @property
    def fixed_batch(self) -> int | None:
        """How many images the model takes, no more and no fewer; None where that is open."""
        length = self.spec.shape[0] if self.has_batches else 1
        return length if isinstance(length, int) else None

    def random(self) -> Arrays:
        """Random values of the size that images are prepared to."""
        shape = [length if isinstance(length, int) else 1 for length in self.spec.shape]
        for axis, length in zip(self._axes, self.preprocessing.size or (), strict=False):
            shape[axis] = length
        shape[-3 if self._axes == (-2, -1) else -1] = 3
        return random_inputs([replace(self.spec, shape=tuple(shape))]) | self._beside(shape)

    def runs(self, images: Iterable[npt.NDArray[Any]], batch: int = 1) -> Iterator[tuple[Arrays, int]]:
        """The inputs of each run, and how many of its images are real: a last batch may be filled up by repeating one.

        Args:
            images: Prepared images.
            batch: Images per run, where the model leaves it open.
        """
        step, waiting = self.fixed_batch or batch, iter(images)
        while part := list(itertools.islice(waiting, step)):
            real = len(part)
            if self.fixed_batch is not None:
                part += [part[-1]] * (step - real)
            pixels = np.stack(part) if self.has_batches else part[0]
            yield {self.spec.name: pixels, **self._beside(pixels.shape)}, real

    def _beside(self, shape: Sequence[int]) -> Arrays:
        """Ones for the inputs beside the images (masks, scales), with the lengths that they share with these."""
        lengths = {name: length for name, length in zip(self.spec.shape, shape, strict=True) if isinstance(name, str)}
        return {
            spec.name: np.ones(
                [length if isinstance(length, int) else lengths.get(str(length), 1) for length in spec.shape],
                spec.dtype,
            )
            for spec in self.others
        }
