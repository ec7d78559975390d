"""`examples/many_machines.py`: as a script on a Ray of its own; its recipe for Spark on a stand-in for a DataFrame."""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import logn

pytest.importorskip("ray", reason="needs Ray: make test-ray")
SCRIPT = Path(__file__).parents[3] / "examples" / "many_machines.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="the examples are not beside the tests")


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("many_machines", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def contents(pictures):
    return [path.read_bytes() for path in sorted(pictures.iterdir())]


@pytest.fixture(scope="module")
def expected(recipe, contents):
    return logn.ClassMoments.from_bytes(recipe.statistics_of(contents))


def assert_same(found, expected):
    np.testing.assert_array_equal(found.count, expected.count)
    assert found.metadata == expected.metadata
    # float32 of a network, whose last digits depend on the batch.
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-3)


def test_the_script(pictures, expected, tmp_path):
    output = tmp_path / "statistics.safetensors"
    source = str(Path(logn.__file__).parents[1])  # also where it is not installed
    done = subprocess.run(
        [sys.executable, SCRIPT, pictures, output],
        env=os.environ | {"PYTHONPATH": source, "RAY_worker_niceness": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert_same(logn.ClassMoments.load(output), expected)


class DataFrame:
    """What the recipe uses of Spark's, in one process: partitions of batches of Arrow."""

    def __init__(self, partitions):
        self.partitions = partitions

    def select(self, column):
        return DataFrame([[batch.select([column]) for batch in part] for part in self.partitions])

    def mapInArrow(self, function, schema):  # noqa: N802 - as Spark calls it
        assert schema == "moments binary"
        rows = [row for part in self.partitions for batch in function(iter(part)) for row in batch.to_pylist()]
        return SimpleNamespace(rdd=Rows(SimpleNamespace(**row) for row in rows))


class Rows(list):
    def map(self, function):
        return Rows(map(function, self))

    def treeReduce(self, function):  # noqa: N802 - as Spark calls it
        return functools.reduce(function, self)


def test_the_recipe_for_spark(recipe, contents, expected):
    import pyarrow

    def batch(images):
        return pyarrow.RecordBatch.from_pydict({"path": [""] * len(images), "content": images})

    partitions = [[batch(contents[:4]), batch(contents[4:9])], [], [batch(contents[9:])]]
    partitions.append([partitions[2][0].slice(0, 0)])  # an empty batch
    assert_same(recipe.over_spark(DataFrame(partitions)), expected)
