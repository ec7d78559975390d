"""Ten methods, decoded and measured, against hotcoco on ten ready-made result files and the `lvis` package on one.

Run it with `python benchmarks/compare.py` (LVIS size, some minutes, nearly all of them the peers) or with `--images
200`. Times of a shared machine say little, ratios within one run more. `--classes
file.csv` takes real training counts (a column `image_count`) in place of the formula.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logn.data.class_counts import ClassCounts, frequency_groups
from logn.matching.ground_truth import load_ground_truth
from logn.measure.compare import CompareSettings, compare
from logn.measure.comparison import Comparison
from logn.models.proposals import Proposals
from logn.predictions.decoder import decode
from logn.predictions.store import Predictions, PredictionWriter, StoreHeader
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

CLASSES, PROPOSALS, BOXES, NEGATIVES, SIDE = 1203, 300, 12, 12, 640
HOTCOCO, LVIS = "hotcoco, ten result files", "lvis package, one result file"
METHODS = (
    "none",
    "logn",
    "recommended",
    "logn:margin=0",
    "loga",
    "norcal",
    "norcal:gamma=0.3",
    "fracal",
    "iif",
    "temperature:value=1.5",
)


def training_counts(path: str | None) -> np.ndarray:
    """Images of each class: about 28 % up to 10, 38 % up to 100, the rest up to 1,900, as in LVIS; shuffled."""
    if path:
        with open(path, newline="", encoding="utf-8") as file:
            return np.array([float(row["image_count"]) for row in csv.DictReader(file)])
    place = (np.arange(CLASSES) + 0.5) / CLASSES
    counts = np.round(10 ** (0.25 + 2.55 * place + 0.48 * place**6))
    return np.random.default_rng(0).permutation(counts)


def made_image(rng: np.random.Generator, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, Proposals]:
    """Boxes, labels and proposals: logits lean to frequent classes, the background column is the last."""
    share = counts / counts.sum()
    number = max(1, rng.poisson(BOXES))
    present = rng.choice(len(counts), max(1, number // 3), p=share)
    labels = rng.choice(present, number)
    corner = rng.uniform(0, SIDE - 60, (number, 2))
    boxes = np.hstack([corner, corner + np.exp(rng.normal(4, 0.8, (number, 2))).clip(8, 300)]).clip(0, SIDE)
    source = rng.integers(0, number, PROPOSALS)
    near = rng.random(PROPOSALS) < 0.6
    size = np.tile(boxes[source, 2:] - boxes[source, :2], 2)
    proposals = boxes[source] + rng.normal(0, 0.1, (PROPOSALS, 4)) * size
    corner = rng.uniform(0, SIDE - 60, (PROPOSALS, 2))
    proposals[~near] = np.hstack([corner, corner + rng.uniform(10, 200, (PROPOSALS, 2))])[~near]
    proposals = np.sort(proposals.reshape(-1, 2, 2), axis=1).reshape(-1, 4).clip(0, SIDE)
    logits = 1.2 * rng.standard_normal((PROPOSALS, len(counts) + 1), np.float32) - 5.5
    logits[:, :-1] += 0.5 * np.log(share * len(counts))
    logits[:, -1] = rng.normal(5, 1.5, PROPOSALS)
    rows = np.flatnonzero(near)
    logits[rows, labels[source[rows]]] += rng.normal(8, 2, len(rows))
    logits[rows, -1] -= 2
    return boxes, labels, Proposals(proposals.astype(np.float32), logits, height=SIDE, width=SIDE)


def made_split(folder: Path, images: int, counts: np.ndarray) -> tuple[Predictions, Path, ClassMoments]:
    """A store of predictions, the annotations of its images, and the statistics of its logits."""
    groups = frequency_groups(counts)
    categories = [
        {"id": place + 1, "name": f"class {place}", "frequency": str(group), "image_count": int(count)}
        for place, (group, count) in enumerate(zip(groups, counts, strict=True))
    ]
    listed: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    header = StoreHeader(Head(len(counts) + 1, background=-1, activation="softmax"))
    moments = ClassMoments(header.head, sample_rows=1024)
    with PredictionWriter(folder / "store", header) as writer:
        for image in range(1, images + 1):
            rng = np.random.default_rng([7, image])
            boxes, labels, proposals = made_image(rng, counts)
            writer.append(image, proposals)
            moments.update(proposals.logits)
            present = np.unique(labels)
            absent = np.setdiff1d(rng.choice(len(counts), NEGATIVES, replace=False), present)
            unsure = present[rng.random(len(present)) < 0.1]
            listed.append(
                {
                    "id": image,
                    "width": SIDE,
                    "height": SIDE,
                    "neg_category_ids": (absent + 1).tolist(),
                    "not_exhaustive_category_ids": (unsure + 1).tolist(),
                }
            )
            for (left, top, right, bottom), label in zip(boxes.round(2).tolist(), labels.tolist(), strict=True):
                box = [left, top, right - left, bottom - top]
                annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1}
                annotations.append({**annotation, "bbox": box, "area": box[2] * box[3]})
    path = folder / "annotations.json"
    path.write_text(json.dumps({"images": listed, "annotations": annotations, "categories": categories}))
    return Predictions(folder / "store"), path, moments


def write_results(store: Predictions, annotations: Path, path: Path, transform: Any = None) -> None:
    """The detections of one method, by default of the uncorrected model, as a result file."""
    found, truth = decode(store, transform), load_ground_truth(annotations)
    boxes = np.hstack([found.boxes[:, :2], found.boxes[:, 2:] - found.boxes[:, :2]]).astype(float)
    images, categories = truth.image_ids[found.image_index], truth.category_ids[found.labels]
    columns = (images.tolist(), boxes.tolist(), found.scores.tolist(), categories.tolist())
    entries = [
        {"image_id": image, "bbox": box, "score": score, "category_id": category}
        for image, box, score, category in zip(*columns, strict=True)
    ]
    path.write_text(json.dumps(entries))


def run_reference(annotations: Path, results: Path) -> dict[str, float]:
    """What the `lvis` package says of one result file."""
    setattr(np, "float", float)  # noqa: B010 - gone since NumPy 1.24, and the package still asks for it
    from lvis import LVISEval

    logging.disable()
    evaluation = LVISEval(str(annotations), str(results), "bbox")
    evaluation.run()
    return dict(evaluation.get_results())


def run_hotcoco(annotations: Path, results: Path) -> float:
    """What hotcoco says of one result file: AP."""
    import hotcoco

    truth = hotcoco.COCO(str(annotations))
    evaluation = hotcoco.COCOeval(truth, truth.load_res(str(results)), "bbox", lvis_style=True)
    evaluation.evaluate()
    evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    return float(precision[precision > -1].mean())


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock, and seconds of all processors, which other work on the machine disturbs less."""

    wall: float
    processor: float


