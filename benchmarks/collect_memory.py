"""Memory and speed of `logn collect` on shards that are larger than memory should ever be.

    python benchmarks/collect_memory.py --gigabytes 4

Makes shards of random logits (LVIS width) in a temporary folder, in float32 and in float16, runs `logn collect` in a
process of its own and prints its peak resident memory above that of importing the same modules, and its speed: on the
clock and per second of processor, less what a shard of 5,000 rows takes, each beside the speed of `cat` of the same
files, in turn with it. Of several repeats the fastest counts. The shards stay in the page cache of the system where it
has room, so the speed is that of the computation, not of the disk.
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

from logn.data.logit_files import write_logits

COLUMNS = 1204
SHARD_ROWS = 40_000
# Small, since Linux counts the memory of the process that starts another one as a peak of the other.
PART_ROWS = 1_000
# Enough to fill the sample: what starting, saving and telling take is no matter of speed.
SMALL_ROWS = 5_000
IMPORTS = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy, logn.cli.verbs.collect
from logn.data.logit_files import open_shards
from logn.statistics.from_files import collect_shards
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments
"""
# What `logn collect` does, with the number of threads and what is kept to choose.
COLLECT = f"""{IMPORTS}
output, threads, kept, *paths = sys.argv[1:]
empty = ClassMoments(
    Head(1204, activation="softmax"), sample_rows=4096, mean_probability=kept == "prior"
)
collect_shards(open_shards(paths), empty, threads=int(threads)).save(output)
"""


def make_shards(folder: Path, gigabytes: float, dtype: str) -> float:
    """Write random shards of 40,000 rows each, and a small one into a folder of its own; returns their size in GB."""
    random = np.random.default_rng(0)
    size = SHARD_ROWS * COLUMNS * np.dtype(dtype).itemsize
    count = max(1, round(gigabytes * 1e9 / size))
    for index in range(count):
        rows = (random.standard_normal((PART_ROWS, COLUMNS), np.float32) for _ in range(0, SHARD_ROWS, PART_ROWS))
        parts = (part.astype(dtype) for part in rows)
        write_logits(folder / f"{index:05}.npy", (SHARD_ROWS, COLUMNS), dtype, parts)
    (folder / "small").mkdir()
    small = random.standard_normal((SMALL_ROWS, COLUMNS), np.float32).astype(dtype)
    write_logits(folder / "small" / "0.npy", small.shape, dtype, [small])
    return count * size / 1e9


def run_measured(command: list[str]) -> tuple[float, float, float]:
    """Run a command; returns its peak resident memory in MB, the seconds it took, and the seconds of CPU."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return usage.ru_maxrss * unit / 1e6, time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def measure(folder: Path, size: float, threads: int, kept: str, repeats: int) -> None:
    """Run `cat` and `logn collect` on the shards of a folder in turn, and print the fastest of each."""
    memory, *_ = run_measured([sys.executable, "-c", IMPORTS])
    command = [sys.executable, "-c", COLLECT, str(folder / "stats.safetensors"), str(threads), kept]
    shards = sorted(map(str, folder.glob("*.npy")))
    started, read, collected = [], [], []
    for _ in range(repeats):
        started.append(run_measured([*command, str(folder / "small" / "0.npy")]))
        read.append(run_measured(["cat", *shards]))
        collected.append(run_measured([*command, *shards]))
    peak = max(run[0] for run in collected)
    line = f"{size:.1f} GB of {folder.name}, {threads} threads, {kept}: {peak - memory:.0f} MB above the import"
    for place, name in ((1, "on the clock"), (2, "per second of processor")):
        speed = size / (min(run[place] for run in collected) - min(run[place] for run in started))
        plain = size / min(run[place] for run in read)
        line += f"; {speed:.2f} GB/s {name}, {speed / plain:.2f} of the {plain:.2f} of cat"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to make the shards; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for dtype in options.dtypes:
            folder = Path(name) / dtype
            folder.mkdir()
            size = make_shards(folder, options.gigabytes, dtype)
            for threads, kept in itertools.product(options.threads, ("no prior", "prior")):
                measure(folder, size, threads, kept, options.repeats)


if __name__ == "__main__":
    main()
