"""The page on the forms that were tried is the one that its script writes from the committed data."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from logn.calibrators.method_spec import fit_method
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "forms_on_dev.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="the benchmarks are not beside the tests")


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("forms_on_dev", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_of_the_data(script):
    measured = json.loads(script.DATA.read_text())
    assert script.PAGE.read_text() == script.page(measured)


def test_its_balanced_form_is_that_of_the_library_and_all_keep_the_mass(script):
    moments = ClassMoments(13, sample_rows=400, metadata=StatisticsMetadata(background=0, activation="softmax"))
    rows = np.random.default_rng(0).standard_normal((400, 13)) * np.r_[1, np.linspace(2, 1, 12)]
    moments.update(rows + np.r_[4, -np.arange(12) / 3])
    forms = script.Forms(moments, np.linspace(0.5, 1.5, 12)).all()
    library = fit_method("logn:balanced", moments=moments)
    np.testing.assert_allclose(forms["balanced"].scale, library.scale, rtol=1e-5)
    np.testing.assert_allclose(forms["balanced"].shift, library.shift, atol=1e-4)
    for name, affine in forms.items():
        kept = [
            script.softmax(values)[:, 1:].sum() for values in (moments.sample, affine(moments.sample.astype(float)))
        ]
        assert kept[1] == pytest.approx(kept[0], rel=1e-3), name
