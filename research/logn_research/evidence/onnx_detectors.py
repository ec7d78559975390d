"""AP of public ONNX detectors by our commands and by an independent decoder, and what each correction does to it.

The models and the photographs are the user's:

    python -m logn_research.evidence.onnx_detectors DATA --yolox yolox_nano.onnx --nanodet nanodet_m.onnx

DATA holds `train.json`, `test.json` (federated: each image is labelled for some classes), `test_exhaustive.json` (the
same images, every class labelled everywhere) and the images. Statistics are of the images of `train.json` alone. A
correction is folded, and the new file compared with the old. Writes results/onnx-detectors.json; what is there of
models that are not given stays.
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

from logn_research.evidence.onnx_decoders import (
    detections,
    nanodet_detections,
    nanodet_input,
    yolox_detections,
    yolox_input,
)

NAMES = Path(__file__).parent / "coco_classes.txt"
RESULTS = Path(__file__).parents[2] / "results" / "onnx-detectors.json"
COCO = NAMES.read_text().splitlines()
METHODS = ("recommended", "logn", "p2p", "norcal")
THRESHOLD, LIMIT = 0.01, 300
FOLDED_IMAGES = 20  # the scores of old and new file are compared on so many
OVERLAPS = {"yolox": 0.65, "nanodet": 0.6}


def logn(*words: Any) -> dict[str, Any]:
    """Run a command of LogN and read what it prints."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "logn", *map(str, words), "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def some_images(annotations: Path, count: int | None, target: Path) -> Path:
    """An annotation file of `count` images, spread evenly over those of `annotations`."""
    content = json.loads(annotations.read_text())
    images = content["images"]
    if count is not None and count < len(images):
        content["images"] = [images[place * len(images) // count] for place in range(count)]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [item for item in content["annotations"] if item["image_id"] in kept]
    target.write_text(json.dumps(content))
    return target


def session_of(model: Path) -> Any:
    """A file in onnxruntime, without any code of LogN."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # how a file could be optimised is not asked
    return onnxruntime.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])


def run_on(kind: str, session: Any, image: Any) -> tuple[list[Any], float, float, float, int]:
    """The outputs for an image, how it was scaled and where it was put, and the size of the input."""
    (image_input,) = session.get_inputs()
    size = image_input.shape[2]
    prepare = yolox_input if kind == "yolox" else nanodet_input
    pixels, ratio, top, left = prepare(image, size)
    return [array[0] for array in session.run(None, {image_input.name: pixels})], ratio, top, left, size


def independent_results(kind: str, model: Path, data: Path, annotations: Path) -> Iterator[dict[str, Any]]:
    """Detections in COCO's result format, by the decoder of `onnx_decoders.py`."""
    from PIL import Image

    session = session_of(model)
    content = json.loads(annotations.read_text())
    ids = {category["name"]: category["id"] for category in content["categories"]}
    for record in content["images"]:
        with Image.open(data / record["file_name"]) as picture:
            image = np.array(picture.convert("RGB"))
        outputs, ratio, top, left, size = run_on(kind, session, image)
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


def check_fold(kind: str, model: Path, statistics: Path, annotations: Path, data: Path, folder: Path) -> dict[str, Any]:
    """Fold a correction, and compare what the new file gives with the map of what the old one gives.

    The logits are those of the old scores, and the map is read from its file: nothing of LogN is run but its commands.
    """
    import onnx
    from PIL import Image
    from safetensors.numpy import load_file

    affine, corrected = folder / f"{kind}-affine.safetensors", folder / f"{kind}-corrected.onnx"
    logn("fit", statistics, "--method", "logn", "-o", affine)
    report = logn("fold", model, affine, "-o", corrected)
    stored = load_file(affine)
    scale, shift = stored["scale"], stored["shift"]
    sessions = [session_of(path) for path in (model, corrected)]
    scores, others = 0.0, 0.0
    for record in json.loads(annotations.read_text())["images"][:FOLDED_IMAGES]:
        with Image.open(data / record["file_name"]) as picture:
            image = np.array(picture.convert("RGB"))
        before, after = (run_on(kind, session, image)[0] for session in sessions)
        for old, new in zip(before, after, strict=True):
            first = {len(COCO): 0, len(COCO) + 5: 5}.get(old.shape[1], old.shape[1])
            old_scores = old[:, first:].astype(np.float64)
            with np.errstate(divide="ignore"):
                logits = np.log(old_scores) - np.log1p(-old_scores)
            if logits.size:
                expected = 1 / (1 + np.exp(-(scale * logits + shift)))
                scores = max(scores, float(np.abs(new[:, first:] - expected).max()))
            others = max(others, float(np.abs(new[:, :first] - old[:, :first]).max(initial=0)))
    files = [onnx.load(str(path)) for path in (model, corrected)]
    return {
        "way": report["way"],
        "layers": len(report["layers"]),
        "same_inputs_and_outputs": interface(files[0]) == interface(files[1]),
        "nodes": [len(file.graph.node) for file in files],
        "images": FOLDED_IMAGES,
        "largest_difference_of_scores": scores,
        "largest_difference_of_boxes": others,
    }


def interface(model: Any) -> list[tuple[str, int, list[Any]]]:
    """Name, type and shape of every input and output of a file."""
    return [
        (
            value.name,
            value.type.tensor_type.elem_type,
            [axis.dim_value or axis.dim_param for axis in value.type.tensor_type.shape.dim],
        )
        for value in (*model.graph.input, *model.graph.output)
    ]


def measure(kind: str, model: Path, data: Path, images: int | None, training: int, folder: Path) -> dict[str, Any]:
    """All numbers of one model."""
    annotations = some_images(data / "test_exhaustive.json", images, folder / f"{kind}.json")
    federated = some_images(data / "test.json", images, folder / f"{kind}-federated.json")
    store, statistics = folder / f"{kind}-store", folder / f"{kind}.safetensors"
    logn(
        *("collect", model, "--like", kind, "--class-names", NAMES, "--data", data / "train.json"),
        *("--max-images", training, "-o", statistics),
    )
    folded = check_fold(kind, model, statistics, annotations, data, folder)
    began = time.perf_counter()
    logn("predict", model, "--like", kind, "--class-names", NAMES, "--data", annotations, "--images", data, "-o", store)
    seconds = time.perf_counter() - began
    options = ("--min-score", THRESHOLD, "--max-detections", LIMIT)
    ours = logn("evaluate", store, "-a", annotations, "--coco", *options)
    results = folder / f"{kind}-results.json"
    results.write_text(json.dumps(list(independent_results(kind, model, data, annotations))))
    theirs = logn("evaluate", results, "-a", annotations, "--coco", "--max-detections", LIMIT)
    counts = write_counts(data / "train.json", folder / "counts.json")
    compared = {
        name: logn(
            *("compare", store, "-s", statistics, "-a", *labels, *options, "--counts", counts),
            *("--methods", ",".join(METHODS), "--bootstrap", 100),
        )
        for name, labels in (("exhaustive", (annotations, "--coco")), ("federated", (federated,)))
    }
    return {
        "images": len(json.loads(annotations.read_text())["images"]),
        "training_images": training,
        "predict_seconds": round(seconds, 1),
        "folded": folded,
        "ours": metrics_of(ours)["none"],
        "independent": next(iter(metrics_of(theirs).values())),
        **{name: {"methods": metrics_of(result), "verdicts": result["verdicts"]} for name, result in compared.items()},
    }


def metrics_of(comparison: dict[str, Any]) -> dict[str, dict[str, float]]:
    """AP and that of rare, common and frequent classes, in percent, by method."""
    return {
        method["name"]: {name: round(100 * method["values"][name], 2) for name in ("AP", "APr", "APc", "APf")}
        for method in comparison["rows"]
    }


def main() -> None:
    """Measure the models that are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--yolox", type=Path)
    parser.add_argument("--nanodet", type=Path)
    parser.add_argument("--images", type=int, help="Only so many test images, spread evenly.")
    parser.add_argument("--training-images", type=int, default=1000)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--keep", type=Path, help="Folder for stores and statistics, which are dropped otherwise.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as dropped:
        folder = arguments.keep or Path(dropped)
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("yolox", "nanodet"):
            if (model := getattr(arguments, kind)) is not None:
                measured = measure(kind, model, arguments.data, arguments.images, arguments.training_images, folder)
                known = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
                arguments.output.write_text(json.dumps(known | {kind: measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
