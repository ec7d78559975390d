"""Decoding in processes of their own: the same result, from any script, and a sentence where one is killed."""

import multiprocessing
import subprocess
import sys

import numpy as np
import pytest

from logn.calibrators.affine import ClassAffine
from logn.errors import InputError, LogNWarning
from logn.evaluate.decode import decoder
from logn.evaluate.decode.decoder import DecodeSettings, Purpose, decode_for, decode_many
from logn.evaluate.decode.detections import Detections
from logn.evaluate.store.store import PredictionStore, PredictionWriter, StoreHeader
from logn.logits.proposals import Proposals

METHODS = [None, ClassAffine([2.0, 1.0, 0.5, 1.0, 1.0], [0.0, 1.0, 0.0, -2.0, 0.0])]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("store")
    with PredictionWriter(folder, StoreHeader(num_columns=5, background=-1)) as writer:
        for image in range(200):
            corner = rng.uniform(0, 30, (20, 2))
            boxes = np.hstack([corner, corner + rng.uniform(1, 10, (20, 2))])
            writer.append(image, Proposals(boxes, rng.normal(0, 2, (20, 5)), height=40, width=40))
    return PredictionStore(folder)


def assert_same(found: Detections, wanted: Detections) -> None:
    for name in ("image_index", "labels", "scores", "boxes", "proposal"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


def test_two_processes_give_what_one_gives(store):
    part = store.part(np.arange(3, 190))  # a store of some images goes to the processes as it is
    looked_at = np.random.default_rng(1).random((len(part), 4)) < 0.5
    fixed = DecodeSettings(max_detections=None, max_per_class=50, score_threshold=1e-7)
    purposes = [Purpose(DecodeSettings()), Purpose(fixed, looked_at)]
    steps: list[int] = []
    found = decode_for(part, METHODS, purposes, processes=2, progress=steps.append)
    assert not multiprocessing.active_children()
    assert sum(steps) == len(part)
    for together, alone in zip(found, decode_for(part, METHODS, purposes, threads=1), strict=True):
        for one, other in zip(together, alone, strict=True):
            assert len(one.detections)
            assert_same(one.detections, other.detections)


def test_a_script_needs_no_main_guard(store):
    script = f"""
import logn
from logn.evaluate.decode.decoder import decode_many
from logn.evaluate.store.store import PredictionStore
print("once", len(decode_many(PredictionStore({str(store.path)!r}), [None], processes=2)[0]))
"""
    path = store.path / "script.py"
    path.write_text(script)
    expected = f"once {len(decode_many(store, [None], threads=1)[0])}\n"
    for command in ([sys.executable, str(path)], [sys.executable, "-c", script]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (expected, "")


def test_after_a_killed_process_the_rest_is_decoded(store):
    wanted = decode_many(store, METHODS, threads=1)

    def kill(_):
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.warns(LogNWarning, match="One of the 2 decoding processes was killed"):
        found = decode_many(store, METHODS, processes=2, progress=kill)
    for of_method, expected in zip(found, wanted, strict=True):
        assert_same(of_method, expected)


def test_no_process_outlives_one_that_was_killed(store):
    """What they print to is closed when the last of them has ended: until then the call below does not come back."""
    script = f"""
import os, signal
from logn.evaluate.decode.decoder import decode_many
from logn.evaluate.store.store import PredictionStore
store = PredictionStore({str(store.path)!r})
decode_many(store, [None], processes=2, progress=lambda number: os.kill(os.getpid(), signal.SIGKILL))
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False)
    assert done.returncode == -9


def test_maps_of_the_caller_and_systems_without_processes_stay_in_this_one(store, monkeypatch):
    started: list[int] = []

    def refuse(number, prepare):
        started.append(number)
        raise OSError("no semaphores here")

    monkeypatch.setattr(decoder, "FreshPool", refuse)
    for method, tried in ((lambda logits: logits + 1, []), (None, [2])):
        assert_same(decode_many(store, [method], processes=2)[0], decode_many(store, [method], threads=1)[0])
        assert started == tried


def test_processes_are_started_where_there_is_enough_to_do(store, monkeypatch):
    started: list[int] = []
    monkeypatch.setattr(decoder, "_process_pool", lambda stack, decoder, number: started.append(number))
    monkeypatch.setattr(decoder, "available_processors", lambda: 3)
    decode_many(store, METHODS)
    assert not started
    monkeypatch.setattr(decoder, "_ENOUGH_LOGITS", 1)
    decode_many(store, METHODS)
    assert started == [3]


def test_numbers_that_make_no_sense_are_refused(store):
    with pytest.raises(InputError, match=r"Expected `processes` to be at least 1, but got 0\."):
        decode_many(store, METHODS, processes=0)
    with pytest.raises(InputError, match=r"Expected `threads` or `processes`, but got both\."):
        decode_many(store, METHODS, processes=2, threads=2)
