"""What moves the best margin, one thing at a time, and how many unlabelled images are enough."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from margin_landscape import MarginForm, further_forms, margin_forms, measure_maps

from logn.datasets.federated_labels import federate
from logn.evaluate.decode.decoder import DecodeSettings, decode_many
from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.ground_truth import GroundTruth, load_ground_truth
from logn.evaluate.detection.metrics import evaluate_detections
from logn.evaluate.store.detector_statistics import collect_detector_statistics
from logn.evaluate.store.prediction_store import PredictionStore
from logn.experiments.artifact_cache import ArtifactCache
from logn.experiments.detector_spec import DetectorSpec
from logn.files import write_text
from logn.logits.arrays import softmax
from logn.statistics.moments import ClassMoments

FORMS = ("none", "prior")
SHIFTS = (-8, -6, -4, -3, -2, -1, 0, 1)
#: Images on which the absence of a class is verified; "all" is exhaustive.
NEGATIVES = (0, 8, 32, 128)
DECODING = {
    "as ever": DecodeSettings(),
    "threshold 1e-7": DecodeSettings(score_threshold=1e-7),
    "threshold 0.01": DecodeSettings(score_threshold=0.01),
    "100 detections": DecodeSettings(max_detections=100),
    "1,000 detections": DecodeSettings(max_detections=1000),
    "suppression at 0.7": DecodeSettings(nms_iou=0.7),
}
IMAGES = (25, 50, 100, 200, 400, 800)
#: Labelled dev images that a shift is chosen on, how often each number is drawn, and what is chosen from.
LABELLED, DRAWS, LABELLED_SHIFTS = (25, 50, 100, 200, 400), 10, (-3, -2, -1, 0)


def vary_labels_and_decoding(cache: ArtifactCache, spec: DetectorSpec) -> dict[str, Any]:
    """AP on dev over the shift: by the number of verified absences, and by the settings of the decoder."""
    moments = cache.statistics(spec)
    forms = {**margin_forms(moments), **further_forms(moments)}
    store = PredictionStore(cache.predictions(spec, "dev"))
    exhaustive = json.loads((cache.data_folder(spec) / "dev_exhaustive.json").read_text())
    ids = store.image_ids.tolist()
    truths: dict[str, GroundTruth] = {
        str(count): load_ground_truth(federate(exhaustive, count), image_ids=ids) for count in NEGATIVES
    }
    truths["all"] = load_ground_truth(exhaustive, image_ids=ids)
    federated = load_ground_truth(cache.data_folder(spec) / "dev.json", image_ids=ids)
    labels = _curves(store, truths, forms, moments)
    decoding = {
        name: _curves(store, {"federated": federated, "exhaustive": truths["all"]}, forms, moments, settings)
        for name, settings in DECODING.items()
    }
    return {"labels": labels, "decoding": decoding, "foreground": foreground_shares(store, exhaustive)}


def vary_scenes(cache: ArtifactCache, spec: DetectorSpec) -> dict[str, Any]:
    """AP on dev over the shift, for a detector of scenes that are harder; what was measured before is read."""
    path = cache.model_folder(spec) / "real-scenes.json"
    if not path.exists():
        moments, folder = cache.statistics(spec), cache.data_folder(spec)
        forms = {**margin_forms(moments), **further_forms(moments)}
        store = PredictionStore(cache.predictions(spec, "dev"))
        ids = store.image_ids.tolist()
        files = {"federated": folder / "dev.json", "exhaustive": folder / "dev_exhaustive.json"}
        truths = {name: load_ground_truth(file, image_ids=ids) for name, file in files.items()}
        found = {
            "name": spec.name,
            "kind": "harder scenes",
            "curves": _curves(store, truths, forms, moments),
            "foreground": foreground_shares(store, json.loads(files["exhaustive"].read_text())),
        }
        write_text(path, json.dumps(found, separators=(",", ":")) + "\n")
    known: dict[str, Any] = json.loads(path.read_text())
    return known


def _curves(
    store: PredictionStore,
    truths: Mapping[str, GroundTruth],
    forms: Mapping[str, MarginForm],
    moments: ClassMoments,
    decode: DecodeSettings | None = None,
) -> dict[str, dict[str, list[float]]]:
    maps = {(name, shift): forms[name].at(shift) for name in FORMS for shift in SHIFTS}
    found = measure_maps(store, truths, maps, moments.sample, decode=decode)
    return {
        truth: {
            name: [round(100 * float(found[name, shift].metrics[truth]["AP"]), 3) for shift in SHIFTS] for name in FORMS
        }
        for truth in truths
    }


def foreground_shares(
    store: PredictionStore, exhaustive: Mapping[str, Any], *, regions: int = 64, images: int = 400
) -> dict[str, float]:
    """Share of objects among test proposals and among the regions that training samples, and the shift between them.

    Training shows the classifier `regions` regions an image, up to a quarter of them objects, the annotated boxes
    included; at test time it sees all proposals. A classifier that was calibrated there is too sure of the foreground
    here by the difference of the log odds.
    """
    boxes: dict[int, list[list[float]]] = {}
    for entry in exhaustive["annotations"]:
        x, y, width, height = entry["bbox"]
        boxes.setdefault(entry["image_id"], []).append([x, y, x + width, y + height])
    objects = proposals = sampled_objects = sampled = 0
    mass = 0.0
    for place, image in enumerate(store.image_ids[:images].tolist()):
        found = store[place]
        truth = np.array(boxes.get(image, []), np.float64).reshape(-1, 4)
        hits = _overlaps(found.boxes.astype(np.float64), truth).max(axis=1, initial=0.0) >= 0.5
        objects, proposals = objects + int(hits.sum()), proposals + len(hits)
        mass += float(1.0 - softmax(found.logits.astype(np.float64))[:, 0].sum() / max(len(hits), 1)) * len(hits)
        positive = int(hits[:200].sum()) + len(truth)
        sampled_objects += min(regions // 4, positive)
        sampled += min(regions, 200 + len(truth))
    share, training = objects / proposals, sampled_objects / sampled
    return {
        "test": round(share, 4),
        "training": round(training, 4),
        "model": round(mass / proposals, 4),
        "shift": round(float(_log_odds(share) - _log_odds(training)), 2),
    }


def _overlaps(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[Any]:
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    inner = np.clip(high - low, 0, None).prod(axis=2)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None, :] - inner
    overlaps: npt.NDArray[Any] = inner / np.maximum(union, 1e-9)
    return overlaps


def _log_odds(share: float) -> float:
    return float(np.log(share / (1 - share)))


def number_of_images(cache: ArtifactCache, spec: DetectorSpec) -> dict[str, Any]:
    """AP on test over the number of unlabelled images, for the balanced map and Prior2Posterior."""
    detector, training = cache.model(spec), cache.dataset(spec, "train")
    store, folder = PredictionStore(cache.predictions(spec, "test")), cache.data_folder(spec)
    ids = store.image_ids.tolist()
    truths = {
        name: load_ground_truth(Path(folder / file), image_ids=ids)
        for name, file in (("federated", "test.json"), ("exhaustive", "test_exhaustive.json"))
    }
    result: dict[str, Any] = {}
    for count in (size for size in IMAGES if size <= len(training)):
        moments = collect_detector_statistics(detector, training, max_images=count)
        forms = {**margin_forms(moments), **further_forms(moments)}
        maps = {name: forms[name].centre for name in ("balanced", "prior", "scaled prior")}
        found = measure_maps(store, truths, maps, moments.sample)
        result[str(count)] = {
            name: {labels: round(100 * float(one.metrics[labels]["AP"]), 3) for labels in truths}
            for name, one in found.items()
        }
    return result


def few_labels(cache: ArtifactCache, spec: DetectorSpec) -> dict[str, Any]:
    """By number of labelled dev images and draw: the shift of Prior2Posterior's map with the highest AP on them."""
    moments, folder = cache.statistics(spec), cache.data_folder(spec)
    form = further_forms(moments)["prior"]
    store = PredictionStore(cache.predictions(spec, "dev"))
    decoded = decode_many(store, [form.at(shift) for shift in LABELLED_SHIFTS])
    ids, chosen = store.image_ids, {}
    for labels, file in (("federated", "dev.json"), ("exhaustive", "dev_exhaustive.json")):
        chosen[labels] = {
            str(count): [
                _best_shift(decoded, folder / file, ids, np.random.default_rng(draw).permutation(len(ids))[:count])
                for draw in range(DRAWS)
            ]
            for count in LABELLED
        }
    return chosen


def _best_shift(decoded: Sequence[Detections], file: Path, ids: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> int:
    truth = load_ground_truth(file, image_ids=ids[places].tolist(), only_predicted=True)
    number = np.full(len(ids), -1)
    number[places] = np.arange(len(places))
    values = []
    for found in decoded:
        kept = number[found.image_index] >= 0
        columns = {field.name: getattr(found, field.name)[kept] for field in fields(found)}
        columns["image_index"] = number[columns["image_index"]]
        values.append(evaluate_detections(Detections(**columns), truth)["AP"])
    return LABELLED_SHIFTS[int(np.nanargmax(values))]
