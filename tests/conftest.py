"""What tests of several folders need."""

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.made.split import make_split

from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

# Some scripts have tests and import each other by name; last in line, so that none of them hides a package.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))


@pytest.fixture(scope="module")
def one_thread():
    """Let torch compute on one thread while the tests of a module run: small models are quicker, and to the bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def moments_of(rows, parts=1, *, sample_rows=0, mean_probability=True, nonfinite="error", head=None, **known):
    """Statistics of an array of rows in so many batches, or of a list of batches; other words are of their head."""
    batches = rows if isinstance(rows, list) else np.array_split(rows, parts)
    moments = ClassMoments(
        head or Head(batches[0].shape[-1], **known),
        sample_rows=sample_rows,
        mean_probability=mean_probability,
        nonfinite=nonfinite,
    )
    for batch in batches:
        moments.update(batch)
    return moments


@pytest.fixture(scope="session")
def softmax_split(tmp_path_factory):
    return make_split(tmp_path_factory.mktemp("softmax"))


@pytest.fixture(scope="session")
def sigmoid_split(tmp_path_factory):
    return make_split(tmp_path_factory.mktemp("sigmoid"), activation="sigmoid", seed=1)
