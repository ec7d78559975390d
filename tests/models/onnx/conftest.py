"""Exporting models once for all tests, and running the files."""

import contextlib
import io
import os
import warnings

import onnxruntime
import pytest
import torch
from torch import nn


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
