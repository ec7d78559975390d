"""Run the tests several times over on a machine that is kept busy: what fails here now and then fails elsewhere too.

    python benchmarks/stress_tests.py --runs 5 --loops 2 -- -n auto --dist worksteal tests/cli

Processes that do nothing but turn in circles run beside the tests, and end with them, whatever happens. What stands
after `--` goes to pytest. One line per run; exit code 1 if any of them failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from logn.processes import FreshContext


def spin(starter: int) -> None:
    """Keep a core busy for as long as the process that wants it is there."""
    while os.getppid() == starter:
        pass


@contextlib.contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """So many processes that turn in circles, inside this block only."""
    context = FreshContext()
    try:
        for _ in range(number):
            context.Process(target=spin, args=(os.getpid(),)).start()
        yield
    finally:
        context.end()


def run_tests(arguments: Sequence[str]) -> tuple[int, Counter[str], str]:
    """Run pytest once; gives its exit code, how many tests had which outcome, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            printed, _ = process.communicate()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        return process.returncode, count_outcomes(report), printed


def count_outcomes(report: Path) -> Counter[str]:
    """How many tests passed, failed and were skipped; none if pytest came to no report."""
    if not report.exists():
        return Counter()
    tests = ET.parse(report).getroot().iter("testcase")  # noqa: S314
    return Counter(outcome(test) for test in tests)


def outcome(test: ET.Element) -> str:
    found = {child.tag for child in test}
    return "failed" if found & {"failure", "error"} else "skipped" if "skipped" in found else "passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="how often the tests are run")
    parser.add_argument("--loops", type=int, default=2, help="how many processes keep the machine busy")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after `--`")
    options = parser.parse_args()
    failed = 0
    with busy_loops(options.loops):
        for run in range(1, options.runs + 1):
            began = time.monotonic()
            code, outcomes, printed = run_tests(options.pytest)
            counts = ", ".join(f"{outcomes[name]} {name}" for name in ("passed", "failed", "skipped"))
            print(
                f"run {run} of {options.runs}: {counts}, exit code {code}, {time.monotonic() - began:.0f} s", flush=True
            )
            if code != 0:
                failed += 1
                print(printed, file=sys.stderr, flush=True)
    print(f"{options.runs - failed} of {options.runs} runs passed.")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