def timed(run: Callable[[], Any]) -> tuple[Cost, Any]:
    wall, processor = time.perf_counter(), processor_time()
    result = run()
    return Cost(time.perf_counter() - wall, processor_time() - processor), result


def processor_time() -> float:
    """Of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def median(costs: list[Cost]) -> Cost:
    return Cost(statistics.median(cost.wall for cost in costs), statistics.median(cost.processor for cost in costs))


def ratios(costs: dict[str, Cost]) -> dict[str, Any]:
    """What a further method costs, and ten methods against each peer that was run."""
    one, ten = costs["one method"], costs["ten methods"]
    kinds = ("wall", "processor")
    share = {kind: (getattr(ten, kind) - getattr(one, kind)) / 9 / getattr(one, kind) for kind in kinds}
    result: dict[str, Any] = {"further method, share of the first": share}
    for peer in (HOTCOCO, LVIS):
        if peer in costs:
            times = {kind: getattr(ten, kind) / getattr(costs[peer], kind) for kind in kinds}
            result[f"ten methods, times {peer}"] = times
    return result


def run_peers(
    store: Predictions, annotations: Path, comparison: Comparison, results: Path
) -> tuple[dict[str, Cost], dict[str, float]]:
    """The cost of each peer, and the largest difference of a metric to ours."""
    hotcoco: list[Cost] = []
    costs, away = {}, {HOTCOCO: 0.0, LVIS: 0.0}
    for row in comparison.rows:
        write_results(store, annotations, results, row.transform)
        cost, value = timed(lambda: run_hotcoco(annotations, results))
        hotcoco.append(cost)
        away[HOTCOCO] = max(away[HOTCOCO], abs(value - row["AP"]))
        if row.name == "none":
            costs[LVIS], values = timed(lambda: run_reference(annotations, results))
            away[LVIS] = max(abs(values[key] - row[key]) for key in row.values if key in values)
    costs[HOTCOCO] = Cost(sum(cost.wall for cost in hotcoco), sum(cost.processor for cost in hotcoco))
    return costs, away


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--classes", help="a table with the column image_count")
    parser.add_argument("--repeats", type=int, default=3, help="of which the median counts")
    parser.add_argument("--draws", type=int, default=0, help="also time this many bootstrap draws")
    parser.add_argument("--without-reference", action="store_true", help="leave hotcoco and the `lvis` package out")
    arguments = parser.parse_args()
    counts = training_counts(arguments.classes)

    with tempfile.TemporaryDirectory() as name:
        store, annotations, moments = made_split(Path(name), arguments.images, counts)

        def run(methods: tuple[str, ...], draws: int = 0) -> Comparison:
            settings = CompareSettings(num_bootstrap=draws)
            training = ClassCounts(counts, num_images=100_170)
            return compare(store, annotations, methods, settings=settings, moments=moments, counts=training)

        run(METHODS[:1])  # the first run pays for imports and for reading the files from disk
        costs: dict[str, list[Cost]] = {"one method": [], "ten methods": []}
        for _ in range(arguments.repeats):
            costs["one method"].append(timed(lambda: run(METHODS[:1]))[0])
            cost, comparison = timed(lambda: run(METHODS))
            costs["ten methods"].append(cost)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        medians = {key: median(values) for key, values in costs.items()}
        result: dict[str, Any] = {"images": arguments.images, "seconds by step": dict(comparison.seconds)}
        if arguments.draws:
            result[f"seconds for {arguments.draws} draws"] = run(METHODS, arguments.draws).seconds["bootstrap"]
        if not arguments.without_reference:
            peers, away = run_peers(store, annotations, comparison, Path(name) / "results.json")
            medians |= peers
            result["largest difference of a metric"] = away
    result["seconds"] = {key: asdict(cost) for key, cost in medians.items()}
    result |= ratios(medians)
    result["peak memory in MB, before the peers"] = memory
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
