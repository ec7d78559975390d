"""What tests of several folders need."""

import pytest


@pytest.fixture(scope="module")
def one_thread():
    """Let torch compute on one thread while the tests of a module run: small models are quicker, and to the bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
