"""fold_onnx: write a map into an ONNX file, prove it, and only then put the new file in its place."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.files import check_new, put_files, staging_folder
from logn.base.strict_json import parse_json
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.hints import Hints
from logn.models.onnx.candidates import BOX, score_outputs
from logn.models.onnx.description import checked_names
from logn.models.onnx.file import (
    CHOICE,
    LAYER,
    Arrays,
    OnnxFile,
    OnnxGraph,
    OnnxSession,
    exposing,
    onnx_digest,
    reached_from,
    read_onnx,
)
from logn.models.onnx.layers import add_initializer, insert_after, map_layers
from logn.models.onnx.locate import OnnxLogits, Wanted, locate_onnx_logits
from logn.models.onnx.scaling import ScoreScaling
from logn.models.proof import HALF_TOLERANCE, TOLERANCE, Proof, largest_difference
from logn.statistics.head import Head

METADATA_KEY = "logn.folded"


@dataclass(frozen=True)
class FoldReport:
    """What `fold_onnx` did.

    Attributes:
        output_path: The file that was written.
        tensors: The tensors that hold the logits.
        axis: Their class axis, counted from the end.
        activation: What the model applies to them: "softmax", "sigmoid", or None.
        way: "weights" when the map is in the weights, "nodes" when it is two nodes (Mul, Add) behind the layer.
        layers: The weights that changed; empty for "nodes".
        reason: Why it is "nodes"; None for "weights".
        largest_difference: Largest distance between new logits and scale * old logits + shift, in onnxruntime.
        largest_logit: Largest magnitude of the latter.
        rows: How many rows of logits were compared.
    """

    output_path: Path
    tensors: tuple[str, ...]
    axis: int
    activation: str | None
    way: str
    layers: tuple[str, ...]
    reason: str | None
    largest_difference: float
    largest_logit: float
    rows: int


def fold_onnx(
    model_path: str | os.PathLike[str] | OnnxFile,
    affine: ClassAffine,
    output_path: str | os.PathLike[str],
    *,
    tensor: str | Sequence[str] | None = None,
    activation: str | None = None,
    axis: int | None = None,
    inputs: Mapping[str, npt.NDArray[Any]] | Sequence[Mapping[str, npt.NDArray[Any]]] | None = None,
    insert: bool = False,
    class_factors: npt.ArrayLike | None = None,
    class_names: Sequence[str] | str | os.PathLike[str] | None = None,
    allow_refold: bool = False,
    allow_mismatch: bool = False,
    overwrite: bool = False,
) -> FoldReport:
    '''Write `affine` into the class layer of an ONNX model; inputs, outputs and speed stay.

    The class layer is found by walking back from the class activation (or from an output that has none) to the Gemm,
    MatMul or Conv behind it, and which channel is which class is measured by a run with numbered channels. Where the
    weights cannot take the map (a cosine head that normalises them as it runs), a Mul and an Add are put behind the
    logits. Weights in external data stay there. The file gets its name only after both models ran in onnxruntime, the
    new logits were the map of the old ones, and no output but the class scores changed.

    Args:
        model_path: The ONNX file, or one that was read; it does not change.
        affine: The map, one column per class and for the background.
        output_path: The file to write; weights in external data go to a file of that name plus `.data`.
        tensor: Name of the tensor that holds the logits, or of the output behind their activation, or several such; by
            default where the statistics of the map were recorded, else the search finds it.
        activation: "softmax" or "sigmoid", to search only for that.
        axis: The class axis of the logits, needed only where it cannot be inferred.
        inputs: What to run the models on, by the name of the input, or several such; by default random values.
        insert: Put in nodes even where the weights could take the map.
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
        >>> report.way, report.layers, report.largest_difference < 1e-6
        ('weights', ('w',), True)
    '''
    if not isinstance(affine, ClassAffine):
        raise InputError(f"Expected `affine` to be a ClassAffine to fold, but got {type(affine).__name__}.")
    file, target = read_onnx(model_path), Path(output_path)
    _check_paths(file, target, overwrite=overwrite)
    if not allow_refold:
        refuse_folded_file(file.model, file.path)
        if affine.head is not None and affine.head.source_kind == "onnx":
            head = Head(background=affine.background, source=onnx_digest(file))
            affine.check_fits(head, f"`{file.path}`", allow_mismatch=allow_mismatch)
    names = (tensor,) if isinstance(tensor, str) else tuple(tensor or ())
    recorded = _Recorded.of(affine, file.graph)
    wanted = Wanted(
        affine.num_columns,
        names or recorded.tensors,
        activation,
        axis,
        affine.background is not None,
        parameters=() if names else recorded.parameters,
    )
    runs = [dict(run) for run in ([inputs] if isinstance(inputs, Mapping) else inputs or [])]
    logits, used = locate_onnx_logits(file, wanted, runs[0] if runs else None)
    place = affine.background
    known = checked_names(
        file, Hints(class_names=class_names).names(affine.num_columns, place), affine.num_columns, place
    )
    head = Head.of_classes(known, affine.num_columns, place, activation=logits.activation)
    affine.check_fits(head, f"`{file.path}`", allow_mismatch=allow_mismatch)
    if not allow_mismatch:
        recorded.check(logits, file.path, named=bool(names))
    whole = _over_all_columns(affine, logits)
    way = "nodes" if insert or logits.layout is None else "weights"
    folded = _insert_map(file.model, logits, whole)[0] if way == "nodes" else _fold_weights(file.model, logits, whole)
    scaling = None if class_factors is None else ScoreScaling.of(file, logits, used, class_factors)
    if scaling is not None:
        scaling.insert(folded)
    write_fold(folded, affine, logits.tensors, way)
    trial = _Trial(file, logits, whole, [used, *runs[1:]], way, scaling)
    proof = _write(file, folded, target, trial, overwrite=overwrite)
    return FoldReport(
        output_path=target,
        tensors=logits.tensors,
        axis=logits.axis,
        activation=logits.activation,
        way=way,
        layers=tuple(dict.fromkeys(layer.weight for layer in logits.layers)) if way == "weights" else (),
        reason=None if way == "weights" else logits.reason or "nodes were asked for",
        largest_difference=proof.largest_difference,
        largest_logit=proof.largest_logit,
        rows=proof.rows,
    )


@dataclass(frozen=True)
class _Recorded:
    """Where the statistics of a map were recorded, as far as it says so.

    Attributes:
        layer: As the map names it: tensors of an ONNX file, or modules of a torch model; None where it names none.
        tensors: The tensors, where this file has them.
        parameters: The weights and biases of the modules, where this file has any of them.
        in_file: Whether it was an ONNX file.
    """

    layer: str | None = None
    tensors: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    in_file: bool = False

    @classmethod
    def of(cls, affine: ClassAffine, graph: OnnxGraph) -> _Recorded:
        head = affine.head
        if head is None or head.layer is None:
            return cls()
        names = tuple(head.layer.split(", "))
        if head.source_kind == "onnx":
            return cls(head.layer, names if all(name in graph.producers for name in names) else (), in_file=True)
        parameters = tuple(f"{name}.{part}" for name in names for part in ("weight", "bias"))
        return cls(head.layer, (), tuple(name for name in parameters if name in graph.initializers))

    def check(self, logits: OnnxLogits, path: Path, *, named: bool) -> None:
        """Refuse logits of another layer; those of a torch layer also where the graph scales them."""
        if self.layer is None or (named and not self.in_file):
            return
        found = ", ".join(logits.tensors)
        if self.in_file and {*logits.tensors} != {*self.layer.split(", ")}:
            raise InputError(
                f"`affine` was recorded at `{self.layer}`, not at the logits `{found}` of `{path}`; collect the "
                "statistics there (in Python allow_mismatch=True folds it all the same)."
            )
        weights = {name for layer in logits.layers for name in (layer.weight, layer.bias)}
        if self.parameters and weights.isdisjoint(self.parameters):
            raise InputError(
                f"`affine` was recorded at `{self.layer}`, not at the logits `{found}` of `{path}`; name the output "
                "of that layer as `tensor`."
            )
        for layer in () if self.in_file else logits.layers:
            if (layer.factor, layer.offset) != (1.0, 0.0):
                raise InputError(
                    f"`affine` was recorded at `{self.layer}`, but the logits `{found}` of `{path}` are "
                    f"{layer.factor:g} * `{layer.output}` + {layer.offset:g}; name the one that is meant as `tensor`."
                )


def _check_paths(file: OnnxFile, target: Path, *, overwrite: bool) -> None:
    """Refuse an output that is the model itself, a folder, without a folder, or there already."""
    if target.exists() and file.path.samefile(target):
        raise InputError(f"`output_path` is the model itself, `{file.path}`; choose another file.")
    if target.is_dir():
        raise InputError(f"`{target}` is a folder; choose the name of a file.")
    if not target.parent.is_dir():
        raise InputError(f"There is no folder `{target.parent}` for `{target}`; make it first.")
    data = _data_of(target)
    if data.resolve() in {(file.path.parent / name).resolve() for name in file.data_files}:
        raise InputError(f"`{target}` would share its data file `{data.name}` with the model; choose another name.")
    check_new(target, *([data] if file.data_files else []), overwrite=overwrite)


def _data_of(target: Path) -> Path:
    """Where weights in external data go."""
    return target.with_name(f"{target.name}.data")


def _fold_weights(model: Any, logits: OnnxLogits, affine: ClassAffine) -> Any:
    layout = logits.layout
    assert layout is not None  # noqa: S101 - the caller looked
    maps = {
        # Channels that are no logits (a layer may give boxes too) stay as they are.
        node: (np.where(classes < 0, 1.0, affine.scale[classes]), np.where(classes < 0, 0.0, affine.shift[classes]))
        for node, classes in layout.classes.items()
    }
    return map_layers(model, logits.layers, maps)


def _over_all_columns(affine: ClassAffine, logits: OnnxLogits) -> ClassAffine:
    """The map over the whole class axis; box and objectness before the classes stay as they are, and that is proven."""
    if logits.width == affine.num_columns:
        return affine
    scale, shift = np.ones(logits.width), np.zeros(logits.width)
    classes = slice(logits.start, logits.start + logits.num_columns)
    scale[classes], shift[classes] = affine.scale, affine.shift
    return ClassAffine(scale, shift)


def _insert_map(
    model: Any, logits: OnnxLogits, affine: ClassAffine, *, as_inputs: bool = False
) -> tuple[Any, tuple[str, str]]:
    """Put Mul and Add behind the logits, so that all that reads them sees the map; also the names of its numbers.

    Args:
        model: An `onnx.ModelProto`; it does not change.
        logits: Where the logits are.
        affine: The map over the whole class axis.
        as_inputs: Whether a run may put in other scales and shifts, by these names.
    """
    from onnx import helper

    copy = type(model)()
    copy.CopyFrom(model)
    graph = OnnxGraph(copy)
    with np.errstate(over="ignore"):  # what half precision cannot hold, the proof refuses
        values = [_beside(array, logits).astype(logits.dtype) for array in (affine.scale, affine.shift)]
    scale, shift = add_initializer(graph, "logn_scale", values[0]), add_initializer(graph, "logn_shift", values[1])
    if as_inputs:
        kind = helper.np_dtype_to_tensor_dtype(logits.dtype)
        copy.graph.input.extend(helper.make_tensor_value_info(name, kind, values[0].shape) for name in (scale, shift))
    for tensor in logits.tensors:
        insert_after(graph, tensor, "Add", shift)
        # The node before the Add makes the logits now, under a new name.
        insert_after(graph, graph.producers[tensor].input[0], "Mul", scale)
    return copy, (scale, shift)


def _beside(per_column: npt.NDArray[Any], logits: OnnxLogits) -> npt.NDArray[Any]:
    """One number per column in the shape that is broadcast over the logits."""
    return per_column.reshape(len(per_column), *[1] * (-logits.axis - 1))


def _write(file: OnnxFile, folded: Any, target: Path, trial: _Trial, *, overwrite: bool) -> Proof:
    """Write into a folder of its own, prove it there, then rename; a failure leaves nothing behind."""
    import onnx

    data_name = _data_of(target).name
    with staging_folder(target) as folder:
        written = folder / target.name
        for tensor in folded.graph.initializer:
            if tensor.name in file.external:
                onnx.external_data_helper.set_external_data(tensor, data_name)
        onnx.save_model(folded, str(written))
        proof = trial.prove(written).checked(str(file.path))
        data, targets = written.parent / data_name, {written: target}
        if data.exists():
            data.chmod(written.stat().st_mode)  # onnx makes it readable for its owner only
            targets = {data: target.parent / data_name, written: target}
        put_files(targets, overwrite=overwrite)
    return proof


@dataclass(frozen=True)
class _Trial:
    """How a folded file is proven: both models run in onnxruntime, and their logits and all their outputs are compared.

    Attributes:
        file: The model before the fold.
        logits: Where its logits are.
        affine: The map over the whole class axis.
        inputs: What to run both models on, run by run.
        way: Whether "weights" changed, or "nodes" were put in.
        scaling: Of the class scores at an output.
    """

    file: OnnxFile
    logits: OnnxLogits
    affine: ClassAffine
    inputs: Sequence[Arrays]
    way: str
    scaling: ScoreScaling | None = None

    def prove(self, written: Path) -> Proof:
        """Compare the file that was written with the model, and with the model with the map as nodes behind its logits.

        One session serves for both of these: its nodes take the identity, then the map.
        """
        logits, half = self.logits, self._is_half()
        mapped, (scale, shift) = _insert_map(self.file.model, logits, self.affine, as_inputs=True)
        before = OnnxSession(exposing(mapped, logits.tensors), "the model")
        after = OnnxSession(exposing(read_onnx(written).model, logits.tensors), "the folded model")
        self._check_interface(before, after)
        zeros = _beside(np.zeros(logits.width, logits.dtype), logits)
        identity = {scale: zeros + zeros.dtype.type(1), shift: zeros}
        layers = [layer.node for layer in logits.layers] if self.way == "weights" else []
        proofs = []
        for run in self.inputs:
            old, new = before.run({**run, **identity}), after.run(run)
            proofs.append(compare_logits(old, new, logits.tensors, logits.axis, self.affine, half=half))
            if proofs[-1].holds:
                tolerance = HALF_TOLERANCE if half else TOLERANCE
                expected = before.run(run)
                if self.scaling is not None:
                    self.scaling.check(expected, new, tolerance)
                check_outputs(self.file.graph, logits.tensors, layers, old, expected, new, tolerance)
        worst = max(proofs, key=lambda proof: proof.largest_difference / proof.tolerance)
        return replace(worst, rows=sum(proof.rows for proof in proofs))

    def _is_half(self) -> bool:
        """Whether the logits, or weights behind them, are in half precision."""
        graph = self.file.graph
        weights = [graph.constant(layer.weight) for layer in self.logits.layers if layer.reason is None]
        kinds = (self.logits.dtype, *(array.dtype for array in weights if array is not None))
        return any(kind.itemsize < 4 for kind in kinds)

    def _check_interface(self, before: OnnxSession, after: OnnxSession) -> None:
        """Refuse a model whose inputs or outputs changed; what an open length is called does not count."""
        for kind in ("inputs", "outputs"):
            old, new = (
                {
                    value.name: (value.type, *(length if isinstance(length, int) else None for length in value.shape))
                    for value in getattr(session, kind)
                    if kind == "inputs" or value.name in self.file.graph.outputs
                }
                for session in (before, after)
            )
            if list(old.items()) != list(new.items()):
                raise InputError(f"The {kind} would change from {old} to {new}; nothing was written.")


def compare_logits(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    tensors: Sequence[str],
    axis: int,
    affine: ClassAffine,
    *,
    half: bool = False,
) -> Proof:
    """Compare logits after the fold with the map of those before it, in float64.

    Example:
        >>> logits, affine = np.array([[1.0, 2.0]]), ClassAffine([2.0, 1.0], [0.0, 1.0])
        >>> compare_logits({"z": logits}, {"z": affine(logits)}, ["z"], -1, affine).holds
        True
    """
    difference, largest, rows = 0.0, 0.0, 0
    for tensor in tensors:
        old, new = before[tensor], after[tensor]
        if old.shape != new.shape:
            raise InputError(f"`{tensor}` would change its shape from {old.shape} to {new.shape}.")
        expected, found = affine(old.astype(np.float64), axis=axis), new.astype(np.float64)
        known = ~np.isnan(expected)  # where the model itself gives no number, there is nothing to compare
        difference = max(difference, largest_difference(found[known], expected[known]))
        largest = max(largest, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        rows += int(known.all(axis=axis).sum())
    return Proof.of(difference, largest, rows, half=half)


def check_outputs(
    graph: OnnxGraph,
    tensors: Iterable[str],
    layers: Iterable[str],
    before: Mapping[str, Any],
    expected: Mapping[str, Any],
    after: Mapping[str, Any],
    tolerance: float,
) -> None:
    """Refuse a fold that changes any output other than the class scores, or those in another way than the map does.

    What the scores select (boxes behind a suppression) is in another order afterwards, and cannot be compared.

    Args:
        graph: The graph before the fold.
        tensors: The tensors that hold the logits.
        layers: The layers whose weights changed, by their node; empty where nodes were put in.
        before: The outputs before the fold.
        expected: Those of the file with the map as two nodes behind the logits.
        after: Those after the fold.
        tolerance: Largest difference, relative to the largest value of an output (or to 1).
    """
    tensors = list(tensors)
    reached = reached_from(graph, tensors)
    # The logits before a temperature are class scores too, on another scale; the proof at the logits holds for them.
    scaled = set(reached_from(graph, layers)) & graph.ancestors(tensors)
    scores = score_outputs(graph, tensors)
    for name in graph.outputs:
        ways = reached.get(name, set())
        if LAYER in ways:
            raise InputError(
                f"The output `{name}` would change too: another layer computes it from the logits `{tensors[0]}`; "
                "export the model with separate heads."
            )
        if CHOICE in ways or name in scaled:
            continue
        if not _is_same(after[name], expected[name] if ways else before[name], tolerance):
            raise InputError(
                f"The output `{name}` would change too: it reads the class layer (in Python insert=True puts the "
                "map behind the logits alone)."
            )
        if ways and name not in scores and BOX.search(name) and not _is_same(after[name], before[name], tolerance):
            raise InputError(
                f"The output `{name}` would change too: it is computed from `{tensors[0]}`; name the class logits as "
                "`tensor`."
            )


def _is_same(found: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    if found.shape != expected.shape:
        return False
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    known = ~np.isnan(expected)
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=1.0))
    with np.errstate(invalid="ignore"):
        difference = np.where(found == expected, 0.0, np.abs(found - expected))[known]
    return bool((difference <= tolerance * largest).all())


def folds_of(model: Any) -> list[dict[str, Any]]:
    """The folds that a model has behind it, as its metadata records."""
    for entry in model.metadata_props:
        if entry.key == METADATA_KEY:
            with contextlib.suppress(ValueError):
                folds = parse_json(entry.value)
                if isinstance(folds, list) and all(isinstance(fold, dict) for fold in folds):
                    return folds
            return [{"method": "unreadable"}]
    return []


def write_fold(model: Any, affine: ClassAffine, tensors: Sequence[str], way: str) -> None:
    """Add a fold to the metadata of `model`."""
    record = {
        "method": affine.method,
        "settings": dict(affine.settings),
        "num_columns": affine.num_columns,
        "background": affine.background,
        "tensors": list(tensors),
        "way": way,
    }
    folds = [*folds_of(model), record]
    for entry in [entry for entry in model.metadata_props if entry.key == METADATA_KEY]:
        model.metadata_props.remove(entry)
    model.metadata_props.add(key=METADATA_KEY, value=json.dumps(folds, sort_keys=True))


def refuse_folded_file(model: Any, path: Path) -> None:
    """Refuse a model whose metadata records a fold."""
    folds = folds_of(model)
    if folds:
        method = folds[-1].get("method") or "a map"
        raise InputError(
            f"`{path}` has a map folded into it already ({method}); fold the model that it was made from (in "
            "Python allow_refold=True puts another on top)."
        )
