"""Does it help on photographs, which form, and for whom? Trains, measures every form on dev and test, writes the data.

    python benchmarks/real_images.py --photos coco-lt --weights mobilenet_v2.pth --signs road-signs --root runs/real
    python benchmarks/real_images.py --root runs/real --photos coco-lt --trained     # train nothing more
    python benchmarks/real_images.py --from-data                                     # the page from the committed data

`--photos` is a folder with `train.json`, `dev.json`, `test.json` (LVIS's format, federated), `dev_exhaustive.json` and
`test_exhaustive.json`; `--signs` one with `train.txt`, `dev.txt` and `test.txt` (ImageNet-LT's format). Two models are
trained side by side. What the root folder holds already is not made again, so a stopped run goes on.

The rule by which the recommended form follows from the dev sets was written down before any test set was looked at:
see `real_rule.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from margin_landscape import MapResult, MarginForm, further_forms, margin_forms, measure_maps
from real_images_page import write_figure, write_page
from real_rule import NEED_COUNTS
from real_subjects import LENGTHS, PhotoDetector, drawn_detectors, harder_scenes, photo_detectors, sign_classifiers
from real_why import few_labels, number_of_images, vary_labels_and_decoding, vary_scenes

from logn.calibrators.class_affine import ClassAffine
from logn.errors import LogNWarning
from logn.evaluate.classification.compare import compare_classification
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.comparison import Comparison
from logn.evaluate.comparison.method_fitting import fit_for_store
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.evaluate.store.prediction_store import PredictionStore
from logn.experiments.artifact_cache import ArtifactCache
from logn.experiments.classifier_spec import ClassifierSpec
from logn.experiments.detector_spec import ITERATIONS, DetectorSpec, training_counts
from logn.files import atomic_path
from logn.logits.arrays import foreground_columns, softmax
from logn.statistics.diagnosis import tail_bias
from logn.statistics.moments import ClassMoments

DOCS = Path(__file__).parent.parent / "docs"
DATA = DOCS / "results" / "real-images.json"
SHIFTS = (-8, -6, -4, -3, -2, -1, 0, 1)
#: The forms whose whole landscape is measured on dev, and those that may become the default: these have intervals at
#: the shifts below, and are measured on test.
LANDSCAPES = ("none", "paper", "balanced", "relative std", "prior", "scaled prior", "average")
CANDIDATES = ("none", "balanced", "prior", "scaled prior")
CANDIDATE_SHIFTS = (-3, -2, -1, 0)
PROTOCOLS = {"federated": "{}.json", "exhaustive": "{}_exhaustive.json"}
METRICS = ("AP", "APr", "APc", "APf", "AP50")
#: Beside the forms: what is there by name. The last two need class counts.
METHODS = ("logn", "logn:margin=0", "norcal:gamma=0.6", "loga")
SETTINGS = CompareSettings(num_bootstrap=100, report_images=0)
CLASSIFIER_METHODS = (
    "logn",
    "logn:use_std=false",
    "logn:balanced",
    "p2p",
    "p2p:strength=0.75",
    "p2p:strength=0.5",
    "p2p:strength=0.25",
    "p2p:std_power=0.5",
    "loga",
    "loga:tau=0.5",
)
CLASSIFIER_METRICS = ("balanced", "many", "medium", "few", "top-1", "ECE")


def measure_detector(cache: ArtifactCache, spec: DetectorSpec) -> dict[str, Any]:
    """Every form at every shift, on dev and test, by both protocols; what was measured before is read."""
    path = cache.model_folder(spec) / "real-images.json"
    if path.exists():
        known: dict[str, Any] = json.loads(path.read_text())
        return known
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)  # rare classes in the row sample: it is part of what is measured
        moments = cache.statistics(spec)
        forms = {**margin_forms(moments), **further_forms(moments)}
        counts = training_counts(cache.dataset(spec, "train"))
        found: dict[str, Any] = {
            "name": spec.name,
            "kind": "photographs" if isinstance(spec, PhotoDetector) else "drawn",
            "classifier": spec.classifier,
            "sampler": spec.sampler,
            "iterations": spec.iterations,
            "seed": spec.seed,
            "training_seconds": round(cache.training_seconds(spec)),
            "signs": signs_of(moments),
        }
        for split, swept in (("dev", landscape(forms)), ("test", candidates(forms))):
            store = PredictionStore(cache.predictions(spec, split))
            files = {name: cache.data_folder(spec) / file.format(split) for name, file in PROTOCOLS.items()}
            images = store.image_ids.tolist()
            truths = {name: load_ground_truth(file, image_ids=images) for name, file in files.items()}
            named = {name: fit_for_store(name, store.header, moments=moments, counts=counts) for name in METHODS}
            results = measure_maps(store, truths, {**swept, **named}, moments.sample)
            own = {name: affine for name, affine in named.items() if name not in NEED_COUNTS}
            judged = {**(candidates if split == "dev" else main_candidates)(forms), **own}
            found[split] = {
                protocol: with_intervals(results, protocol, compare(store, file, judged, settings=SETTINGS))
                for protocol, file in files.items()
            }
    found["seconds"] = round(time.monotonic() - started)
    write_json(path, found)
    return found


def landscape(forms: Mapping[str, MarginForm]) -> dict[str, ClassAffine]:
    """The forms at every shift, by names such as "prior -2"."""
    return {f"{name} {shift:+d}": forms[name].at(shift) for name in LANDSCAPES for shift in SHIFTS}


def candidates(forms: Mapping[str, MarginForm]) -> dict[str, ClassAffine]:
    """The maps that may become the default."""
    return {f"{name} {shift:+d}": forms[name].at(shift) for name in CANDIDATES for shift in CANDIDATE_SHIFTS}


def main_candidates(forms: Mapping[str, MarginForm]) -> dict[str, ClassAffine]:
    """Those with intervals on test, too: each takes as long as all the rest of a map."""
    wanted = ("balanced +0", "prior -1", "prior -2")
    return {name: affine for name, affine in candidates(forms).items() if name in wanted}


def with_intervals(results: Mapping[str, MapResult], protocol: str, judged: Comparison) -> dict[str, list[float]]:
    """AP and its groups in points by name of the map; for those that were judged the interval of the change of AP."""
    intervals = {row.name: row.differences["AP"] for row in judged.rows if "AP" in row.differences}
    table = {"none": [100 * float(judged.rows[0][name]) for name in METRICS] + [0.0, 0.0]}
    for name, result in results.items():
        table[name] = [100 * float(result.metrics[protocol][metric]) for metric in METRICS]
        if name in intervals:
            table[name] += [100 * intervals[name].low, 100 * intervals[name].high]
    return {name: [round(value, 3) for value in values] for name, values in table.items()}


def signs_of(moments: ClassMoments) -> dict[str, float]:
    """What is known without labels and might tell where the best margin lies."""
    background = moments.metadata.background
    rows = softmax(moments.sample.astype(np.float64))
    foreground = rows[:, foreground_columns(rows.shape[1], background)]
    mass = foreground.sum(axis=1)
    given = foreground / np.maximum(mass, 1e-12)[:, None]
    entropy = -(given * np.log(np.maximum(given, 1e-12))).sum(axis=1)
    return {
        **{name: round(float(value), 4) for name, value in tail_bias(moments).to_dict().items()},
        "foreground mass": round(float(mass.mean()), 5),
        # How many classes share the foreground of a proposal, where there is something.
        "classes in competition": round(float(np.exp((entropy * mass).sum() / mass.sum())), 3),
        "best score": round(float((foreground.max(axis=1) * mass).sum() / mass.sum()), 4),
        "confident share": round(float((mass > 0.5).mean()), 5),
    }


def look_closer(cache: ArtifactCache, spec: DetectorSpec) -> dict[str, Any]:
    """Labels, decoding and the number of images, varied on the best trained detectors of each kind."""
    longest = max(LENGTHS) if isinstance(spec, PhotoDetector) else ITERATIONS
    if spec.iterations != longest or spec.sampler != "random" or spec.seed:
        return {}
    folder = cache.model_folder(spec)

    def vary() -> dict[str, Any]:
        found: dict[str, Any] = {"why": vary_labels_and_decoding(cache, spec)}
        return found | ({"images": number_of_images(cache, spec)} if spec.classifier == "cosine" else {})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)
        closer = _once(folder / "real-why.json", vary)
        return closer | _once(folder / "real-few.json", lambda: {"few labels": few_labels(cache, spec)})


def _once(path: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured before, or is measured now and kept."""
    if not path.exists():
        write_json(path, measure())
    known: dict[str, Any] = json.loads(path.read_text())
    return known


