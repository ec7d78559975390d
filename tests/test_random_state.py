"""Whichever tests ran before in this process, and however much they drew: fixtures and tests draw the same numbers."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

DRAWN = []


def draw():
    return random.random(), np.random.random(), torch.rand(()).item()  # noqa: S311, NPY002 - the shared ones are meant


@pytest.fixture(params=["first", "second"])
def numbers():
    return draw()


def test_fixtures_begin_alike(numbers):
    draw()
    DRAWN.append(numbers)
    assert numbers == DRAWN[0]


@pytest.fixture
def other_numbers():
    return draw()


def test_no_two_begin_alike(numbers, other_numbers):
    drawn = [*numbers, *other_numbers, *draw()]
    assert len(set(drawn)) == len(drawn)
