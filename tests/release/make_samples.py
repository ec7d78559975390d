"""Write one small file of each format, with what a reader must find in it: `python tests/release/make_samples.py`.

They go to `tests/release/samples/VERSION/`. While that version is not released, run this again when a format changes.
Afterwards its files stay as they are, since every later version reads them: the first version that changes a format
sets `VERSION` and writes a folder of its own.
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

import logn
from logn.predictions.classifier import ClassifierPredictions
from logn.predictions.store import PredictionWriter, StoreHeader
from logn.statistics.head import Head

VERSION = "0.4"
SAMPLES = Path(__file__).with_name("samples")
NAMES, GROUPS, COUNTS = ("car", "bus", "tram"), ("f", "c", "r"), np.array([900.0, 90.0, 9.0])
SIDE, IMAGES, PROPOSALS = 64, 6, 5


def made_image(rng):
    """Boxes, classes, and logits with a background column: every box is found, frequent classes have a head start."""
    labels = rng.integers(0, len(NAMES), 2)
    corner = rng.integers(0, SIDE - 24, (2, 2)).astype(np.float32)
    boxes = np.hstack([corner, corner + 20])
    source = rng.integers(0, 2, PROPOSALS)
    logits = rng.normal([2.0, 1.0, 0.0, 1.0], 1, (PROPOSALS, len(NAMES) + 1))
    logits[np.arange(PROPOSALS), labels[source]] += 3
    shaken = boxes[source] + rng.normal(0, 1, (PROPOSALS, 4))
    return boxes, labels, logn.Proposals(shaken.astype(np.float32), logits.astype(np.float32), height=SIDE, width=SIDE)


def labels_of(images):
    """The boxes in LVIS's format, where every class was looked for in every image."""
    categories = [
        {"id": place + 1, "name": name, "frequency": group, "image_count": int(count)}
        for place, (name, group, count) in enumerate(zip(NAMES, GROUPS, COUNTS, strict=True))
    ]
    listed, annotations = [], []
    for number, (boxes, labels, _) in enumerate(images, 1):
        absent = sorted({*range(len(NAMES))} - {*labels.tolist()})
        listed.append({"id": number, "width": SIDE, "height": SIDE, "file_name": f"{number}.jpg"})
        listed[-1] |= {"neg_category_ids": [place + 1 for place in absent], "not_exhaustive_category_ids": []}
        for (left, top, right, bottom), label in zip(boxes.tolist(), labels.tolist(), strict=True):
            box = [left, top, right - left, bottom - top]
            entry = {"id": len(annotations) + 1, "image_id": number, "category_id": label + 1, "bbox": box}
            annotations.append({**entry, "area": box[2] * box[3]})
    return {"images": listed, "annotations": annotations, "categories": categories}


def make(folder):
    """Write the files into an empty folder; paths in them are relative to it."""
    folder.mkdir(parents=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        Path("expected.json").write_text(json.dumps(_make(), indent=1) + "\n", encoding="utf-8")
    finally:
        os.chdir(before)


def _make():
    rng = np.random.default_rng(0)
    images = [made_image(rng) for _ in range(IMAGES)]
    labels = labels_of(images)
    metadata = Head(
        names=(*NAMES, "background"), background=-1, activation="softmax", layer="head", population="all proposals"
    )
    moments = logn.ClassMoments(replace(metadata, num_columns=len(NAMES) + 1), sample_rows=16)
    for _, _, proposals in images:
        moments.update(proposals.logits)
    moments.save("statistics.safetensors")
    affine = logn.methods.fit("logn", moments=moments)
    affine.save("correction.safetensors")

    header = StoreHeader(Head.of_classes(NAMES, len(NAMES) + 1, background=-1, activation="softmax"))
    with PredictionWriter("predictions", header) as writer:
        for number, (_, _, proposals) in enumerate(images, 1):
            writer.append(number, proposals)
    store = logn.PredictionStore("predictions")
    detections = logn.decode(store, affine)

    settings = logn.CompareSettings(num_bootstrap=20, errors=True, report_images=2)
    detector = logn.compare(store, labels, ["logn"], moments=moments, counts=COUNTS, settings=settings)
    detector.save("comparison-detector")
    truth = rng.integers(0, len(NAMES), 30)
    logits = 2 * np.eye(len(NAMES))[truth] + rng.normal(size=(30, len(NAMES))) + [2.0, 1.0, 0.0]
    paths = tuple(f"{NAMES[label]}/{place}.png" for place, label in enumerate(truth))
    known = {"activation": "softmax", "layer": "head", "fingerprint": None, "data": "test"}
    ClassifierPredictions(logits.astype(np.float32), truth, paths, NAMES, known).save("classifier.safetensors")
    classifier = logn.compare(logits, truth, ["logn"], train_logits=logits, counts=COUNTS)
    classifier.save("comparison-classifier")

    points = logn.operating_points(store, labels, num_bootstrap=10)
    points.save("thresholds.json")
    points.save("thresholds.csv")
    for path in (*Path().rglob("comparison.md"), *Path().rglob(".lock")):
        path.unlink()  # which nothing reads
    return {
        "statistics": {"count": moments.count.tolist(), "mean": moments.mean.tolist(), "names": [*NAMES, "background"]},
        "correction": {"method": affine.method, "scale": affine.scale.tolist(), "shift": affine.shift.tolist()},
        "predictions": {"images": len(store), "detections": len(detections), "best": float(detections.scores.max())},
        "classifier": {"top-1": float((logits.argmax(axis=1) == truth).mean()), "first": paths[0]},
        "comparison-detector": {row.name: row["AP"] for row in detector.rows},
        "comparison-classifier": {row.name: row["few"] for row in classifier.rows},
        "thresholds": {point.name: point.threshold for point in points.points},
    }


if __name__ == "__main__":
    shutil.rmtree(SAMPLES / VERSION, ignore_errors=True)
    make(SAMPLES / VERSION)
