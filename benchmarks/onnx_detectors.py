"""AP of public ONNX detectors by our commands and by an independent decoder, and what each correction does to it.

The models and the photographs are the user's: `python benchmarks/onnx_detectors.py DATA --yolox yolox_nano.onnx
--nanodet nanodet_m.onnx`, where DATA holds `train.json`, `test_exhaustive.json` and the images. Writes
docs/results/onnx-detectors.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx_decoders import detections, nanodet_detections, nanodet_input, yolox_detections, yolox_input

ROOT = Path(__file__).resolve().parent.parent
COCO = (ROOT / "benchmarks" / "coco_classes.txt").read_text().splitlines()
METHODS = ("logn:balanced", "logn", "p2p", "norcal")
THRESHOLD, LIMIT = 0.01, 300
OVERLAPS = {"yolox": 0.65, "nanodet": 0.6}


def logn(*words: Any) -> dict[str, Any]:
    """Run a command of LogN and read what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "logn", *map(str, words), "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def some_images(annotations: Path, count: int | None, target: Path) -> Path:
    """An annotation file of `count` images, spread evenly."""
    content = json.loads(annotations.read_text())
    images = content["images"]
    if count is not None and count < len(images):
        content["images"] = [images[place * len(images) // count] for place in range(count)]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [item for item in content["annotations"] if item["image_id"] in kept]
    target.write_text(json.dumps(content))
    return target


def independent_results(kind: str, model: Path, data: Path, annotations: Path) -> Iterator[dict[str, Any]]:
    """Detections in COCO's result format, by the decoder of `onnx_decoders.py`."""
    import onnxruntime
    from PIL import Image

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # how a file could be optimised is not asked
    session = onnxruntime.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    (image_input,) = session.get_inputs()
    size = image_input.shape[2]
    content = json.loads(annotations.read_text())
    ids = {category["name"]: category["id"] for category in content["categories"]}
    for record in content["images"]:
        with Image.open(data / record["file_name"]) as picture:
            image = np.array(picture.convert("RGB"))
        prepare = yolox_input if kind == "yolox" else nanodet_input
        pixels, ratio, top, left = prepare(image, size)
        outputs = [array[0] for array in session.run(None, {image_input.name: pixels})]
        if kind == "yolox":
            boxes, scores = yolox_detections(outputs[0], size)
        else:
            boxes, scores = nanodet_detections(outputs[:3], outputs[3:], size)
        boxes = (boxes - [left, top, left, top]) / ratio
        found = detections(
            boxes,
            scores,
            overlap=OVERLAPS[kind],
            threshold=THRESHOLD,
            best_class=kind == "yolox",
            limit=len(boxes) * len(COCO),
        )
        known = [item for item in found if COCO[item[1]] in ids][:LIMIT]
        for box, label, score in known:
            x1, y1, x2, y2 = (float(number) for number in box)
            yield {
                "image_id": record["id"],
                "category_id": ids[COCO[label]],
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "score": score,
            }


def write_counts(train: Path, target: Path) -> Path:
    """Training images of each of the 80 classes; of those that the labels lack, the median of the others."""
    categories = json.loads(train.read_text())["categories"]
    known = {category["name"]: int(category["image_count"]) for category in categories}
    median = int(np.median(list(known.values())))
    counts = [known.get(name, median) for name in COCO]
    target.write_text(json.dumps({"names": COCO, "image_counts": counts, "num_images": sum(counts)}))
    return target


def measure(kind: str, model: Path, data: Path, images: int | None, training: int, folder: Path) -> dict[str, Any]:
    """All numbers of one model."""
    names = ROOT / "benchmarks" / "coco_classes.txt"
    annotations = some_images(data / "test_exhaustive.json", images, folder / f"{kind}.json")
    store, statistics = folder / f"{kind}-store", folder / f"{kind}.safetensors"
    began = time.perf_counter()
    logn("predict", model, "--like", kind, "--class-names", names, "--data", annotations, "--images", data, "-o", store)
    seconds = time.perf_counter() - began
    options = ("-a", annotations, "--coco", "--score-threshold", THRESHOLD, "--max-detections", LIMIT)
    ours = logn("evaluate", store, *options)
    results = folder / f"{kind}-results.json"
    results.write_text(json.dumps(list(independent_results(kind, model, data, annotations))))
    theirs = logn("evaluate", results, "-a", annotations, "--coco", "--max-detections", LIMIT)
    logn(
        *("collect", model, "--like", kind, "--class-names", names, "--images", data / "images"),
        *("--max-images", training, "-o", statistics),
    )
    counts = write_counts(data / "train.json", folder / "counts.json")
    compared = logn(
        *("compare", store, "-s", statistics, *options, "--counts", counts),
        *("--methods", ",".join(METHODS), "--bootstrap", 100),
    )
    return {
        "images": len(json.loads(annotations.read_text())["images"]),
        "training_images": training,
        "predict_seconds": round(seconds, 1),
        "ours": metrics_of(ours)["none"],
        "independent": next(iter(metrics_of(theirs).values())),
        "methods": metrics_of(compared),
        "verdicts": compared["verdicts"],
    }


def metrics_of(comparison: dict[str, Any]) -> dict[str, dict[str, float]]:
    """AP and that of rare, common and frequent classes, in percent, by method."""
    return {
        method["method"]: {name: round(100 * method["metrics"][name], 2) for name in ("AP", "APr", "APc", "APf")}
        for method in comparison["methods"]
    }


def main() -> None:
    """Measure the models that are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--yolox", type=Path)
    parser.add_argument("--nanodet", type=Path)
    parser.add_argument("--images", type=int, help="Only so many test images, spread evenly.")
    parser.add_argument("--training-images", type=int, default=1000)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "results" / "onnx-detectors.json")
    arguments = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("yolox", "nanodet"):
            if (model := getattr(arguments, kind)) is not None:
                found[kind] = measure(
                    kind, model, arguments.data, arguments.images, arguments.training_images, Path(folder)
                )
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
