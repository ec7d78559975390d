"""What thresholds per class buy, with and without a correction: chosen on dev, measured on test.

Over detectors of drawn scenes (trained into `--root` where they are not there), and over any others:

    python -m logn_research.evidence.operating_points --root runs/bench
    … --drawn 0 --store 'GROUP/NAME=dev_store,dev.json,test_store,test.json,stats'
    … --drawn 0 --store 'GROUP/NAME=dev.npy,dev.txt,test.npy,test.txt,stats'

The second form is of a classifier: logits, and lists whose lines end in a label. Labels of a detector are federated,
`,coco` behind the statistics says that they are exhaustive. The page has one table per group. What was measured
before is not measured again (`ROOT/operating-points/`), and what is in the data of other groups stays. Writes
`results/operating-points.json`; `python -m logn_research.pages` fills in the page.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logn.calibrators.method_spec import FitInputs
from logn.evaluate.comparison.method_fitting import map_for_store
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.decode.decoder import DecodeSettings, decode_many
from logn.evaluate.detection.task import read_truth
from logn.evaluate.operating.choice import Draws, offset_to_meet
from logn.evaluate.operating.choose_points import Bootstrap, choose_points
from logn.evaluate.operating.class_levels import logit
from logn.evaluate.operating.classifier_outcomes import classifier_outcomes
from logn.evaluate.operating.measured import measure as measured
from logn.evaluate.operating.scored_outcomes import ScoredOutcomes, detection_outcomes
from logn.evaluate.operating.target import Target
from logn.evaluate.store.store import PredictionStore
from logn.files import write_text
from logn.logits.arrays import sigmoid
from logn.statistics.moments import ClassMoments
from logn_research.experiments.artifact_cache import ArtifactCache
from logn_research.experiments.detector_spec import DetectorSpec

RESULTS = Path(__file__).parents[2] / "results" / "operating-points.json"
#: The uncorrected model and every correction that needs no labels and no counts; the last of each is recommended.
METHODS: Mapping[str, str | None] = {
    "no correction": None,
    "LogN (paper)": "logn",
    "Prior2Posterior": "p2p",
    "recommended": "recommended",
}
CLASSIFIER_METHODS: Mapping[str, str | None] = {
    **dict(itertools.islice(METHODS.items(), 3)),
    "Prior2Posterior, half": "p2p:strength=0.5",
}
#: What is chosen on dev, and what is read off on test. Under a target over all classes the thresholds are moved
#: together, by the same amount in logits, until test just meets it: so all rows are compared at equal precision.
COLUMNS = (
    ("F1", "f1", "F1"),
    ("F1, mean of classes", "f1", "class F1"),
    ("objects found at 1 false alarm per image", "fppi=1", "recall"),
    ("objects found at a precision of 0.8", "total-precision=0.8", "recall"),
)
CLASSIFIER_COLUMNS = (
    *COLUMNS[:2],
    ("rows accepted and right at a precision of 0.98", "total-precision=0.98", "recall"),
)
#: How a correction goes on.
WAYS = {"common": "one threshold", "values": "a threshold per class"}
SCORE_THRESHOLD, DRAWN_GROUP = 1e-4, "glyph scenes, federated labels"


@dataclass(frozen=True)
class Source:
    """Predictions and labels of dev and test images, and the statistics that corrections are fitted to."""

    name: str
    dev: tuple[Path, Path]
    test: tuple[Path, Path]
    statistics: Path
    style: str = "lvis"

    @classmethod
    def parse(cls, text: str) -> Source:
        """Read `GROUP/NAME=DEV,DEV_LABELS,TEST,TEST_LABELS,STATISTICS[,coco]`."""
        name, _, rest = text.partition("=")
        dev, dev_labels, test, test_labels, statistics, *style = rest.split(",")
        paths = (Path(dev), Path(dev_labels)), (Path(test), Path(test_labels))
        return cls(name, *paths, Path(statistics), *style)

    @property
    def is_classifier(self) -> bool:
        """Whether its predictions are rows of logits."""
        return self.dev[0].suffix == ".npy"

    @property
    def methods(self) -> Mapping[str, str | None]:
        """The corrections that are tried."""
        return CLASSIFIER_METHODS if self.is_classifier else METHODS

    def outcomes(self, side: tuple[Path, Path]) -> list[ScoredOutcomes]:
        """What each method finds in one set of images: one pass over the store for all of them."""
        inputs = FitInputs(moments=ClassMoments.load(self.statistics))
        if self.is_classifier:
            labels = np.loadtxt(side[1], usecols=-1, dtype=np.int64)
            return [
                classifier_outcomes(np.load(side[0]), labels, spec, inputs, None, allow_mismatch=False)[0]
                for spec in self.methods.values()
            ]
        store = PredictionStore(side[0])
        truth = read_truth(store, side[1], CompareSettings(style=self.style), masks=False)
        maps = [map_for_store("method", spec, store.header, inputs) for spec in self.methods.values()]
        settings = DecodeSettings(score_threshold=SCORE_THRESHOLD).resolved(store.header)
        found = decode_many(store, maps, settings)
        return [detection_outcomes(of_method, truth, floor=SCORE_THRESHOLD) for of_method in found]


def drawn_sources(root: Path, seeds: int, iterations: int, jobs: int, *, train: bool) -> Iterable[Source]:
    """The detectors on glyph scenes, those of them that are trained."""
    cache = ArtifactCache(root, jobs=jobs)
    specs = [
        DetectorSpec(scenes, classifier=classifier, sampler=sampler, seed=seed, iterations=iterations)
        for seed, scenes, sampler, classifier in itertools.product(
            range(seeds), ("families", "distinct"), ("random", "rfs"), ("linear", "cosine")
        )
    ]
    for name, failure in (cache.train(specs) if train else {}).items():
        print(f"{name}: {failure}")
    for spec in (spec for spec in specs if cache.is_trained(spec)):
        data = cache.data_folder(spec)
        dev, test = ((cache.predictions(spec, split), data / f"{split}.json") for split in ("dev", "test"))
        cache.statistics(spec)  # made where it is not there
        yield Source(f"{DRAWN_GROUP}/{spec.name}", dev, test, cache.model_folder(spec) / "statistics.safetensors")


def measure(source: Source, *, num_bootstrap: int = 100) -> dict[str, Any]:
    """All columns of every method, with one threshold and with one per class."""
    found: dict[str, Any] = {}
    columns = CLASSIFIER_COLUMNS if source.is_classifier else COLUMNS
    sides = zip(source.methods, source.outcomes(source.dev), source.outcomes(source.test), strict=True)
    for method, dev, test in sides:
        found[method] = {way: {} for way in WAYS}
        for target in dict.fromkeys(target for _, target, _ in columns):
            chosen = choose_points(dev, Target.parse(target), Bootstrap(num_bootstrap))
            for title, wanted, metric in columns:
                if wanted == target:
                    for way, thresholds in (("common", chosen.common), ("values", chosen.thresholds)):
                        value = _on_test(thresholds, test, Target.parse(target), metric)
                        found[method][way][title] = round(value, 5)
    return {"name": source.name, "methods": found}


def _on_test(thresholds: Any, test: ScoredOutcomes, target: Target, metric: str) -> float:
    """A metric with thresholds that were chosen on dev; joint targets are met on test exactly."""
    draws = Draws.once(test)
    places = logit(np.broadcast_to(thresholds, test.num_classes))[:, None]
    if target.is_joint:
        places = places + offset_to_meet(places, draws, target)
    return float(measured(draws, sigmoid(places))[metric][0])


def measured_once(source: Source, folder: Path) -> dict[str, Any]:
    """What was measured before, or is measured now and kept."""
    path = folder / f"{source.name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(measure(source), indent=1) + "\n")
    known: dict[str, Any] = json.loads(path.read_text())
    return known


def results(known: Sequence[Mapping[str, Any]]) -> str:
    """The part of the page that the data make."""
    lines = [
        "Means in points; in brackets the change against one threshold without a correction, and on how many of the",
        "models it is a gain. Thresholds were chosen on dev images, all numbers are of test images. In the columns",
        "at a fixed precision or number of false alarms, thresholds are moved together until test meets the target.",
    ]
    for group in dict.fromkeys(_group(one) for one in known):
        members = [one for one in known if _group(one) == group]
        lines += [
            "",
            f"**{group}** ({', '.join(one['name'].rpartition('/')[2] for one in members)}):",
            "",
            *_table(members),
        ]
    return "\n".join(lines) + "\n"


def _group(one: Mapping[str, Any]) -> str:
    return str(one["name"].rpartition("/")[0])


def _table(members: Sequence[Mapping[str, Any]]) -> list[str]:
    methods = members[0]["methods"]
    titles = list(methods["no correction"]["common"])
    lines = [f"| correction | threshold | {' | '.join(titles)} |", f"|:--|:--|{'--:|' * len(titles)}"]
    for method, (way, words) in itertools.product(methods, WAYS.items()):
        cells = [_cell(members, method, way, title) for title in titles]
        lines.append(f"| {method} | {words} | {' | '.join(cells)} |")
    return lines


def _cell(members: Sequence[Mapping[str, Any]], method: str, way: str, title: str) -> str:
    values, first = (
        100 * np.array([one["methods"][correction][threshold][title] for one in members])
        for correction, threshold in ((method, way), ("no correction", "common"))
    )
    change = values - first
    if (method, way) == ("no correction", "common"):
        return f"{values.mean():.1f}"
    return f"{values.mean():.1f} ({change.mean():+.1f}; {int((change > 0).sum())} of {len(change)})"


def main() -> None:
    """Measure the models that are given, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs/bench"), help="folder of detectors and measurements")
    parser.add_argument("--jobs", type=int, default=2, help="detectors trained side by side, one thread each")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=800)
    parser.add_argument("--drawn", type=int, default=1000, help="how many of the drawn detectors, 0 for none")
    parser.add_argument("--trained", action="store_true", help="only detectors that are trained already")
    parser.add_argument(
        "--store", action="append", default=[], help="GROUP/NAME=DEV,LABELS,TEST,LABELS,STATISTICS[,coco]"
    )
    arguments = parser.parse_args()
    sources = [Source.parse(text) for text in arguments.store]
    if arguments.drawn:
        drawn = drawn_sources(
            arguments.root, arguments.seeds, arguments.iterations, arguments.jobs, train=not arguments.trained
        )
        sources = [*list(drawn)[: arguments.drawn], *sources]
    every = {one["name"]: one for one in (json.loads(RESULTS.read_text()) if RESULTS.exists() else [])}
    for source in sources:
        every[source.name] = measured_once(source, arguments.root / "operating-points")
        print(source.name, flush=True)
    write_text(RESULTS, json.dumps(list(every.values()), indent=1) + "\n")


if __name__ == "__main__":
    main()
