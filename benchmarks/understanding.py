"""Why the paper's margin wins on LVIS and hurts elsewhere: one thing is varied at a time.

`python benchmarks/understanding.py --root runs/understanding --jobs 2` draws the data, trains the detectors, measures
them and writes `docs/results/understanding.json`, the figure and the tables of `docs/understanding.md`: hours of two
cores. What the root folder holds already is not made again, so a stopped run goes on, and the folder of
another experiment with the same detectors will do. `--only classes` does one axis; `--trained-only` trains nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from margin_landscape import FORMS, MarginForm, margin_forms, measure_maps, plateau
from understanding_axes import ALWAYS, WITH, WITHOUT, Point, axes
from understanding_page import write_figure, write_page

from logn.calibrators.class_affine import ClassAffine
from logn.datasets.federated_labels import federate
from logn.evaluate.comparison.method_fitting import fit_for_store
from logn.evaluate.decode.decoder import DecodeSettings
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.evaluate.store.predict import predict
from logn.evaluate.store.prediction_store import PredictionStore
from logn.experiments.artifact_cache import ArtifactCache
from logn.experiments.detector_spec import ITERATIONS, training_counts
from logn.files import atomic_path
from logn.statistics.moments import ClassMoments

DOCS = Path(__file__).parents[1] / "docs"
METHODS = ("none", "logn", "logn:margin=0", "logn:balanced", "norcal", "loga")
SHIFTS = (-8, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6)
# Low enough that no shift of the sweep loses detections to it; the 300 best of an image are kept in any case.
SWEEP_THRESHOLD = 1e-7
TOLERANCE = 0.005  # AP, between 0 and 1: what a margin may lose and still count as good
RESULTS = "understanding"


def measure(cache: ArtifactCache, point: Point, protocols: Sequence[str]) -> dict[str, Any]:
    """Everything about one detector: methods at the usual threshold, and AP over the shift of each form."""
    path, spec = cache.root / RESULTS / f"{point.subject}.json", point.spec
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if set(protocols) <= set(found["protocols"]) and set(found["curves"]) == set(FORMS):
            return found
    moments = cache.statistics(spec)
    store = PredictionStore(_predictions(cache, point))
    started = time.monotonic()
    exhaustive = json.loads((cache.data_folder(point.source) / "test_exhaustive.json").read_text())
    # Rare and frequent is what the detector was trained on, whatever the images are.
    own = json.loads((cache.data_folder(spec) / "test_exhaustive.json").read_text())
    exhaustive["categories"] = own["categories"]
    images = store.image_ids.tolist()
    truths = {name: load_ground_truth(labels(exhaustive, name), image_ids=images) for name in protocols}
    forms = margin_forms(moments)
    counts = training_counts(cache.dataset(spec, "train"))
    methods = {name: fit_for_store(name, store.header, moments=moments, counts=counts) for name in METHODS}
    swept = {(name, shift): form.at(shift) for name, form in forms.items() for shift in SHIFTS}
    usual = measure_maps(store, truths, methods, moments.sample)
    sweep = measure_maps(store, truths, swept, moments.sample, decode=DecodeSettings(score_threshold=SWEEP_THRESHOLD))
    result = {
        "detector": point.subject,
        "protocols": list(truths),
        "statistics": statistics(moments),
        "methods": {name: asdict(found) for name, found in usual.items()},
        "shifts": list(SHIFTS),
        "curves": {name: [asdict(sweep[name, shift]) for shift in SHIFTS] for name in forms},
        "places": places(forms, methods),
        "seconds": round(time.monotonic() - started, 1),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(_rounded(result), indent=1))
    return _rounded(result)


def _predictions(cache: ArtifactCache, point: Point) -> Path:
    if point.images is None:
        return cache.predictions(point.spec, "test")
    folder = cache.model_folder(point.spec) / f"predictions-{point.images.data_name}"
    with _tell(f"Predicting {point.subject}", None):
        predict(cache.model(point.spec), cache.dataset(point.images, "test"), folder)
    return folder


def labels(exhaustive: dict[str, Any], protocol: str) -> dict[str, Any]:
    """The annotations under a protocol: all boxes, and the verified absences that it names."""
    if protocol not in (WITH, WITHOUT):
        return federate(exhaustive, None if protocol == "all" else int(protocol))
    family = {category["id"]: category["family"] for category in exhaustive["categories"]}
    families: dict[int, set[int]] = {image["id"]: set() for image in exhaustive["images"]}
    for entry in exhaustive["annotations"]:
        families[entry["image_id"]].add(family[entry["category_id"]])
    everything = federate(exhaustive, None)
    kept: dict[int, list[int]] = {image["id"]: [] for image in everything["images"]}
    for category in family:
        fitting = [
            image["id"]
            for image in everything["images"]
            if category in image["neg_category_ids"]
            and (family[category] in families[image["id"]]) == (protocol == WITH)
        ]
        for image in np.random.default_rng((0, category)).permutation(fitting)[:32].tolist():
            kept[image].append(category)
    images = [{**image, "neg_category_ids": kept[image["id"]]} for image in everything["images"]]
    return {**everything, "images": images}


def statistics(moments: ClassMoments) -> dict[str, float]:
    """What the paper tells of its detector: means and stds of the foreground, mean of the background."""
    mean, std = moments.mean[1:], moments.std[1:]
    return {
        **{
            f"{name} of the means": float(of(mean))
            for name, of in (("min", np.min), ("mean", np.mean), ("max", np.max))
        },
        **{f"{name} of the stds": float(of(std)) for name, of in (("min", np.min), ("mean", np.mean), ("max", np.max))},
        "mean of the background": float(moments.mean[0]),
        "std of the background": float(moments.std[0]),
    }


def places(forms: dict[str, MarginForm], methods: dict[str, ClassAffine]) -> dict[str, float]:
    """Where the named margins lie: in logits from the point at which their form keeps the foreground mass."""
    paper = forms["paper"]
    return {
        "logn": paper.shift_of(methods["logn"].settings["margin_value"]),
        "logn:margin=0": paper.shift_of(0.0),
        "logn:balanced": 0.0,
        "margin that keeps the mass": paper.margin,
    }


def summary(points: Sequence[Point], measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The settings with their methods and, for each form, the best margin and how wide it is."""
    rows = []
    there = [point for point in points if point.subject in measured]
    settings = Counter((point.axis, point.spec.seed) for point in there)
    for point in there:
        if settings[point.axis, point.spec.seed] == 1:  # of an axis with one setting nothing can be learnt
            continue
        found, protocol = measured[point.subject], point.negatives
        rows.append(
            {
                "axis": point.axis,
                "label": point.label,
                "seed": point.spec.seed,
                "detector": point.subject,
                "negatives": protocol,
                "methods": {name: _at(method, protocol) for name, method in found["methods"].items()},
                "places": found["places"],
                "statistics": found["statistics"],
                "shifts": found["shifts"],
                "curves": {
                    name: [entry["metrics"][protocol]["AP"] for entry in curve]
                    for name, curve in found["curves"].items()
                },
                "best": {name: _best(found, name, protocol) for name in found["curves"]},
                "exhaustive": {name: method["metrics"]["all"]["AP"] for name, method in found["methods"].items()},
                "best with exhaustive labels": {name: _best(found, name, "all") for name in found["curves"]},
            }
        )
    return {
        "threshold": DecodeSettings().score_threshold,
        "threshold of the sweeps": SWEEP_THRESHOLD,
        "tolerance": TOLERANCE,
        "rows": rows,
    }