def measure_classifier(cache: ArtifactCache, spec: ClassifierSpec) -> dict[str, Any]:
    """Every method on dev and test: by class ("balanced") and by image ("top-1", as long-tailed as training)."""
    path = cache.model_folder(spec) / "real-images.json"
    if path.exists():
        known: dict[str, Any] = json.loads(path.read_text())
        return known
    moments, training = cache.statistics(spec), cache.dataset(spec, "train")
    counts = np.bincount(training.labels, minlength=training.num_classes)
    found: dict[str, Any] = {
        "name": spec.name,
        "kind": "signs",
        "classifier": spec.classifier,
        "epochs": spec.problem.epochs,
        "seed": spec.seed,
        "training_seconds": round(cache.training_seconds(spec)),
    }
    for split in ("dev", "test"):
        rows = compare_classification(
            np.load(cache.predictions(spec, split)),
            cache.dataset(spec, split).labels,
            CLASSIFIER_METHODS,
            moments=moments,
            counts=counts,
            settings=CompareSettings(num_bootstrap=0),
        ).rows
        found[split] = {row.name: [round(100 * float(row[name]), 3) for name in CLASSIFIER_METRICS] for row in rows}
    write_json(path, found)
    return found


def write_json(path: Path, content: Any) -> None:
    with atomic_path(path) as temporary:
        Path(temporary).write_text(json.dumps(content, separators=(",", ":")) + "\n")


