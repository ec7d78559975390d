"""The script that runs the tests over and over: it counts, it tells, and its busy loops end with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "stress_tests.py"


@pytest.fixture
def start(tmp_path):
    """Start the script on a file of tests of its own."""

    def call(tests, *options):
        (tmp_path / "test_few.py").write_text(tests)
        arguments = ["--", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path / "test_few.py")]
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), *options, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # none is needed, and they take their time
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return call


def test_each_run_has_a_line_and_one_that_failed_counts(start):
    tests = (
        "import pathlib\n"
        "def test_first_time_only():\n"
        "    seen = pathlib.Path(__file__).with_name('seen')\n"
        "    assert not seen.exists()\n"
        "    seen.touch()\n"
        "def test_always():\n"
        "    pass\n"
    )
    process = start(tests, "--runs", "2", "--loops", "1")
    printed, errors = process.communicate()
    first, second, last = printed.splitlines()
    assert first.startswith("run 1 of 2: 2 passed, 0 failed, 0 skipped, exit code 0, ")
    assert second.startswith("run 2 of 2: 1 passed, 1 failed, 0 skipped, exit code 1, ")
    assert last == "1 of 2 runs passed."
    assert "test_first_time_only" in errors
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs a list of processes")
def test_an_interruption_ends_the_busy_loops(start, tmp_path):
    tests = "import time\ndef test_long():\n    open('here', 'w').close()\n    while True: time.sleep(1)\n"
    process = start(tests, "--loops", "2")
    while not (tmp_path / "here").exists():
        assert process.poll() is None
        time.sleep(0.01)
    while len(loops := fresh_processes_of(process.pid)) < 2:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    for loop in loops:
        with pytest.raises(ProcessLookupError):
            os.kill(loop, 0)


def fresh_processes_of(parent):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, state = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(state.rpartition(")")[2].split()[1]) == parent and b"--multiprocessing-fork" in words:
            found.append(int(folder.name))
    return found
