"""Processes that work together: what one of them says reaches the first, and none is left when that one stops."""

import importlib
import multiprocessing
from functools import partial

import pytest

pytest.importorskip("torch")

from logn_research.training.trainer import run_distributed

from logn.errors import InputError

# A module of its own, since fresh processes must find it by its name.
WORK = """
import time
import torch
from logn.errors import InputError

def refuse(context):
    if not context.is_leader:
        raise InputError("The second process has a reason.")
    return context.mean({"never": torch.zeros(())})

def wait_forever(folder, context):
    if context.is_leader:
        while not (folder / "there").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt
    (folder / "there").touch()
    while True:
        time.sleep(1)
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """What the processes do here."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "logn_test_distributed_work.py").write_text(WORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("logn_test_distributed_work")


def test_the_reason_of_another_process_is_told(work):
    with pytest.raises(InputError, match="The second process has a reason"):
        run_distributed(work.refuse, processes=2, device="cpu")


def test_an_interruption_of_the_first_process_ends_the_others(work, tmp_path):
    before = set(multiprocessing.active_children())
    with pytest.raises(KeyboardInterrupt):
        run_distributed(partial(work.wait_forever, tmp_path), processes=2, device="cpu")
    assert set(multiprocessing.active_children()) <= before
