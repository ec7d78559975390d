"""Time and memory of reading an annotation file of LVIS's size, against `json.load`, each in a process of its own.

    python benchmarks/read_annotations.py [--annotations 1270000]

The file is made: polygons of 90 numbers, 12.7 annotations an image, 1,203 classes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

CLASSES, PER_IMAGE, POINTS = 1203, 12.7, 45

MEASURE = """
import resource, sys, time
{prepare}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
{read}
seconds = time.process_time() - start
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, before / 1024)
"""
READERS = {
    "DetectionDataset": (
        "from logn.datasets.detection_dataset import DetectionDataset",
        "kept = DetectionDataset(sys.argv[1])",
    ),
    "ClassCounts.load": (
        "from logn.classes.counts import ClassCounts",
        "kept = ClassCounts.load(sys.argv[1])",
    ),
    "load_ground_truth": (
        "from logn.evaluate.detection.ground_truth import load_ground_truth",
        "kept = load_ground_truth(sys.argv[1], style='coco')",
    ),
    "json.load": ("import json", "kept = json.load(open(sys.argv[1]))"),
}


def write_file(path: Path, annotations: int) -> None:
    rng = np.random.default_rng(0)
    images = max(1, round(annotations / PER_IMAGE))
    with path.open("w") as file:
        categories = [{"id": number + 1, "name": f"class {number}", "frequency": "c"} for number in range(CLASSES)]
        listed = [
            {"id": number + 1, "file_name": f"{number}.jpg", "height": 480, "width": 640, "neg_category_ids": []}
            for number in range(images)
        ]
        file.write(f'{{"categories": {json.dumps(categories)}, "images": {json.dumps(listed)}, "annotations": [')
        for number in range(annotations):
            polygon = rng.uniform(0, 480, 2 * POINTS).round(2).tolist()
            record = {
                "id": number + 1,
                "image_id": int(rng.integers(images)) + 1,
                "category_id": int(rng.integers(CLASSES)) + 1,
                "bbox": [10.5, 20.25, 100.5, 80.75],
                "area": 4000.5,
                "segmentation": [polygon],
            }
            file.write(("," if number else "") + json.dumps(record))
        file.write("]}")


def measure(reader: str, path: Path) -> tuple[float, float]:
    prepare, read = READERS[reader]
    command = [sys.executable, "-c", MEASURE.format(prepare=prepare, read=read), str(path)]
    seconds, peak, _ = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--annotations", type=int, default=1_270_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "annotations.json"
        write_file(path, options.annotations)
        print(f"{path.stat().st_size / 1e9:.2f} GB, {options.annotations:,} annotations")
        for reader in READERS:
            seconds, peak = measure(reader, path)
            print(f"{reader:<18}{seconds:7.1f} s of processor time, peak {peak:7.0f} MB")


if __name__ == "__main__":
    main()
