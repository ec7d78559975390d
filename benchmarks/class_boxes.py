"""What `logn predict --class-boxes K` saves and costs: size, detections without a box of their own, AP.

    python benchmarks/class_boxes.py    # made predictions of LVIS size: 1,000 proposals, 1,203 classes
    python benchmarks/class_boxes.py --store predictions -a test.json -s statistics.safetensors --counts train.json

The logits are those of the store, or made. Their boxes are shared by all classes; here each class gets one of its own,
which differs from it by 5 % of its sides (`--spread`), independently of the others: a detection that takes the box of
another class is then off by 7 %. AP is 0 to 100, of the same images with all boxes and with those of K. `--fixed` adds
how many detections of AP-Fixed have no box of their own: the best of each class over all images, as many of so many
images as 10,000 are of LVIS's 19,809; there suppression is that of the shared boxes, which is many times as fast.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import compare as made
import numpy as np

from logn.classes.counts import ClassCounts
from logn.errors import LogNWarning
from logn.evaluate.comparison.method_fitting import FitInputs, map_for_store
from logn.evaluate.decode.borrowed_boxes import count_borrowed
from logn.evaluate.decode.decoder import DecodeSettings, decode_many
from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.fixed_and_pool import FIXED_LIMIT, FIXED_THRESHOLD
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.evaluate.detection.metrics import evaluate_detections
from logn.evaluate.store.format import StoreHeader
from logn.evaluate.store.prediction_store import PredictionStore
from logn.evaluate.store.writer import PredictionWriter
from logn.logits.proposals import Proposals
from logn.statistics.moments import ClassMoments

METHODS = ("none", "logn", "logn:balanced", "loga", "norcal")


def with_class_boxes(store: PredictionStore, folder: Path, kept: int | None, spread: float) -> tuple[float, float]:
    """Write a store in which each class has a box of its own: bytes and milliseconds of processor time per image."""
    source = store.header
    header = StoreHeader(
        num_columns=source.num_columns,
        background=source.background,
        activation=source.activation,
        class_boxes=True,
        dtype=source.dtype,
        class_names=source.class_names,
        category_ids=source.category_ids,
        kept_class_boxes=kept,
    )
    used = 0.0
    with PredictionWriter(folder, header) as writer:
        for image_id, found in zip(store.image_ids.tolist(), store, strict=True):
            rng = np.random.default_rng([3, image_id])
            sides = np.tile(found.boxes[:, 2:] - found.boxes[:, :2], 2)[:, None]
            moved = rng.standard_normal((len(found.boxes), header.num_classes, 4), np.float32) * np.float32(spread)
            boxes = np.sort((found.boxes[:, None] + moved * sides).reshape(-1, 2, 2), axis=1).reshape(moved.shape)
            limits = np.tile(np.array([found.width, found.height], np.float32), 2)
            proposals = Proposals(boxes.clip(0, limits), found.logits, found.height, found.width)
            start = time.process_time()
            writer.append(image_id, proposals)
            used += time.process_time() - start
    size = sum(file.stat().st_size for file in folder.glob("part-*/*.bin"))
    return size / len(store), 1e3 * used / len(store)


def measured(store: PredictionStore, maps: list[Any], truth: Any) -> list[dict[str, float]]:
    """AP of each method, and the share of its detections that have no box of their own, in percent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)  # what it says is what is measured here
        found = decode_many(store, maps, DecodeSettings(), threads=1)
    borrowed = [100 * count_borrowed(store, one) / max(len(one), 1) for one in found]
    values = [100 * evaluate_detections(one, truth)["AP"] for one in found]
    return [{"AP": value, "borrowed": share} for value, share in zip(values, borrowed, strict=True)]


def fixed_detections(store: PredictionStore, maps: list[Any]) -> list[Detections]:
    """What AP-Fixed looks at: the best of each class, as many of these images as of all of LVIS's."""
    limit = max(1, round(FIXED_LIMIT * len(store) / 19_809))
    settings = DecodeSettings(score_threshold=FIXED_THRESHOLD, max_detections=None, max_per_class=limit)
    return decode_many(store, maps, settings, threads=1)


def sources(arguments: argparse.Namespace, folder: Path) -> tuple[PredictionStore, Path, FitInputs]:
    """Predictions whose boxes are shared by all classes, the annotations, and what methods are fitted from."""
    if arguments.store is None:
        made.PROPOSALS = arguments.proposals
        counts = made.training_counts(None)
        store, annotations, moments = made.made_split(folder, arguments.images, counts)
        return store, annotations, FitInputs(moments=moments, counts=ClassCounts(counts, num_images=100_170))
    store = PredictionStore(arguments.store)
    if len(store) > arguments.images:
        store = store.part(np.linspace(0, len(store) - 1, arguments.images).astype(np.intp))
    counts = None if arguments.counts is None else ClassCounts.load(arguments.counts)
    return store, arguments.annotations, FitInputs(moments=ClassMoments.load(arguments.statistics), counts=counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="predictions whose classes share boxes; by default made")
    parser.add_argument("--annotations", "-a", type=Path)
    parser.add_argument("--statistics", "-s", type=Path)
    parser.add_argument("--counts", type=Path)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--proposals", type=int, default=1000, help="of made predictions")
    parser.add_argument("--kept", type=int, nargs="+", default=[5, 10, 20, 40, 80])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--spread", type=float, default=0.05)
    parser.add_argument("--fixed", action="store_true", help="also count what AP-Fixed looks at")
    arguments = parser.parse_args()
    names = arguments.methods.split(",")
    with tempfile.TemporaryDirectory() as place:
        store, annotations, inputs = sources(arguments, Path(place))
        content = json.loads(annotations.read_text())
        chosen = set(store.image_ids.tolist())
        content["images"] = [image for image in content["images"] if image["id"] in chosen]
        content["annotations"] = [one for one in content["annotations"] if one["image_id"] in chosen]
        truth = load_ground_truth(content, num_classes=store.num_classes)
        maps = [map_for_store(name, name, store.header, inputs) for name in names]
        fixed = fixed_detections(store, maps) if arguments.fixed else []
        whole: list[dict[str, float]] = []
        for kept in (None, *arguments.kept):
            folder = Path(place) / f"kept-{kept or 'all'}"
            size, spent = with_class_boxes(store, folder, kept, arguments.spread)
            opened = PredictionStore(folder)
            rows = measured(opened, maps, truth)
            whole = whole or rows
            parts = (
                f"{name} {row['AP']:.2f} ({row['AP'] - all_boxes['AP']:+.3f}; {row['borrowed']:.2g} %)"
                for name, row, all_boxes in zip(names, rows, whole, strict=True)
            )
            print(f"{kept or 'all'}: {size / 1e6:.2f} MB, {spent:.0f} ms to write; " + ", ".join(parts), flush=True)
            shares = (100 * count_borrowed(opened, found) / max(len(found), 1) for found in fixed)
            if fixed:
                lacking = (f"{name} {share:.2g} %" for name, share in zip(names, shares, strict=True))
                print("    AP-Fixed: " + ", ".join(lacking), flush=True)


if __name__ == "__main__":
    main()
