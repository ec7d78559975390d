"""fold_onnx: put a map behind the class logits of an ONNX file as two nodes, and prove it before it gets its name."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import sigmoid
from logn.base.files import check_new, put_files, refuse_inputs, require_place, staging_folder
from logn.base.strict_json import parse_json
from logn.data.class_names import are_placeholders
from logn.errors import InputError, warn
from logn.methods.affine import ClassAffine
from logn.models.hints import Hints
from logn.models.onnx.boxes import BoxLayout, class_rows, find_objectness
from logn.models.onnx.candidates import BOX, score_outputs
from logn.models.onnx.description import column_names, names_in
from logn.models.onnx.file import Arrays, OnnxFile, read_onnx
from logn.models.onnx.graph import CHOICE, LAYER, OnnxGraph
from logn.models.onnx.layers import OURS
from logn.models.onnx.locate import Located, OnnxLogits, Wanted, locate
from logn.models.write import HALF_TOLERANCE, TOLERANCE, Proof
from logn.statistics.head import Head

METADATA_KEY = "logn.folded"


@dataclass(frozen=True)
class FoldReport(Proof):
    """What `fold_onnx` did, and its proof: the largest difference in onnxruntime and on how many rows.

    Attributes:
        output_path: The file that was written.
        tensors: The tensors that hold the logits; two nodes (Mul, Add) are behind each.
        axis: Their class axis, counted from the end.
        activation: What the model applies to them: "softmax", "sigmoid", or None.
    """

    output_path: Path
    tensors: tuple[str, ...]
    axis: int
    activation: str | None


def fold_onnx(
    model_path: str | os.PathLike[str],
    affine: ClassAffine,
    output_path: str | os.PathLike[str],
    *,
    tensor: str | Sequence[str] | None = None,
    activation: str | None = None,
    axis: int | None = None,
    inputs: Mapping[str, npt.NDArray[Any]] | Sequence[Mapping[str, npt.NDArray[Any]]] | None = None,
    class_factors: npt.ArrayLike | None = None,
    class_names: Sequence[str] | str | os.PathLike[str] | None = None,
    allow_refold: bool = False,
    allow_mismatch: bool = False,
    overwrite: bool = False,
) -> FoldReport:
    '''Put `affine` behind the class logits of an ONNX model; inputs, outputs and speed stay.

    The logits are what goes into the class activation, or an output that has none. A Mul and an Add are put behind
    them, with one number per class; the weights of the model stay, those in external data stay there. The file gets its
    name only after both models ran in onnxruntime, the new logits were the map of the old ones, and no output that is
    not computed from them changed.

    Args:
        model_path: The ONNX file; it does not change.
        affine: The map, one column per class and for the background.
        output_path: The file to write; weights in external data go to a file of that name plus `.data`.
        tensor: Name of the tensor that holds the logits, or of the output behind their activation, or several such; by
            default where the statistics of the map were recorded, else the search finds it.
        activation: "softmax" or "sigmoid", to search only for that.
        axis: The class axis of the logits, needed only where it cannot be inferred.
        inputs: What to run the models on, by the name of the input, or several such; by default random values.
        class_factors: Multiply the class scores of a model with an objectness, whose output holds both, by one factor
            per class: a node (Mul) at the output.
        class_names: Names of the model's classes, or a file of them, if the model has none; they must be those that
            `affine` was made for.
        allow_refold: Fold on top of a map that is folded already. Whether `affine` was made for this file is not
            checked then, as the earlier fold has changed it.
        allow_mismatch: Only warn where `affine` was made for another file or another activation, for example for the
            model before it was retrained. A map that was made for a torch model is not compared with the file.
        overwrite: Replace `output_path`, and its data file, where they exist.

    Example:
        >>> import tempfile, onnx.parser
        >>> folder = Path(tempfile.mkdtemp())
        >>> text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 2] x) => (float[N, 2] y)
        ... <float[2, 2] w = {1.0, 0.5, 0.0, 1.0}> { y = Gemm(x, w) }"""
        >>> onnx.save_model(onnx.parser.parse_model(text), str(folder / "model.onnx"))
        >>> report = fold_onnx(folder / "model.onnx", ClassAffine([2.0, 1.0], [0.0, -3.0]), folder / "corrected.onnx")
        >>> report.tensors, report.largest_difference < 1e-6
        (('y',), True)
    '''
    if not isinstance(affine, ClassAffine):
        raise InputError(f"Expected `affine` to be a ClassAffine to fold, but got {type(affine).__name__}.")
    file, target = read_onnx(model_path), Path(output_path)
    name = f"`{file.path}`"
    outputs = [target, *([_data_of(target)] if file.external else [])]
    require_place(target)
    refuse_inputs(outputs, [file.path, *file.data_files])
    check_new(*outputs, overwrite=overwrite)
    if not allow_refold:
        refuse_folded_file(file)
    hints, columns, background = Hints(tensor=tensor, class_names=class_names), affine.num_columns, affine.background
    tensors, parameters = (hints.tensors, ()) if hints.tensors else _recorded_at(affine, file.graph)
    runs = [dict(run) for run in ([inputs] if isinstance(inputs, Mapping) else inputs or [])]
    wanted = Wanted(columns, tensors, activation, axis, background is not None, parameters=parameters)
    located = locate(file, wanted, runs[0] if runs else None)
    logits = located.logits
    names = column_names(names_in(file), hints.names(columns, background), columns, background, name)
    head = Head.of_classes(
        None if names is None or are_placeholders(names) else names,
        columns,
        background,
        activation=logits.activation,
        source=None if allow_refold or affine.head is None else file.digest,
    )
    affine.check_fits(head, name, allow_mismatch=allow_mismatch)
    if not allow_mismatch:
        check_place(affine, logits, name, None if hints.tensors else parameters)
    with staging_folder(target) as folder:
        proof = fold_located(file, located, affine, folder / target.name, runs, class_factors)
        written = sorted(folder.iterdir(), key=lambda part: part.name == target.name)  # the model last
        put_files({part: target.with_name(part.name) for part in written}, overwrite=overwrite)
    return FoldReport(
        **vars(proof), output_path=target, tensors=logits.tensors, axis=logits.axis, activation=logits.activation
    )


def _recorded_at(affine: ClassAffine, graph: OnnxGraph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tensors that the statistics of a map were recorded at, or the parameters of that layer of a torch model.

    Both as far as the map says so and this graph has them.
    """
    head = affine.head
    if head is None or head.layer is None:
        return (), ()
    names = tuple(head.layer.split(", "))
    if head.source_kind == "onnx":
        return names if {*names} <= graph.producers.keys() else (), ()
    parameters = (f"{name}.{part}" for name in names for part in ("weight", "bias"))
    return (), tuple(name for name in parameters if name in graph.initializers)


def check_place(affine: ClassAffine, logits: OnnxLogits, name: str, parameters: Sequence[str] | None = None) -> None:
    """Refuse logits of another layer than the one that a map was recorded at.

    Args:
        affine: The map.
        logits: The logits that it is to go behind.
        name: What to call the file in messages.
        parameters: Those of the map's layer in a torch model, as far as the file has them; None where the user named
            the logits, which need not be that layer then.
    """
    head, here = affine.head, ", ".join(logits.tensors)
    if head is None or head.layer is None:
        return
    if head.source_kind == "onnx" and {*logits.tensors} != {*head.layer.split(", ")}:
        raise InputError(
            f"`affine` was recorded at `{head.layer}`, not at the logits `{here}` of {name}; collect the statistics "
            "there (in Python allow_mismatch=True folds it all the same)."
        )
    if head.source_kind == "onnx" or parameters is None:
        return
    weights = {part for layer in logits.layers for part in (layer.weight, layer.bias)}
    if parameters and weights.isdisjoint(parameters):
        raise InputError(
            f"`affine` was recorded at `{head.layer}`, not at the logits `{here}` of {name}; name the output of that "
            "layer as `tensor`."
        )
    scaled = [layer.output for layer in logits.layers if layer.scaled]
    if scaled:
        raise InputError(
            f"`affine` was recorded at `{head.layer}`, but the logits `{here}` of {name} are its output `{scaled[0]}` "
            "on another scale; name the one that is meant as `tensor`."
        )


def _data_of(target: Path) -> Path:
    """Where weights in external data go."""
    return target.with_name(f"{target.name}.data")


def fold_located(
    file: OnnxFile,
    located: Located,
    affine: ClassAffine,
    output: Path,
    runs: Sequence[Arrays] = (),
    class_factors: npt.ArrayLike | None = None,
) -> Proof:
    """Write a map behind the logits of a file and prove it; raise if the proof fails.

    Args:
        file: The file.
        located: Its logits.
        affine: The map.
        output: The file to write, and beside it one more where the weights are in external data.
        runs: What to run both files on; by default what the logits were found on.
        class_factors: One factor per class for the class scores at the output, as `fold_onnx` takes them.
    """
    import onnx

    logits, copy = located.logits, _Copy(file.model)
    kept = _kept_outputs(file.graph, logits)
    whole = _over_all_columns(affine, logits)
    with np.errstate(over="ignore"):  # what half precision cannot hold, the proof refuses
        scale, shift = (part.astype(logits.dtype) for part in (whole.scale, whole.shift))
    shape = (-1, *[1] * (-logits.axis - 1))  # broadcast over the logits
    names = copy.store(f"{OURS}scale", scale.reshape(shape)), copy.store(f"{OURS}shift", shift.reshape(shape))
    for tensor in logits.tensors:
        copy.insert(tensor, Mul=names[0], Add=names[1])
    scaling = None if class_factors is None else _Scaling.of(file, located, class_factors)
    if scaling is not None:
        copy.insert(scaling.output, Mul=copy.store(f"{OURS}class_factors", scaling.numbers))
    _mark(copy.model, affine, logits.tensors)
    for tensor in copy.model.graph.initializer:
        if tensor.name in file.external:
            onnx.external_data_helper.set_external_data(tensor, _data_of(output).name)
    onnx.save_model(copy.model, str(output))
    if file.external:
        _data_of(output).chmod(output.stat().st_mode)  # onnx makes it readable for its owner only

    before, after = (part.session(logits.tensors) for part in (file, read_onnx(output)))
    results = [(before.run(run), after.run(run)) for run in runs or [located.inputs]]
    half = logits.dtype.itemsize < 4
    proof = Proof.of(_pairs(logits, whole, results), half=half).checked(str(file.path))
    for old, new in results:
        _check_kept(kept, logits, old, new, HALF_TOLERANCE if half else TOLERANCE)
        if scaling is not None:
            scaling.check(logits, old, new, HALF_TOLERANCE if half else TOLERANCE)
    return proof


def _kept_outputs(graph: OnnxGraph, logits: OnnxLogits) -> list[str]:
    """The outputs that a fold must leave as they are: those that are not computed from the logits, and all boxes.

    What the scores select (boxes behind a suppression) is in another order afterwards, and cannot be compared. An
    output that another layer computes from the logits is refused; one of the logits before a temperature is warned of.
    """
    reached, scores = graph.reached_from(logits.tensors), score_outputs(graph, logits.tensors)
    kept = []
    for name in graph.outputs:
        ways = reached.get(name, set())
        if LAYER in ways:
            raise InputError(
                f"The output `{name}` would change too: another layer computes it from the logits "
                f"`{logits.tensors[0]}`; export the model with separate heads."
            )
        if not ways or (CHOICE not in ways and name not in scores and BOX.search(name)):
            kept.append(name)
    scaled = score_outputs(graph, [layer.output for layer in logits.layers if layer.scaled])
    for name in sorted(scaled.intersection(kept)):
        warn(f"The output `{name}` holds the logits before they become `{logits.tensors[0]}`, and stays as it is.")
    return kept


def _over_all_columns(affine: ClassAffine, logits: OnnxLogits) -> ClassAffine:
    """The map over the whole class axis; box and objectness before the classes stay as they are, and that is proven."""
    if logits.width == affine.num_columns:
        return affine
    scale, shift = np.ones(logits.width), np.zeros(logits.width)
    classes = slice(logits.start, logits.start + logits.num_columns)
    scale[classes], shift[classes] = affine.scale, affine.shift
    return ClassAffine(scale, shift)


class _Copy:
    """A copy of a model to put nodes into, under names that no tensor and no node has.

    Args:
        model: An `onnx.ModelProto`; it does not change.
    """

    def __init__(self, model: Any) -> None:
        self.model = type(model)()
        self.model.CopyFrom(model)
        graph = OnnxGraph(self.model)
        self._taken = {*graph.initializers, *graph.producers, *graph.input_names, *graph.readers}
        self._taken.update(node.proto.name for node in graph.nodes)

    def unused(self, wish: str) -> str:
        """`wish`, with a number behind it if it is taken."""
        names = (wish if count == 0 else f"{wish}_{count}" for count in itertools.count())
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name

    def store(self, wish: str, value: npt.NDArray[Any]) -> str:
        """Store an array under `wish` or a similar name; gives the name."""
        from onnx import numpy_helper

        name = self.unused(wish)
        self.model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def insert(self, tensor: str, **operands: str) -> None:
        """Put nodes, each an operator and the name of its second input, behind the one that makes `tensor`.

        The last result has the old name: all that reads `tensor` reads it, and graph outputs keep their names.
        """
        from onnx import helper

        nodes = self.model.graph.node
        place, source = next((place, node) for place, node in enumerate(nodes) if tensor in node.output)
        data = self.unused(f"{tensor}_logn_before")
        source.output[list(source.output).index(tensor)] = data
        for number, (operator, operand) in enumerate(operands.items(), 1):
            result = tensor if number == len(operands) else self.unused(f"{tensor}_logn_scaled")
            name = self.unused(f"{tensor}_logn_{operator}")
            nodes.insert(place + number, helper.make_node(operator, [data, operand], [result], name=name))
            data = result


@dataclass(frozen=True)
class _Scaling:
    """Factors of the class scores in an output that holds an objectness too, of which users take the product.

    Attributes:
        layout: Which output it is; the scores stand right behind the objectness.
        factors: One per class.
        numbers: One per column of the output, 1 for box and objectness, in a shape that is broadcast over it.
    """

    layout: BoxLayout
    factors: npt.NDArray[np.float64]
    numbers: npt.NDArray[Any]

    @classmethod
    def of(cls, file: OnnxFile, located: Located, class_factors: npt.ArrayLike) -> _Scaling:
        """Find the output in the run of the search."""
        layout = find_objectness(file.graph, located.logits, located.values)
        if layout is None or layout.objectness is None or layout.raw_objectness:
            raise InputError(
                f"`{file.path}` has an objectness, but no output that holds it with boxes and class scores (after "
                "sigmoids). Export the model with one."
            )
        output, factors = located.values[layout.outputs[0]], np.asarray(class_factors, np.float64)
        numbers = np.append(np.ones(layout.objectness + 1), factors).astype(output.dtype)
        return cls(layout, factors, numbers.reshape(-1, *[1] * (max(output.ndim - 2, 1) if layout.transposed else 0)))

    @property
    def output(self) -> str:
        """The name of the output."""
        return self.layout.outputs[0]

    def check(self, logits: OnnxLogits, old: Arrays, new: Arrays, tolerance: float) -> None:
        """Refuse anything but sigmoids of the new logits times the factors, behind the old boxes and objectness."""
        boxes, rows = self.layout.rows(old), self.layout.rows(new)
        first = rows.shape[-1] - len(self.factors)
        scores = sigmoid(class_rows(logits, new, self.layout.order)) * self.factors
        same_boxes = np.array_equal(rows[..., :first], boxes[..., :first], equal_nan=True)
        if not same_boxes or not _is_same(rows[..., first:], scores, tolerance):
            raise InputError(f"The class scores of `{self.output}` are not scaled by their factors.")


def _pairs(
    logits: OnnxLogits, whole: ClassAffine, results: Sequence[tuple[Arrays, Arrays]]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """The map of the old logits, and the new ones, their class axis last."""
    for old, new in results:
        for tensor in logits.tensors:
            before, after = (np.moveaxis(values[tensor], logits.axis, -1) for values in (old, new))
            yield whole(before.astype(np.float64)), after


def _check_kept(kept: Sequence[str], logits: OnnxLogits, old: Arrays, new: Arrays, tolerance: float) -> None:
    for name in kept:
        if not _is_same(new[name], old[name], tolerance):
            raise InputError(
                f"The output `{name}` would change too: it is computed from `{logits.tensors[0]}`; name the class "
                "logits as `tensor`."
            )


def _is_same(found: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or found.shape != expected.shape:
        return bool(np.array_equal(found, expected))
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=1.0))
    return np.allclose(found, expected, rtol=0, atol=tolerance * largest, equal_nan=True)


def _folds_of(model: Any) -> list[dict[str, Any]]:
    """The folds that a model has behind it, as its metadata records."""
    for entry in model.metadata_props:
        if entry.key == METADATA_KEY:
            with contextlib.suppress(ValueError):
                folds = parse_json(entry.value)
                if isinstance(folds, list) and all(isinstance(fold, dict) for fold in folds):
                    return folds
            return [{"method": "unreadable"}]
    return []


def _mark(model: Any, affine: ClassAffine, tensors: Sequence[str]) -> None:
    """Add a fold to the metadata of `model`."""
    record = {
        "method": affine.method,
        "settings": dict(affine.settings),
        "num_columns": affine.num_columns,
        "background": affine.background,
        "tensors": list(tensors),
    }
    folds = json.dumps([*_folds_of(model), record], sort_keys=True)
    for entry in [entry for entry in model.metadata_props if entry.key == METADATA_KEY]:
        model.metadata_props.remove(entry)
    model.metadata_props.add(key=METADATA_KEY, value=folds)


def refuse_folded_file(file: OnnxFile) -> None:
    """Refuse a model whose metadata records a fold."""
    folds = _folds_of(file.model)
    if folds:
        raise InputError(
            f"`{file.path}` has a map folded into it already ({folds[-1].get('method') or 'a map'}); fold the model "
            "that it was made from (in Python allow_refold=True puts another on top)."
        )
