"""Memory and speed of `logn collect` on shards that are larger than memory should ever be.

    python benchmarks/collect_memory.py --gigabytes 4

Makes shards of random float32 logits (LVIS width) in a temporary folder, runs `logn collect` in a process of its own
and prints its peak resident memory above that of importing the same modules, and the reading speed. The shards stay
in the page cache of the system where it has room, so the speed is that of the computation, not of the disk.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from logn.logits.shards import write_logits

COLUMNS = 1204
SHARD_ROWS = 40_000
# Small, since Linux counts the memory of the process that starts another one as a peak of the other.
PART_ROWS = 1_000
IMPORTS = "import numpy, logn.cli.verbs.collect, logn.logits.shards, logn.statistics.shard_collection"


def make_shards(folder: Path, gigabytes: float) -> float:
    """Write random shards of about 193 MB each; returns their size in GB."""
    random = np.random.default_rng(0)
    count = max(1, round(gigabytes * 1e9 / (SHARD_ROWS * COLUMNS * 4)))
    for index in range(count):
        parts = (random.standard_normal((PART_ROWS, COLUMNS), np.float32) for _ in range(0, SHARD_ROWS, PART_ROWS))
        write_logits(folder / f"{index:05}.npy", (SHARD_ROWS, COLUMNS), "float32", parts)
    return count * SHARD_ROWS * COLUMNS * 4 / 1e9


def run_measured(command: list[str]) -> tuple[float, float, float]:
    """Run a command; returns its peak resident memory in MB, the seconds it took, and the seconds of CPU."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return usage.ru_maxrss * unit / 1e6, time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--folder", type=Path, help="where to make the shards; default: a temporary folder")
    options = parser.parse_args()
    imports, import_seconds, import_cpu = run_measured([sys.executable, "-c", IMPORTS])
    print(f"importing: {imports:.0f} MB, {import_seconds:.2f} s")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        size = make_shards(folder, options.gigabytes)
        for threads, kept in itertools.product(options.threads, ("--no-prior", "--prior")):
            output = folder / "stats.safetensors"
            command = [sys.executable, "-m", "logn.cli.main", "collect", f"{folder}/*.npy", "-o", str(output)]
            command += ["--activation", "softmax", kept, "--threads", str(threads)]
            peak, seconds, cpu = run_measured(command)
            print(
                f"{size:.1f} GB, {threads} threads, {kept}: "
                f"peak {peak:.0f} MB, {peak - imports:.0f} MB above the import; "
                f"{size / (seconds - import_seconds):.2f} GB/s, {size / (cpu - import_cpu):.2f} GB per second of CPU"
            )


if __name__ == "__main__":
    main()
