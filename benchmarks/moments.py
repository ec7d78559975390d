"""Speed of the per-class moments against peers, as ratios measured in one run.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/moments.py

Batches of 512 x 1204 float32 (the proposals of an image, LVIS's classes), many of them, so that they come from memory
and not from the cache. Every contender goes over the same batches; the repeats are interleaved, so that a busy machine
is busy for all; the fastest of them counts. Each batch is an array of its own, as a model gives them; `--one-array`
cuts them from one, as from a shard, which is read faster because its memory has larger pages. On two threads each goes
over its half several times, and starting them is not counted. `--processor-time` counts the time that the processor
worked instead of the time that passed: for a machine with other work, though its caches and its memory are still
shared. `--accuracy` prints how far the variances and mean probabilities of float32 logits are from those in float64
throughout, and how well a row sample tells the mean probabilities, instead of speeds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

import logn
from logn.base.arrays import softmax
from logn.statistics.head import Head

ROWS, CLASSES = 512, 1204
TWO_PROCESSES = "ClassMoments, 2 processes"
HALVES, CAST = "ClassMoments, float16", "NumPy's cast of float16"
PROBABILITY, BOTH = "ClassMoments + mean probability", "the same, activation unknown"
SOFTMAX = Head(CLASSES, activation="softmax")
Batches = list[np.ndarray]


def read_only(batches: Batches) -> None:
    for batch in batches:
        np.sum(batch)


def numpy_mean_and_variance(batches: Batches) -> None:
    for batch in batches:
        batch.mean(axis=0)
        batch.var(axis=0)


def batch_norm(batches: Batches) -> None:
    layer = torch.nn.BatchNorm1d(CLASSES, affine=False).train()
    with torch.no_grad():
        for batch in batches:
            layer(torch.from_numpy(batch))


def standard_scaler(batches: Batches) -> None:
    scaler = StandardScaler()
    for batch in batches:
        scaler.partial_fit(batch)


def class_moments(batches: Batches) -> None:
    moments = logn.ClassMoments(CLASSES, mean_probability=False)
    for batch in batches:
        moments.update(batch)


def torch_softmax(batches: Batches) -> None:
    with torch.no_grad():
        for batch in batches:
            torch.softmax(torch.from_numpy(batch), dim=1)


def class_moments_with_probability(batches: Batches) -> None:
    moments = logn.ClassMoments(SOFTMAX, mean_probability=True)
    for batch in batches:
        moments.update(batch)


def class_moments_with_both_probabilities(batches: Batches) -> None:
    moments = logn.ClassMoments(CLASSES, mean_probability=True)
    for batch in batches:
        moments.update(batch)


def bare_sums(batches: Batches) -> None:
    """What the moments are made of, and nothing else: float32 sums of 256 rows, two abreast, and of their squares."""
    ones, sums, squares = np.ones(128, np.float32), *np.empty((2, 2 * CLASSES), np.float32)
    for batch in batches:
        for block in batch.reshape(-1, 128, 2 * CLASSES):
            np.einsum("ij,ij->j", block, block, out=squares)
            ones.dot(block, sums)


def cast_to_float32(batches: Batches) -> None:
    out = np.empty((ROWS, CLASSES), np.float32)
    for batch in batches:
        np.copyto(out, batch)


SAMPLED = logn.ClassMoments(CLASSES, sample_rows=1741, mean_probability=False)


def class_moments_with_sample(batches: Batches) -> None:
    # One object for all repeats: on long runs, where the time goes, the sample has long been full.
    for batch in batches:
        SAMPLED.update(batch)


CONTENDERS: dict[str, Callable[[Batches], None]] = {
    "numpy.sum (reading)": read_only,
    "numpy mean + var": numpy_mean_and_variance,
    "torch BatchNorm1d": batch_norm,
    "StandardScaler": standard_scaler,
    "ClassMoments": class_moments,
    "ClassMoments + sample": class_moments_with_sample,
    "bare sums": bare_sums,
    "torch softmax": torch_softmax,
    PROBABILITY: class_moments_with_probability,
    BOTH: class_moments_with_both_probabilities,
}
# What is measured on two threads too.
THREADED = ("ClassMoments", "bare sums", "numpy.sum (reading)", "numpy mean + var")
PASSES = 5


def seconds_on_two_threads(run: Callable[[Batches], None], batches: Batches) -> float:
    """Seconds for all batches where each half has a thread."""
    together = threading.Barrier(3)

    def work(half: Batches) -> None:
        together.wait()
        for _ in range(PASSES):
            run(half)
        together.wait()

    workers = [threading.Thread(target=work, args=(half,)) for half in (batches[::2], batches[1::2])]
    for worker in workers:
        worker.start()
    together.wait()
    start = time.perf_counter()
    together.wait()
    return (time.perf_counter() - start) / PASSES


def make_batches(num_batches: int, one_array: bool) -> Batches:
    rng = np.random.default_rng(0)
    # Means as in the paper's figures for LVIS.
    centre, spread = rng.uniform(-5.35, 3.11, CLASSES), rng.uniform(1.0, 2.5, CLASSES)
    batches = [rng.normal(centre, spread, size=(ROWS, CLASSES)).astype(np.float32) for _ in range(num_batches)]
    return list(np.concatenate(batches).reshape(num_batches, ROWS, CLASSES)) if one_array else batches


def measure(
    num_batches: int, repeats: int, *, processor_time: bool = False, one_array: bool = False
) -> dict[str, float]:
    """Gigabytes of logits per second of each contender; those of float16 count as what they are in float32."""
    clock = time.process_time if processor_time else time.perf_counter
    torch.set_num_threads(1)
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        print("OPENBLAS_NUM_THREADS is not 1: NumPy may use several threads", file=sys.stderr)
    batches = make_batches(num_batches, one_array)
    threaded = () if processor_time else THREADED  # processor time adds up over threads
    halves = [batch.astype(np.float16) for batch in batches]
    best = dict.fromkeys([*CONTENDERS, HALVES, CAST, *(f"{name}, 2 threads" for name in threaded)], float("inf"))
    for repeat in range(repeats):
        for name, run in CONTENDERS.items():
            if name == "StandardScaler" and repeat >= 3:
                continue
            start = clock()
            run(batches)
            best[name] = min(best[name], clock() - start)
        for name, run in ((HALVES, class_moments), (CAST, cast_to_float32)):
            start = clock()
            run(halves)
            best[name] = min(best[name], clock() - start)
        for name in threaded:
            seconds = seconds_on_two_threads(CONTENDERS[name], batches)
            best[f"{name}, 2 threads"] = min(best[f"{name}, 2 threads"], seconds)
    size = sum(batch.nbytes for batch in batches) / 1e9
    speeds = {name: size / seconds for name, seconds in best.items()}
    return speeds if processor_time else {**speeds, TWO_PROCESSES: measure_two_processes(batches, repeats)}


def half_in_this_process(batches: Batches, together: Barrier, repeats: int, fastest: Synchronized[float]) -> None:
    for _ in range(repeats):
        together.wait()
        start = time.perf_counter()
        class_moments(batches)
        together.wait()  # both must be done
        with fastest.get_lock():
            fastest.value = min(fastest.value, time.perf_counter() - start)


def measure_two_processes(batches: Batches, repeats: int) -> float:
    """Gigabytes of logits per second where each half of the batches has a process; starting them is not counted."""
    # Forked, so that the batches are there already.
    context = multiprocessing.get_context("fork")
    together, fastest = context.Barrier(2), context.Value("d", float("inf"))
    workers = [
        context.Process(target=half_in_this_process, args=(half, together, repeats, fastest))
        for half in (batches[::2], batches[1::2])
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(batch.nbytes for batch in batches) / 1e9 / float(fastest.value)


def accuracy(rows: int, classes: int, distance: float, draws: int) -> float:
    """Largest relative error of a variance where the means are so many standard deviations from zero."""
    worst = 0.0
    for seed in range(draws):
        logits = np.random.default_rng(seed).normal(distance, 1.0, (rows, classes)).astype(np.float32)
        moments = logn.ClassMoments(classes, mean_probability=False)
        moments.update(logits)
        exact = logits.astype(np.float64).var(axis=0, ddof=1)
        worst = max(worst, float(np.abs(moments.variance / exact - 1.0).max()))
    return worst


def print_accuracy() -> None:
    for rows, classes, distance, draws in ((600, 64, 4.0, 20), (ROWS, CLASSES, 4.0, 3), (100_000, 64, 4.0, 2)):
        worst = accuracy(rows, classes, distance, draws)
        print(f"{rows:>7,} rows, {classes:>5,} classes, mean {distance:g} std from zero: variance off by {worst:.1e}")


def print_probability_accuracy(sample_rows: int = 1741) -> None:
    """Of logits with LVIS's width whose classes are as frequent as 1 / rank."""
    rng = np.random.default_rng(0)
    shares = 1.0 / np.arange(1, CLASSES + 1)
    moments = logn.ClassMoments(SOFTMAX, mean_probability=True, sample_rows=sample_rows)
    exact = np.zeros(CLASSES)
    for _ in range(200):
        rows = rng.normal(np.log(shares), 1.0, (ROWS, CLASSES))
        rows[np.arange(ROWS), rng.choice(CLASSES, ROWS, p=shares / shares.sum())] += 6.0
        logits = rows.astype(np.float32)
        moments.update(logits)
        exact += softmax(logits).sum(axis=0)
    exact /= 200 * ROWS
    recorded = moments.mean_probability
    print(f"mean probability of {200 * ROWS:,} rows: off by at most {np.abs(recorded / exact - 1).max():.1e} of itself")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=320)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--one-array", action="store_true")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.accuracy:
        print_accuracy()
        print_probability_accuracy()
        return
    speeds = measure(
        options.batches, options.repeats, processor_time=options.processor_time, one_array=options.one_array
    )
    own = speeds["ClassMoments"]
    ratios = {name: own / speed for name, speed in speeds.items() if name in list(CONTENDERS)[:4]}
    for name in THREADED:
        if f"{name}, 2 threads" in speeds:
            ratios[f"2 threads over 1, {name}"] = speeds[f"{name}, 2 threads"] / speeds[name]
    if TWO_PROCESSES in speeds:
        ratios["2 processes over 1"] = speeds[TWO_PROCESSES] / own
    ratios["bare sums over numpy mean + var"] = speeds["bare sums"] / speeds["numpy mean + var"]
    ratios["float16 over float32"] = speeds[HALVES] / own
    ratios["float16 over NumPy's cast of it alone"] = speeds[HALVES] / speeds[CAST]
    ratios["with sample over without"] = speeds["ClassMoments + sample"] / own
    # In time, not in speed: what the mean probability adds to the moments, in softmaxes of torch.
    for name, label in ((PROBABILITY, "mean probability"), (BOTH, "the same, activation unknown")):
        added = 1.0 / speeds[name] - 1.0 / own
        ratios[f"time of {label} over torch softmax"] = added * speeds["torch softmax"]
    if options.json:
        print(json.dumps({"gigabytes_per_second": speeds, "ratios": ratios}, indent=2))
        return
    for name, speed in speeds.items():
        print(f"{name:<33}{speed:7.2f} GB/s")
    print()
    for name, ratio in ratios.items():
        label = name if "over" in name else f"ClassMoments over {name}"
        print(f"{label:<58}{ratio:6.2f}")


if __name__ == "__main__":
    main()
