"""Writing ONNX files by hand, exporting models once for all tests, and running the files."""

import contextlib
import io
import os
import warnings

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.onnx.fold import fold_onnx

THREE = ClassAffine([0.5, 2.0, 1.5], [1.0, -2.0, 0.25], method="example")


def write_graph(path, body, outputs="float[N, 3] y", *, inputs="float[N, 4] x", opset=17, seed=7, **weights):
    """Write a model from the text of its nodes, and of its weights: arrays, or shapes to draw; gives the path."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    model, draw = onnx.parser.parse_model(text), np.random.default_rng(seed).normal
    for name, given in weights.items():
        array = draw(size=given).astype(np.float32) if isinstance(given, tuple) else np.asarray(given)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    onnx.save_model(model, str(path))
    return path


def run_graph(path, feed, tensor=None):
    """All outputs of a model by name, or one tensor inside of it."""
    model = onnx.load(str(path))
    if tensor is not None:
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name=tensor))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = dict(zip([value.name for value in session.get_outputs()], session.run(None, feed), strict=True))
    return results if tensor is None else results[tensor]


@pytest.fixture
def refused(tmp_path):
    """A fold into an ONNX file that is refused with a message, and writes nothing."""

    def check(source, message, affine=THREE, **options):
        present = sorted(tmp_path.iterdir())
        with pytest.raises(InputError, match=message):
            fold_onnx(source, affine, tmp_path / "refused.onnx", **options)
        assert sorted(tmp_path.iterdir()) == present

    return check


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Export a module once in a session, also when several processes run the tests; gives the path."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if os.environ.get("PYTEST_XDIST_WORKER") else root) / "onnx_exports"
    folder.mkdir(exist_ok=True)

    def export(name, model, arguments, *, dynamo=False):
        if dynamo:
            pytest.importorskip("onnxscript")  # what the newer exporter writes with
        path = folder / name / "model.onnx"
        if not path.exists():
            scratch = tmp_path_factory.mktemp(name)
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
                warnings.simplefilter("ignore")
                options = {"dynamo": True} if dynamo else {"dynamo": False, "opset_version": 17}
                target = str(scratch / "model.onnx")
                torch.onnx.export(model, arguments, target, verbose=False, input_names=["images"], **options)
            with contextlib.suppress(OSError):  # another process was quicker
                os.rename(scratch, path.parent)
        return path

    return export


@pytest.fixture(scope="session")
def map_of():
    """A map of so many columns, different for each."""

    def make(classes, background=None):
        generator = np.random.default_rng(classes)
        return ClassAffine.over_foreground(
            generator.uniform(0.5, 2.0, classes - (background is not None)),
            generator.normal(0, 2, classes - (background is not None)),
            background,
            method="example",
        )

    return make


@pytest.fixture(scope="session")
def outputs_of():
    """Run a file and give its outputs."""

    def run(path, images):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return session.run(None, {session.get_inputs()[0].name: images.numpy()})

    return run


@pytest.fixture(scope="session")
def interface():
    """Names, types and shapes of the inputs and outputs of a file."""

    def describe(path):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return [(value.name, value.type, value.shape) for value in (*session.get_inputs(), *session.get_outputs())]

    return describe


@pytest.fixture(scope="session")
def settle():
    """Set batch norms to what they see: untrained, they let features and scores die out until all are equal."""

    def run_once(model, run):
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        with torch.no_grad():
            run(torch.rand(4, 3, 320, 320))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

    return run_once