@contextmanager
def _tell(name: str, total: float | None) -> Iterator[Any]:
    started = time.monotonic()
    print(f"{name} …", file=sys.stderr, flush=True)
    yield lambda amount: None
    print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs/real"), help="folder of models and what was measured")
    parser.add_argument("--photos", type=Path, help="folder of the photographs for detectors")
    parser.add_argument("--weights", type=Path, help="weights of the backbone; default: of an installed package")
    parser.add_argument("--signs", type=Path, help="folder of the photographs for classifiers")
    parser.add_argument("--drawn", action="store_true", help="also detectors of glyph scenes")
    parser.add_argument("--seeds", type=int, default=1, help="of the drawn detectors; classifiers have two")
    parser.add_argument("--jobs", type=int, default=2, help="models trained side by side, one thread each")
    parser.add_argument("--trained", action="store_true", help="train nothing: take the models that are there")
    parser.add_argument("--from-data", action="store_true", help="write page and figure from the committed data")
    arguments = parser.parse_args()
    if not arguments.from_data:
        os.nice(5)  # an hour of training should not be in anybody's way
        cache = ArtifactCache(arguments.root, jobs=arguments.jobs, step=_tell)
        seeds = range(arguments.seeds)
        detectors: list[DetectorSpec] = drawn_detectors(seeds) if arguments.drawn else []
        harder = harder_scenes() if arguments.drawn else []
        if arguments.photos is not None:
            detectors = [*detectors, *photo_detectors(arguments.photos.resolve(), arguments.weights)]
        classifiers = [] if arguments.signs is None else sign_classifiers(arguments.signs.resolve(), (0, 1))
        if not arguments.trained:
            for name, failure in {**cache.train([*detectors, *harder]), **cache.train(classifiers)}.items():
                print(f"{name}: {failure}", file=sys.stderr)
        known = {one["name"]: one for one in json.loads(DATA.read_text())} if DATA.exists() else {}
        for spec in filter(cache.is_trained, detectors):
            with _tell(f"Measuring {spec.name}", None):
                known[spec.name] = {**measure_detector(cache, spec), **look_closer(cache, spec)}
        for scenes in filter(cache.is_trained, harder):
            known[scenes.name] = vary_scenes(cache, scenes)
        for classifier in filter(cache.is_trained, classifiers):
            known[classifier.name] = measure_classifier(cache, classifier)
        with atomic_path(DATA) as temporary:
            lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in known.values())
            Path(temporary).write_text(f"[\n{lines}\n]\n")
    records = json.loads(DATA.read_text())
    write_figure(records, DOCS / "images" / "real-images.png")
    write_page(records, DOCS / "real-images.md")


if __name__ == "__main__":
    main()
