"""What tests of several folders need."""

import sys
from pathlib import Path

import pytest

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
