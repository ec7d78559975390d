"""Comparisons at the size of LVIS's validation set: every step at 1/8, 1/4, 1/2 and all of 19,809 images.

    python benchmarks/full_lvis.py --root /somewhere/with/20GB

Predictions are made: 300 proposals of 1,204 columns in float16 for each image, with federated labels; class counts are
those of `--classes` (a table with the column image_count), else from a formula. Each step runs in a process of its own
and is left out if its result is in `--results` already, so a run that was stopped goes on where it was. Seconds are by
the clock and of all processors; on a machine with other work only the latter mean something. Memory is that of the
process at its peak, and of it and the processes that it started together, looked at ten times a second; what they share
counts for each. `--table` prints what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from compare import BOXES, METHODS, NEGATIVES, PROPOSALS, SIDE, run_reference, training_counts, write_results

from logn.data.class_counts import ClassCounts, frequency_groups
from logn.measure.compare import CompareSettings, compare
from logn.measure.comparison import Comparison
from logn.models.proposals import Proposals
from logn.predictions.decoder import DecodeSettings
from logn.predictions.store import Predictions, PredictionWriter, StoreHeader
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

IMAGES = 19_809
SHARES = (8, 4, 2, 1)
# Images from which the statistics come, and those on which torch and torchvision are measured.
RECORDED, SUBSET = 500, 40
NOISE = 1.2 * np.random.default_rng(0).standard_normal(2**22, np.float32) - 5.5


class Split:
    """Made images: what is in each follows from its number alone."""

    def __init__(self, root: Path, classes: str | None) -> None:
        self.root, self.counts = root, training_counts(classes)
        self.share = self.counts / self.counts.sum()
        self.bias = (0.5 * np.log(self.share * len(self.counts))).astype(np.float32)

    def truth(self, image: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Boxes, labels, classes that are known to be absent, classes that are not annotated exhaustively."""
        rng = np.random.default_rng([7, image])
        number = max(1, rng.poisson(BOXES))
        present = rng.choice(len(self.counts), max(1, number // 3), p=self.share)
        labels = rng.choice(present, number)
        corner = rng.uniform(0, SIDE - 60, (number, 2))
        boxes = np.hstack([corner, corner + np.exp(rng.normal(4, 0.8, (number, 2))).clip(8, 300)]).clip(0, SIDE)
        seen = np.unique(labels)
        absent = np.setdiff1d(rng.choice(len(self.counts), NEGATIVES, replace=False), seen)
        return boxes.round(2), labels, absent, seen[rng.random(len(seen)) < 0.1]

    def proposals(self, image: int) -> Proposals:
        """Proposals whose logits lean to frequent classes; the background column is the last."""
        boxes, labels, *_ = self.truth(image)
        rng = np.random.default_rng([11, image])
        source, near = rng.integers(0, len(boxes), PROPOSALS), rng.random(PROPOSALS) < 0.6
        found = boxes[source] + rng.normal(0, 0.1, (PROPOSALS, 4)) * np.tile(boxes[source, 2:] - boxes[source, :2], 2)
        corner = rng.uniform(0, SIDE - 60, (PROPOSALS, 2))
        found[~near] = np.hstack([corner, corner + rng.uniform(10, 200, (PROPOSALS, 2))])[~near]
        found = np.sort(found.reshape(-1, 2, 2), axis=1).reshape(-1, 4).clip(0, SIDE)
        # Pieces of one long noise: drawing as much afresh for each image would take longer than everything measured.
        columns = len(self.counts) + 1
        starts = rng.integers(0, len(NOISE) - columns, PROPOSALS)
        logits = NOISE[starts[:, None] + np.arange(columns)]
        logits[:, :-1] += self.bias
        logits[:, -1] = rng.normal(5, 1.5, PROPOSALS)
        rows = np.flatnonzero(near)
        logits[rows, labels[source[rows]]] += rng.normal(8, 2, len(rows))
        logits[rows, -1] -= 2
        return Proposals(found.astype(np.float32), logits, height=SIDE, width=SIDE)

    def annotations(self, images: int) -> Path:
        """The file with the annotations of the first images."""
        return self.root / f"annotations-{images}.json"

    def store(self, images: int) -> Predictions:
        """The predictions of the first images."""
        return Predictions(self.root / "store").part(np.arange(images))

    def moments(self) -> ClassMoments:
        """The statistics of other images."""
        return ClassMoments.load(self.root / "statistics.safetensors")


def write(split: Split, images: int) -> dict[str, Any]:
    """The predictions of images that are not there yet, the annotations of all, and the statistics."""
    header = StoreHeader(Head(len(split.counts) + 1, background=-1, activation="softmax"))
    written, seconds, processor = 0, 0.0, 0.0
    with PredictionWriter(split.root / "store", header) as writer:
        there = writer.image_ids
        for image in range(1, images + 1):
            if image not in there:
                proposals = split.proposals(image)
                wall, used = time.perf_counter(), time.process_time()
                writer.append(image, proposals)
                seconds, processor = seconds + time.perf_counter() - wall, processor + time.process_time() - used
                written += 1
    if not (split.root / "statistics.safetensors").exists():
        moments = ClassMoments(Head(len(split.counts) + 1, background=-1, activation="softmax"), sample_rows=1024)
        for image in range(1, RECORDED + 1):
            moments.update(split.proposals(IMAGES + image).logits)
        moments.save(split.root / "statistics.safetensors")
    write_annotations(split, images)
    each = {"wall": 1e3 * seconds / written, "processor": 1e3 * processor / written} if written else None
    return {"images written": written, "milliseconds per image to write": each}


def write_annotations(split: Split, images: int) -> None:
    groups = frequency_groups(split.counts)
    categories = [
        {"id": place + 1, "name": f"class {place}", "frequency": str(group), "image_count": int(count)}
        for place, (group, count) in enumerate(zip(groups, split.counts, strict=True))
    ]
    listed, annotations = [], []
    for image in range(1, images + 1):
        boxes, labels, absent, unsure = split.truth(image)
        known = {"neg_category_ids": (absent + 1).tolist(), "not_exhaustive_category_ids": (unsure + 1).tolist()}
        listed.append({"id": image, "width": SIDE, "height": SIDE} | known)
        for (left, top, right, bottom), label in zip(boxes.tolist(), labels.tolist(), strict=True):
            box = [left, top, right - left, bottom - top]
            annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1}
            annotations.append({**annotation, "bbox": box, "area": box[2] * box[3]})
    content = {"images": listed, "annotations": annotations, "categories": categories}
    split.annotations(images).write_text(json.dumps(content))


def compared(split: Split, images: int, methods: tuple[str, ...] = METHODS, **choices: Any) -> Comparison:
    settings = CompareSettings(**{"num_bootstrap": 0, "report_images": 0} | choices)
    counts = ClassCounts(split.counts, num_images=100_170)
    moments = split.moments()
    start = time.perf_counter()
    store = split.store(images)
    opened = time.perf_counter() - start
    found = compare(store, split.annotations(images), methods, settings=settings, moments=moments, counts=counts)
    object.__setattr__(found, "seconds", {"open the store": opened, **found.seconds})
    return found


def compare_step(**choices: Any) -> Callable[[Split, int], dict[str, Any]]:
    """A step that compares, with the seconds of its own steps."""

    def step(split: Split, images: int) -> dict[str, Any]:
        found = compared(split, images, **choices)
        return {"seconds by step": dict(found.seconds), "AP": {row.name: row["AP"] for row in found.rows}}

    return step


def report(split: Split, images: int) -> dict[str, Any]:
    """Two methods compared with all that the page shows, and the page."""
    from logn.report.page import write_report

    folder = split.root / f"comparison-{images}"
    found = compared(split, images, METHODS[:2], report_images=500)
    start, processor = time.perf_counter(), time.process_time()
    found.save(folder)
    write_report(folder, folder / "report.html")
    return {"seconds for details and page": [time.perf_counter() - start, time.process_time() - processor]}


def reference(split: Split, images: int) -> dict[str, Any]:
    """The `lvis` package on one result file."""
    results = split.root / f"results-{images}.json"
    if not results.exists():
        write_results(split.store(images), split.annotations(images), results)
    wall, processor = time.perf_counter(), time.process_time()
    values = run_reference(split.annotations(images), results)
    cost = [time.perf_counter() - wall, time.process_time() - processor]
    results.unlink()
    return {"seconds of the package itself": cost, "AP": values["AP"]}


def peers(split: Split, images: int) -> dict[str, Any]:
    """Milliseconds of processor time per image on one thread: torch's softmax, torchvision's decoding, and ours."""
    import torch
    from decode import torchvision_loop

    from logn.measure.fitted_methods import fit_for_store
    from logn.predictions.decoder import decode_many

    torch.set_num_threads(1)
    store = split.store(min(SUBSET, images))
    logits = [torch.from_numpy(proposals.logits.astype(np.float32)) for proposals in store]
    inputs = {"moments": split.moments(), "counts": ClassCounts(split.counts, num_images=100_170)}
    maps = [fit_for_store(name, store.head, **inputs) for name in METHODS]
    runs: dict[str, Callable[[], object]] = {
        "torch softmax, ten passes": lambda: [rows.softmax(-1) for _ in METHODS for rows in logits],
        "torchvision decoding, one method": lambda: torchvision_loop(store, DecodeSettings()),
        "decoding, one method": lambda: decode_many(store, maps[:1], threads=1),
        "decoding, ten methods": lambda: decode_many(store, maps, threads=1),
    }
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(5):
        for name, run in runs.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return {"milliseconds per image": {name: 1e3 * seconds / len(store) for name, seconds in best.items()}}


STEPS: dict[str, Callable[[Split, int], dict[str, Any]]] = {
    "write": write,
    "compare one method": compare_step(methods=METHODS[:1]),
    "compare ten methods": compare_step(),
    "compare ten methods, 1,000 draws": compare_step(num_bootstrap=1000),
    "compare ten methods, errors (TIDE)": compare_step(errors=True),
    "report": report,
    "peers": peers,
    "lvis package, one result file": reference,
}


def processor_seconds() -> float:
    """Seconds of processor of this process and those it started."""
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


class MemoryWatch(threading.Thread):
    """Looks at the memory of this process and those that it starts, in MB.

    The system's own record of a process that has ended is of no use: it begins with the memory of the one that started
    it.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.together = self.worker = 0.0
        self._done = threading.Event()

    def run(self) -> None:
        """Look until `stop`."""
        while not self._done.wait(0.1):
            lists = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
            workers = [_resident(int(pid)) for pids in lists for pid in pids]
            self.together = max(self.together, _resident(os.getpid()) + sum(workers))
            self.worker = max([self.worker, *workers])

    def stop(self) -> None:
        """Look no more."""
        self._done.set()
        self.join()


def _resident(process: int) -> float:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has just ended
        return 0.0
    return pages * resource.getpagesize() / 2**20


def run_step(split: Split, step: str, images: int) -> dict[str, Any]:
    """One step, in this process."""
    watch = MemoryWatch()
    watch.start()
    start = time.perf_counter()
    found = STEPS[step](split, images)
    wall = time.perf_counter() - start
    watch.stop()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    memory = {"peak MB": own, "peak MB of a worker": watch.worker, "peak MB together": max(own, watch.together)}
    return {"wall": wall, "processor": processor_seconds(), **memory, "load": os.getloadavg()[0], **found}


def _memory(cost: dict[str, Any]) -> float:
    if "peak MB together" in cost:
        return float(cost["peak MB together"])
    return float(cost["peak MB"] + cost["workers"] * cost["peak MB of each worker"])  # as it was measured before


def table(done: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Seconds of processor of each step and size, what doubling the size multiplies them by, and the memory."""
    sizes = sorted(done, key=int)
    lines = ["| step | " + " | ".join(f"{int(size):,} images" for size in sizes) + " | growth | peak MB |"]
    lines.append("|:--|" + "--:|" * (len(sizes) + 2))
    for step in STEPS:
        costs = [done[size].get(step) for size in sizes]
        known = [(int(size), cost) for size, cost in zip(sizes, costs, strict=True) if cost]
        if not known or step in ("write", "peers"):
            continue
        (least, first), (most, last) = known[0], known[-1]
        power = np.log(last["processor"] / first["processor"]) / np.log(most / least) if most > least else np.nan
        growth = f"{2**power:.2f}" if most > least else ""
        memory = max(_memory(cost) for _, cost in known)
        cells = [f"{cost['processor']:,.0f} ({cost['wall']:,.0f})" if cost else "" for cost in costs]
        lines.append(f"| {step} | {' | '.join(cells)} | {growth} | {memory:,.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("full-lvis"), help="a folder with 20 GB to spare")
    parser.add_argument("--classes", help="a table with the column image_count")
    parser.add_argument("--results", type=Path, default=Path("docs/results/full-lvis.json"))
    parser.add_argument("--shares", type=int, nargs="+", default=list(SHARES), help="1/8, 1/4 … of the images")
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--table", action="store_true", help="only print the results as a table")
    parser.add_argument("--one", nargs=2, metavar=("STEP", "IMAGES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.results.read_text())))
        return
    arguments.root.mkdir(parents=True, exist_ok=True)
    split = Split(arguments.root, arguments.classes)
    if arguments.one:
        print(json.dumps(run_step(split, arguments.one[0], int(arguments.one[1]))))
        return
    done = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    same = ["--root", str(arguments.root), *(["--classes", arguments.classes] if arguments.classes else [])]
    for share in arguments.shares:
        images = IMAGES // share
        for step in arguments.steps:
            of_size = done.setdefault(str(images), {})
            if step in of_size:
                continue
            command = [sys.executable, __file__, *same, "--one", step, str(images)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            of_size[step] = json.loads(output.splitlines()[-1])
            arguments.results.write_text(json.dumps(done, indent=1) + "\n")
            print(f"{images:,} images, {step}: {of_size[step]['processor']:.1f} s of processor", flush=True)


if __name__ == "__main__":
    main()
