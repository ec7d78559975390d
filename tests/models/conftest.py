"""What tests of PyTorch models, ONNX files and frameworks share; read where there is no onnx, too."""

import numpy as np
import pytest

from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.statistics.head import Head


@pytest.fixture
def refused(tmp_path):
    """A fold into an ONNX file that is refused with a message, and writes nothing."""

    from tests.made.onnx_graphs import THREE

    from logn.models.onnx.fold import fold_onnx

    def check(source, message, affine=THREE, **options):
        present = sorted(tmp_path.iterdir())
        with pytest.raises(InputError, match=message):
            fold_onnx(source, affine, tmp_path / "refused.onnx", **options)
        assert sorted(tmp_path.iterdir()) == present

    return check


@pytest.fixture(scope="session")
def map_of():
    """A map of so many columns, different for each."""

    def make(classes, background=None):
        generator = np.random.default_rng(classes)
        return ClassAffine.over_foreground(
            generator.uniform(0.5, 2.0, classes - (background is not None)),
            generator.normal(0, 2, classes - (background is not None)),
            Head(background=background),
            method="example",
        )

    return make
