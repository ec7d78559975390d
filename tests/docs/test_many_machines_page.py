"""The recipe for Spark: what runs inside of it gives what one process gives."""

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest

import logn

ROOT = Path(__file__).parents[2]
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not (ROOT / "examples").exists(), reason="the examples are not beside the tests")


@pytest.fixture
def recipe(monkeypatch):
    spec = importlib.util.spec_from_file_location("many_machines", ROOT / "examples" / "many_machines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make_model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 5, 6)).double().eval()

    monkeypatch.setattr(module, "make_model", make_model)
    monkeypatch.setattr(module, "preprocess", lambda image: torch.from_numpy(image.transpose(2, 0, 1) / 255))
    return module


def test_partitions_merge_to_what_one_process_gives(recipe):
    from PIL import Image

    contents = []
    for seed in range(7):
        file = io.BytesIO()
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)).save(file, "PNG")
        contents.append(file.getvalue())
    parts = [recipe.statistics_of(iter(contents[start : start + 3])) for start in (0, 3, 6)]
    found = logn.ClassMoments.from_bytes(recipe.merged(recipe.merged(parts[0], parts[1]), parts[2]))
    whole = logn.ClassMoments.from_bytes(recipe.statistics_of(contents))
    assert found.count.tolist() == [7.0] * 6
    assert found.metadata == whole.metadata
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(found.variance, whole.variance, rtol=1e-12)
    # The same rows in another order, as their keys come from their batches.
    np.testing.assert_array_equal(np.sort(found.sample, axis=0), np.sort(whole.sample, axis=0))


def test_its_preprocessing_gives_the_size_that_the_model_wants():
    spec = importlib.util.spec_from_file_location("many_machines", ROOT / "examples" / "many_machines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert tuple(module.preprocess(np.zeros((30, 40, 3), np.uint8)).shape) == (3, 224, 224)
