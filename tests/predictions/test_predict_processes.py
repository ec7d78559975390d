"""Predicting in several real processes, as torchrun starts them: uneven shares, empty ones, and one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from logn.predictions.store import Predictions

# The detector prepares images itself, so these processes need no torch, whose import would take longest.
WORKER = """
import os, signal, sys

import numpy as np

import logn

folder, count, victim = sys.argv[1], int(sys.argv[2]), sys.argv[3]


class Data:
    image_ids, class_names, category_ids = np.arange(count) * 2 + 1, ("ant", "bee"), np.array([4, 8])
    images_fingerprint = None

    def read_image(self, index):
        return np.full((4, 6, 3), index, np.uint8)


class Detector:
    background, activation, num_classes = -1, "softmax", 2
    calls = 0

    def prepare(self, image):
        return image

    def propose(self, images):
        self.calls += 1
        if os.environ["RANK"] == victim and self.calls == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        value = int(images[0].max())
        rows = np.arange(3 * (1 + value % 3), dtype=np.float32).reshape(-1, 3) + value
        return [logn.Proposals(np.zeros((len(rows), 4)), rows, height=4, width=6)]


print(logn.predict(Detector(), Data(), folder, batch=1))
"""


def run(folder, count, ranks, victim="none"):
    """What each process has run; None of one that was killed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranked = [os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks)]
    words = [sys.executable, "-c", WORKER, str(folder), str(count), victim]
    processes = [subprocess.Popen(words, env=environment | {"OMP_NUM_THREADS": "1"}, **pipes) for environment in ranked]
    said = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode in (0, -signal.SIGKILL), errors
    return [int(out) if process.returncode == 0 else None for process, (out, _) in zip(processes, said, strict=True)]


def assert_complete(folder, expected):
    found = Predictions(folder)
    assert found.is_complete
    assert found.missing(expected.image_ids).tolist() == []
    np.testing.assert_array_equal(found.image_ids, expected.image_ids)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.logits, theirs.logits)
        np.testing.assert_array_equal(ours.boxes, theirs.boxes)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """The stores of one process, by the number of images."""
    folder = tmp_path_factory.mktemp("alone")
    for count in (2, 7):
        assert run(folder / str(count), count, 1) == [count]
    return {count: Predictions(folder / str(count)) for count in (2, 7)}


@pytest.mark.parametrize(("count", "shares"), [(7, [3, 2, 2]), (2, [1, 1, 0])], ids=["uneven", "one with nothing"])
def test_processes_with_uneven_and_empty_shares(tmp_path, one_process, count, shares):
    assert run(tmp_path, count, 3) == shares
    assert_complete(tmp_path, one_process[count])


def test_a_killed_process_leaves_images_that_the_next_run_completes(tmp_path, one_process):
    ids = np.arange(7) * 2 + 1
    assert run(tmp_path, 7, 3, victim="1") == [3, None, 2]
    store = Predictions(tmp_path)
    assert not store.is_complete
    missing = store.missing(ids).tolist()
    assert missing == [3, 9]  # it had images 1 and 4 of 0 to 6, and died before its first shard was whole
    assert sum(run(tmp_path, 7, 2)) == len(missing)
    assert_complete(tmp_path, one_process[7])