def _at(method: dict[str, Any], protocol: str) -> dict[str, float]:
    return {**method["metrics"][protocol], "mass": method["mass"], "detections": method["detections"]}


def _best(found: dict[str, Any], form: str, protocol: str) -> dict[str, float]:
    values = [entry["metrics"][protocol]["AP"] for entry in found["curves"][form]]
    return asdict(plateau(found["shifts"], values, TOLERANCE))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


@contextmanager
def _tell(name: str, total: float | None) -> Iterator[Any]:
    started = time.monotonic()
    print(f"{name} …", file=sys.stderr, flush=True)
    yield lambda amount: None
    print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs/understanding"), help="folder of data and detectors")
    parser.add_argument("--only", metavar="AXIS", help="one axis: negatives, look-alikes, clutter, classes, …")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="of training; 1,203 classes take 2.5 times")
    parser.add_argument("--seeds", type=int, default=2, help="how many times everything is drawn and trained")
    parser.add_argument("--jobs", type=int, default=1, help="detectors trained side by side")
    parser.add_argument("--trained-only", action="store_true", help="measure the detectors that are there")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the page, its figure and its results")
    arguments = parser.parse_args()
    everything = [point for seed in range(arguments.seeds) for point in axes(arguments.iterations, seed)]
    points = [point for point in everything if arguments.only in (None, point.axis)]
    if not points:
        parser.error(f"unknown axis {arguments.only}")
    cache = ArtifactCache(arguments.root, jobs=arguments.jobs, step=_tell)
    if not arguments.trained_only:
        os.nice(10)  # an hour of training should not be in anybody's way
        cache.draw([point.source for point in points])
        for name, sentence in cache.train([point.spec for point in points]).items():
            print(f"{name}: {sentence}", file=sys.stderr)
    measured = {}
    for point in {point.subject: point for point in points}.values():
        there = (cache.data_folder(point.source) / "test_exhaustive.json").exists()
        if not there or not cache.is_trained(point.spec):
            print(f"Not there: {point.subject}", file=sys.stderr)
            continue
        wanted = [*ALWAYS, *(other.negatives for other in points if other.subject == point.subject)]
        with _tell(f"Measuring {point.subject}", None):
            measured[point.subject] = measure(cache, point, list(dict.fromkeys(wanted)))
    results = summary(points, measured)
    if arguments.only is not None:
        print(json.dumps(results, indent=1))
        return
    write_figure(results, arguments.output / "images" / "understanding.png")
    write_page(results, arguments.output / "understanding.md")
    with atomic_path(arguments.output / "results" / "understanding.json") as temporary:
        temporary.write_text(json.dumps(results, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
