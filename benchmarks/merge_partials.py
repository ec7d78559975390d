"""How long it takes to merge the partial statistics of many workers.

    OMP_NUM_THREADS=1 python benchmarks/merge_partials.py --parts 1000

Each part has LVIS's 1,204 columns, a full row sample (1,741 rows, 4 MB) and mean probabilities, unless `--no-sample`
says otherwise. Their making is not counted; reading them from bytes, as a driver gets them, is a figure of its own.
Times on the clock, and of the processor, which other work on the machine leaves as they are.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import logn
from logn.statistics.record import default_sample_rows

COLUMNS = 1204


def make_parts(count: int, sample_rows: int) -> list[logn.ClassMoments]:
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(count):
        part = logn.ClassMoments(COLUMNS, sample_rows=sample_rows, mean_probability=True)
        part.update(rng.standard_normal((max(64, sample_rows), COLUMNS), np.float32))
        part.sample  # noqa: B018 - sorts it, as being sent does
        parts.append(part)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=1000)
    parser.add_argument("--no-sample", action="store_true")
    arguments = parser.parse_args()
    # A hundred different parts, again and again: 1,000 of them would take 4 GB, and what is measured is the same.
    rows = 0 if arguments.no_sample else default_sample_rows(COLUMNS)
    kinds = make_parts(min(arguments.parts, 100), rows)
    parts = [kinds[number % len(kinds)] for number in range(arguments.parts)]
    size = len(parts[0].to_bytes())
    print(f"{len(parts):,} parts of {COLUMNS:,} classes, {rows:,} sampled rows each, {size:,} bytes")
    ways = {
        "merge_all": lambda: parts,
        "with to and from bytes": lambda: (logn.ClassMoments.from_bytes(part.to_bytes()) for part in parts),
    }
    for name, give in ways.items():
        start, busy = time.perf_counter(), time.process_time()
        logn.ClassMoments.merge_all(give())
        print(f"{name:24}{time.perf_counter() - start:6.2f} s, processor {time.process_time() - busy:6.2f} s")


if __name__ == "__main__":
    main()
