"""Decode at LVIS size against a loop over torchvision's batched_nms; what a further method costs; what float16 costs.

Run it with `python benchmarks/decode.py`. Times of a shared machine say little, ratios within one run more: the sides
take turns, and each ratio is that of the medians.

Both sides keep scores above 1e-4, as most evaluations do. At 0, LogN's default, torchvision's loop sorts 361,000 boxes
per image and takes seconds for each, so that only LogN is measured there ("one method, every score").
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torchvision

from logn.base.processes import available_processors
from logn.matching.ground_truth import load_ground_truth
from logn.measure.detection.metrics import evaluate_detections
from logn.methods.affine import ClassAffine
from logn.models.proposals import Proposals
from logn.predictions.decoder import DecodeSettings, decode_many
from logn.predictions.store import Predictions, PredictionWriter, StoreHeader
from logn.statistics.head import Head

CLASSES, PROPOSALS, OBJECTS, SIDE = 1203, 300, 12, 640


def made_image(rng: np.random.Generator, frequency: np.ndarray) -> tuple[Proposals, np.ndarray, np.ndarray]:
    """An image with about 12 objects: its proposals (logits follow the class frequency, background last), the truth."""
    number = max(1, rng.poisson(OBJECTS))
    corner = rng.uniform(0, 500, (number, 2))
    objects = np.hstack([corner, corner + rng.uniform(20, 140, (number, 2))])
    labels = rng.choice(CLASSES, number, p=frequency)
    of_object = rng.integers(0, number, PROPOSALS)
    near = rng.random(PROPOSALS) < 0.6
    boxes = objects[of_object] + rng.normal(0, 8, (PROPOSALS, 4))
    corner = rng.uniform(0, 500, (PROPOSALS, 2))
    boxes[~near] = np.hstack([corner, corner + rng.uniform(10, 200, (PROPOSALS, 2))])[~near]
    boxes = np.sort(boxes.reshape(-1, 2, 2), axis=1).reshape(-1, 4).clip(0, SIDE)
    logits = rng.normal(0, 1.2, (PROPOSALS, CLASSES + 1)) - 7
    logits[:, :-1] += 0.5 * np.log(frequency * CLASSES)
    logits[:, -1] = rng.normal(5, 1.5, PROPOSALS)
    rows = np.flatnonzero(near)
    logits[rows, labels[of_object[rows]]] += rng.normal(8, 2, len(rows))
    logits[rows, -1] -= 2
    proposals = Proposals(boxes.astype(np.float32), logits.astype(np.float32), height=SIDE, width=SIDE)
    return proposals, objects, labels


def made_store(folder: str, images: int, *, dtype: str = "float16", seed: int = 0) -> tuple[Predictions, dict]:
    """A store of made predictions, and the annotations of its images."""
    frequency = 1.0 / np.arange(1, CLASSES + 1) ** 1.1
    frequency /= frequency.sum()
    annotations: list[dict] = []
    with PredictionWriter(
        folder, StoreHeader(Head(CLASSES + 1, background=-1, activation="softmax"), dtype=dtype)
    ) as writer:
        for image in range(1, images + 1):
            proposals, objects, labels = made_image(np.random.default_rng([seed, image]), frequency)
            writer.append(image, proposals)
            for box, label in zip(objects.tolist(), labels.tolist(), strict=True):
                sides = [box[2] - box[0], box[3] - box[1]]
                entry = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1}
                annotations.append(entry | {"bbox": [*box[:2], *sides], "area": sides[0] * sides[1], "iscrowd": 0})
    truth = {
        "images": [{"id": image, "width": SIDE, "height": SIDE} for image in range(1, images + 1)],
        "categories": [{"id": number, "name": str(number)} for number in range(1, CLASSES + 1)],
        "annotations": annotations,
    }
    return Predictions(folder), truth


def precision(images: int, methods: list[ClassAffine | None]) -> dict[str, list[float]]:
    """AP (0..100, COCO protocol) of each method from float16 and from float32 logits of the same images."""
    result = {}
    for dtype in ("float16", "float32"):
        with tempfile.TemporaryDirectory() as folder:
            store, content = made_store(folder, images, dtype=dtype)
            truth = load_ground_truth(content, style="coco", num_classes=CLASSES)
            result[dtype] = [100 * evaluate_detections(found, truth)["AP"] for found in decode_many(store, methods)]
    return result


def made_methods(count: int) -> list[ClassAffine | None]:
    """No change, then maps of which every other scales (as LogN does) and the rest only shift (as the others do)."""
    rng = np.random.default_rng(1)
    methods: list[ClassAffine | None] = [None]
    for number in range(1, count):
        scale = rng.uniform(0.7, 1.4, CLASSES) if number % 2 else np.ones(CLASSES)
        methods.append(
            ClassAffine.over_foreground(scale, rng.normal(0, 1, CLASSES), Head(background=-1), method=f"made {number}")
        )
    return methods


def torchvision_loop(store: Predictions, settings: DecodeSettings) -> int:
    """The steps of torchvision's post-processing, image by image."""
    settings = settings.resolved(store.header)
    total = 0
    labels = torch.arange(CLASSES).expand(PROPOSALS, CLASSES).reshape(-1)
    for proposals in store:
        scores = torch.from_numpy(proposals.logits.astype(np.float32)).softmax(-1)[:, :-1].reshape(-1)
        boxes = torch.from_numpy(proposals.boxes.copy())[:, None].expand(-1, CLASSES, 4).reshape(-1, 4)
        index = torch.where(scores > settings.score_threshold)[0]
        kept_boxes, kept_scores, kept_labels = boxes[index], scores[index], labels[index]
        keep = torchvision.ops.remove_small_boxes(kept_boxes, settings.min_box_size)
        kept_boxes, kept_scores, kept_labels = kept_boxes[keep], kept_scores[keep], kept_labels[keep]
        keep = torchvision.ops.batched_nms(kept_boxes, kept_scores, kept_labels, settings.nms_iou)
        total += len(keep[: settings.max_detections])
    return total


def measure(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--methods", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=available_processors())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings, methods = DecodeSettings(score_threshold=1e-4), made_methods(arguments.methods)
    with tempfile.TemporaryDirectory() as folder:
        store, _ = made_store(folder, arguments.images)
        times: dict[str, list[float]] = {
            "torchvision loop": [],
            "one method": [],
            "all methods": [],
            "one method, every score": [],
        }
        for _ in range(arguments.repeats):
            times["torchvision loop"].append(measure(lambda: torchvision_loop(store, settings)))
            for name, chosen, limits in (
                ("one method", methods[:1], settings),
                ("all methods", methods, settings),
                ("one method, every score", methods[:1], DecodeSettings()),
            ):
                decode = partial(decode_many, store, chosen, limits, threads=arguments.threads)
                times[name].append(measure(decode))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    further = (seconds["all methods"] - seconds["one method"]) / (arguments.methods - 1)
    result = {
        "images": arguments.images,
        "threads": arguments.threads,
        "milliseconds per image": {name: 1e3 * value / arguments.images for name, value in seconds.items()},
        "times as fast as torchvision": seconds["torchvision loop"] / seconds["one method"],
        "further method, share of the first": further / seconds["one method"],
        "peak memory in MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    ap = precision(arguments.images, methods[:3])
    result["AP by precision"] = ap
    result["float16 moves AP by at most"] = max(np.abs(np.subtract(ap["float16"], ap["float32"])))
    print(json.dumps(result, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
