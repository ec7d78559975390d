"""Processes beside the first: deaf to the keyboard from their first instruction, and gone with the block."""

import importlib
import os
import signal
import subprocess
import sys
import time

import pytest
from logn_research.processes import FreshContext, fresh_processes, keyboard_to_this_process

# A module of its own, since fresh processes must find it by its name.
WORK = """
import signal, sys, time
from pathlib import Path

def is_deaf(_=None):
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())

def wait_for(path):
    while not path.exists():
        time.sleep(0.01)

def work_forever(path):
    path.touch()
    while True:
        time.sleep(1)

def finish_later(folder):
    (folder / "begun").touch()
    wait_for(folder / "go")
    (folder / "done").touch()

if __name__ == "__main__":
    work_forever(Path(sys.argv[1]))
"""


class StopError(Exception):
    """Ends a block."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """What processes do here."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "logn_test_work.py").write_text(WORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("logn_test_work")


@pytest.fixture
def heard():
    """The interruptions that this process heard, which end nothing."""
    numbers = []
    before = signal.signal(signal.SIGINT, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGINT, before)


def wait_until(something):
    """Another thread may be the one that gets the signal, and it may have to wait for a processor."""
    while not something:
        time.sleep(0.01)


def test_an_interruption_of_the_block_is_heard_at_its_end(heard):
    with keyboard_to_this_process():
        os.kill(os.getpid(), signal.SIGINT)
        assert heard == []
    wait_until(heard)
    assert heard == [signal.SIGINT]


def test_blocks_inside_blocks_change_nothing(heard):
    with keyboard_to_this_process():
        with keyboard_to_this_process():
            pass
        os.kill(os.getpid(), signal.SIGINT)
        assert heard == []
    wait_until(heard)
    assert heard == [signal.SIGINT]


def test_the_processes_of_a_pool_are_deaf_and_this_one_is_not(work):
    with fresh_processes(2) as pool:
        assert all(pool.map(work.is_deaf, range(4)))
    assert not work.is_deaf()


def test_an_error_ends_work_that_would_take_forever(work, tmp_path):
    def stop_in_the_middle():
        with fresh_processes(2, finish=False) as pool:
            for name in ("first", "second"):
                pool.submit(work.work_forever, tmp_path / name)
            work.wait_for(tmp_path / "first")
            work.wait_for(tmp_path / "second")
            raise StopError

    with pytest.raises(StopError):
        stop_in_the_middle()


def test_an_error_lets_work_that_has_begun_come_to_its_end(work, tmp_path):
    def stop_in_the_middle():
        with fresh_processes(1) as pool:
            pool.submit(work.finish_later, tmp_path)
            work.wait_for(tmp_path / "begun")
            (tmp_path / "go").touch()
            raise StopError

    with pytest.raises(StopError):
        stop_in_the_middle()
    assert (tmp_path / "done").exists()


def test_the_end_of_a_context_ends_its_processes_alone(work, tmp_path):
    ours, other = FreshContext(), FreshContext()
    for context, name in ((ours, "ours"), (other, "other")):
        context.Process(target=work.work_forever, args=(tmp_path / name,)).start()
        work.wait_for(tmp_path / name)
    ours.end()
    assert not ours.children[0].is_alive()
    assert other.children[0].is_alive()
    other.end()


def test_a_pool_notes_its_processes_before_an_interruption_is_heard():
    """Else nobody would end the one that had just been started, and this process would wait for it forever."""
    code = (
        "import os, signal, sys\n"
        "from logn_research.processes import FreshProcess, fresh_processes\n"
        "plain_start = FreshProcess.start\n"
        "def start(process):\n"
        "    plain_start(process)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "FreshProcess.start = start\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    with fresh_processes(2) as pool:\n"
        "        pool.submit(print, 'worked', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "interrupted"
