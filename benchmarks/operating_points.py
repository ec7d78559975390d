"""What thresholds per class buy, with and without a correction: chosen on dev, measured on test.

Over the detectors of `when_it_helps.py` (trained into `--root` where they are not there), and over any stores:

    python benchmarks/operating_points.py --root runs/bench
    python benchmarks/operating_points.py --drawn 0 --store 'signs=dev_store,dev.json,test_store,test.json,stats.st'

A source that was measured before is not measured again (`ROOT/operating-points/NAME.json`). Writes
`docs/results/operating-points.json` and the results of `docs/operating-points.md`; `--page` does the latter alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.decode.decoder import decode
from logn.evaluate.detection.task import read_truth
from logn.evaluate.operating.choice import Draws, offset_to_meet
from logn.evaluate.operating.class_levels import logit
from logn.evaluate.operating.measured import measure as measured
from logn.evaluate.operating.operating_points import operating_points
from logn.evaluate.operating.points import OperatingPoints
from logn.evaluate.operating.scored_outcomes import ScoredOutcomes, detection_outcomes
from logn.evaluate.operating.target import Target
from logn.evaluate.store.prediction_store import PredictionStore
from logn.experiments.artifact_cache import ArtifactCache
from logn.files import write_text
from logn.logits.arrays import sigmoid
from logn.statistics.moments import ClassMoments

DOCS = Path(__file__).parent.parent / "docs"
DATA, PAGE = DOCS / "results" / "operating-points.json", DOCS / "operating-points.md"
START, END = "<!-- results -->", "<!-- end of results -->"
#: The uncorrected model and every correction that needs no labels and no counts.
METHODS: Mapping[str, str | None] = {
    "no correction": None,
    "LogN balanced": "logn:balanced",
    "LogN (paper)": "logn",
    "Prior2Posterior": "p2p",
}
#: What is chosen on dev, and what is read off on test. Under a target over all classes the thresholds are moved
#: together, by the same amount in logits, until test just meets it: so all rows are compared at equal precision.
COLUMNS = (
    ("F1", "f1", "F1"),
    ("F1, mean of classes", "f1", "class F1"),
    ("objects found at 1 false alarm per image", "fppi=1", "recall"),
    ("objects found at a precision of 0.8", "total-precision=0.8", "recall"),
)
#: How a correction goes on.
WAYS = {"common": "one threshold", "values": "a threshold per class"}


@dataclass(frozen=True)
class Source:
    """Predictions and labels of dev and test images, and the statistics that corrections are fitted to."""

    name: str
    dev: tuple[Path, Path]
    test: tuple[Path, Path]
    statistics: ClassMoments
    style: str = "lvis"

    @classmethod
    def parse(cls, text: str) -> Source:
        """Read `NAME=DEV_STORE,DEV.json,TEST_STORE,TEST.json,STATISTICS[,coco]`."""
        name, _, rest = text.partition("=")
        dev, dev_labels, test, test_labels, statistics, *style = rest.split(",")
        paths = (Path(dev), Path(dev_labels)), (Path(test), Path(test_labels))
        return cls(name, *paths, ClassMoments.load(statistics), *style)


def drawn_sources(root: Path, seeds: int, iterations: int, jobs: int, *, train: bool) -> Iterable[Source]:
    """The detectors on glyph scenes, those of them that are trained."""
    sys.path.insert(0, str(Path(__file__).parent))
    from when_it_helps import detectors

    cache = ArtifactCache(root, jobs=jobs)
    specs = detectors(range(seeds), iterations)
    for name, failure in (cache.train(specs) if train else {}).items():
        print(f"{name}: {failure}")
    for spec in (spec for spec in specs if cache.is_trained(spec)):
        data = cache.data_folder(spec)
        sides = [(cache.predictions(spec, split), data / f"{split}.json") for split in ("dev", "test")]
        yield Source(spec.name, *sides, cache.statistics(spec))


def measure(source: Source, *, num_bootstrap: int = 100) -> dict[str, Any]:
    """All columns of every method, with one threshold and with one per class."""
    found: dict[str, Any] = {}
    dev, test = (PredictionStore(store) for store, _ in (source.dev, source.test))
    truth = read_truth(test, source.test[1], CompareSettings(style=source.style), masks=False)
    for method, spec in METHODS.items():
        found[method] = {way: {} for way in WAYS}
        outcomes = None
        for target in dict.fromkeys(target for _, target, _ in COLUMNS):
            points = operating_points(
                dev,
                source.dev[1],
                target,
                spec,
                style=source.style,
                moments=source.statistics,
                num_bootstrap=num_bootstrap,
            )
            outcomes = outcomes or detection_outcomes(decode(test, points.correction), truth)
            for title, wanted, metric in COLUMNS:
                if wanted == target:
                    for way, value in _on_test(points, outcomes, Target.parse(target), metric).items():
                        found[method][way][title] = round(value, 5)
    return {"name": source.name, "methods": found}


def _on_test(points: OperatingPoints, test: ScoredOutcomes, target: Target, metric: str) -> dict[str, float]:
    """A metric with the common threshold and with one per class; joint targets are met on test exactly."""
    draws, values = Draws.once(test), {}
    thresholds = {"common": np.full_like(points.thresholds, points.common), "values": points.thresholds}
    for way, chosen in thresholds.items():
        places = logit(chosen)[:, None]
        if target.is_joint:
            places = places + offset_to_meet(places, draws, target)
        values[way] = float(measured(draws, sigmoid(places))[metric][0])
    return values


def measured_once(source: Source, folder: Path) -> dict[str, Any]:
    """What was measured before, or is measured now and kept."""
    path = folder / f"{source.name}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(measure(source), indent=1) + "\n")
    known: dict[str, Any] = json.loads(path.read_text())
    return known


def results(known: Sequence[Mapping[str, Any]]) -> str:
    """The part of the page that the data make."""
    if not known:
        return "Not measured yet: `python benchmarks/operating_points.py` measures it."
    titles = [title for title, *_ in COLUMNS]
    lines = [
        f"{len(known)} detectors, means in points; in brackets the change against one threshold without a",
        "correction, and on how many of the detectors it is a gain. Thresholds were chosen on dev images, all numbers",
        "are of test images. For the last two columns thresholds are moved together until test meets the target.",
        "",
        f"| correction | threshold | {' | '.join(titles)} |",
        f"|:--|:--|{'--:|' * len(titles)}",
    ]
    for method in METHODS:
        for way, words in WAYS.items():
            cells = [_cell(known, method, way, title) for title in titles]
            lines.append(f"| {method} | {words} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Sources: {', '.join(one['name'] for one in known)}."])


def _cell(known: Sequence[Mapping[str, Any]], method: str, way: str, title: str) -> str:
    values, first = (
        100 * np.array([one["methods"][correction][threshold][title] for one in known])
        for correction, threshold in ((method, way), ("no correction", "common"))
    )
    change = values - first
    if (method, way) == ("no correction", "common"):
        return f"{values.mean():.1f}"
    return f"{values.mean():.1f} ({change.mean():+.1f}; {int((change > 0).sum())} of {len(change)})"


def page_with(text: str, part: str) -> str:
    """The page with its results replaced."""
    before, rest = text.split(START)
    return f"{before}{START}\n{part}\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs/bench"), help="folder of detectors and measurements")
    parser.add_argument("--jobs", type=int, default=2, help="detectors trained side by side, one thread each")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=800)
    parser.add_argument("--drawn", type=int, default=1000, help="how many of the drawn detectors, 0 for none")
    parser.add_argument("--trained", action="store_true", help="only detectors that are trained already")
    parser.add_argument(
        "--store", action="append", default=[], help="NAME=DEV,DEV.json,TEST,TEST.json,STATISTICS[,coco]"
    )
    parser.add_argument("--page", action="store_true", help="write the page from the data that are there")
    arguments = parser.parse_args()
    if not arguments.page:
        sources = [Source.parse(text) for text in arguments.store]
        if arguments.drawn:
            drawn = drawn_sources(
                arguments.root, arguments.seeds, arguments.iterations, arguments.jobs, train=not arguments.trained
            )
            sources = [*list(drawn)[: arguments.drawn], *sources]
        every = []
        for source in sources:
            every.append(measured_once(source, arguments.root / "operating-points"))
            print(f"{len(every)} {source.name}", flush=True)
        write_text(DATA, json.dumps(every, indent=1) + "\n")
    known = json.loads(DATA.read_text()) if DATA.exists() else []
    write_text(PAGE, page_with(PAGE.read_text(), results(known)))
    print(f"{len(known)} detectors: {PAGE}")


if __name__ == "__main__":
    main()
