"""How long the report of a run of LVIS size takes to write and how large it is: 1,203 classes, five methods.

Run it with `python benchmarks/report.py`, or with `--images 2000` for more. Predictions, annotations and pictures are
made up; the numbers on the page mean nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from compare import SIDE, made_split, training_counts

from logn.classes.counts import ClassCounts
from logn.datasets.image_file import write_image
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.settings import CompareSettings
from logn.report.page import write_report
from logn.report.run_folder import open_run

METHODS = ("logn", "logn:balanced", "norcal", "loga")


def made_run(folder: Path, images: int) -> float:
    """Make everything in `folder`; returns the seconds that comparing spends on what the page shows."""
    counts = training_counts(None)
    store, annotations, moments = made_split(folder, images, counts)
    moments.save(folder / "statistics.safetensors")
    store.path.rename(folder / "predictions")
    (folder / "images").mkdir()
    content = json.loads(annotations.read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    for image in content["images"]:
        image["file_name"] = f"images/{image['id']}.jpg"
        coarse = rng.integers(0, 255, (SIDE // 8, SIDE // 8, 3), np.uint8)
        write_image(folder / image["file_name"], coarse.repeat(8, axis=0).repeat(8, axis=1))
    (folder / "annotations.json").write_text(json.dumps(content), encoding="utf-8")
    names = [category["name"] for category in content["categories"]]
    table = "\n".join(["name,image_count", *(f"{name},{int(n)}" for name, n in zip(names, counts, strict=True))])
    (folder / "counts.csv").write_text(table + "\n", encoding="utf-8")
    comparison = compare(
        folder / "predictions",
        folder / "annotations.json",
        METHODS,
        settings=CompareSettings(num_bootstrap=100),
        moments=moments,
        counts=ClassCounts(counts, names=tuple(names)),
    )
    start = time.perf_counter()
    comparison = comparison.with_details()
    seconds = time.perf_counter() - start
    comparison.save(folder)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--keep", type=Path, help="Make the run here and keep it.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        details = made_run(folder, arguments.images)
        start, processor = time.perf_counter(), time.process_time()
        summary = write_report(open_run(folder), folder / "report.html", method="logn:balanced")
        seconds, used = time.perf_counter() - start, time.process_time() - processor
        size = summary.path.stat().st_size
        print(f"{arguments.images:,} images, 1,203 classes, {1 + len(METHODS)} methods")
        print(f"{details:.1f} s for what the page shows beside the metrics, when the comparison is saved")
        print(f"{seconds:.1f} s ({used:.1f} s of processor) for the page of {size / 1e6:.2f} MB")
        print(f"missing: {dict(summary.missing)}")


if __name__ == "__main__":
    main()
