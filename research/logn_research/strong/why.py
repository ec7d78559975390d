"""Why a margin raises AP: what the background's logit knows, and what a limit on detections does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import logn
from logn import ClassAffine, ClassMoments, Predictions
from logn.measure.comparison import CompareSettings
from logn.predictions.detections import LVIS_CAP, DecodeSettings
from logn.statistics.head import Head
from logn.statistics.summary import spearman
from logn_research.strong.heads import _iou

MARGINS = (0.0, -2.0, -4.0, -6.0, -8.0, -12.0)
CAPS = (20, 50, 100, 300, 1000)
NO_LIMIT = 10_000  # detections per image: more than any image has that could still be right


def box_fit(store: Predictions, annotations: Path) -> dict[str, float]:
    """Rank correlations with the overlap of a box and its object, over boxes that overlap one by 0.3 or more."""
    objects: dict[int, list[list[float]]] = {}
    for item in json.loads(annotations.read_text())["annotations"]:
        objects.setdefault(item["image_id"], []).append(item["bbox"])
    overlaps: list[npt.NDArray[Any]] = []
    values: dict[str, list[npt.NDArray[Any]]] = {"background logit": [], "best score": [], "odds to background": []}
    for image_id, proposals in zip(store.image_ids, store, strict=True):
        boxes = np.array(objects.get(int(image_id), []), np.float64).reshape(-1, 4)
        if len(boxes) == 0 or len(proposals.logits) == 0:
            continue
        corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
        best = _iou(np.asarray(proposals.boxes, np.float64), corners).max(axis=1)
        near = best >= 0.3
        logits = np.asarray(proposals.logits, np.float64)[near]
        highest = logits[:, 1:].max(axis=1)
        overlaps.append(best[near])
        values["background logit"].append(-logits[:, 0])
        values["best score"].append(highest - np.logaddexp.reduce(logits, axis=1))
        values["odds to background"].append(highest - logits[:, 0])
    overlap = np.concatenate(overlaps)
    return {name: spearman(np.concatenate(parts), overlap) for name, parts in values.items()}


def margins(num_classes: int) -> dict[str, ClassAffine]:
    """The foreground shifted, nothing else."""
    return {
        f"margin {margin:g}": ClassAffine.over_foreground(
            np.ones(num_classes), np.full(num_classes, margin), Head(background=0), method=""
        )
        for margin in MARGINS
    }


def explain(folder: Path, annotations: Path, split: str = "dev") -> dict[str, Any]:
    """What the page on strong detectors says of one softmax head, from its predictions."""
    moments = ClassMoments.load(folder / "statistics.safetensors")
    store = Predictions(folder / split)
    maps: dict[str, Any] = margins(moments.num_columns - 1)
    half = logn.recommend(moments).fit(moments, force=True)
    found: dict[str, Any] = {"box fit": box_fit(store, annotations), "no limit": {}, "caps": {}}
    unlimited = _average_precision(store, annotations, maps, NO_LIMIT)
    for name, value in _average_precision(store, annotations, maps, LVIS_CAP).items():
        found["no limit"][name] = {"AP": value, "AP without a limit": unlimited[name]}
    for cap in CAPS:
        found["caps"][cap] = _average_precision(store, annotations, {"half": half, "margin -8": maps["margin -8"]}, cap)
    return found


def _average_precision(
    store: Predictions, annotations: Path, maps: dict[str, Any], max_detections: int
) -> dict[str, float]:
    """AP of each method with so many detections an image."""
    decode = DecodeSettings(max_detections=max_detections)
    settings = CompareSettings(num_bootstrap=0, report_images=0, decode=decode)
    return {row.name: float(row["AP"]) for row in logn.compare(store, annotations, maps, settings=settings).rows}
