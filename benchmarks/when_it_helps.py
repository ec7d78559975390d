"""When does which form of LogN help? Trains detectors, measures every method on each, writes a page, data and a figure.

    python benchmarks/when_it_helps.py --root runs/bench --jobs 2      # hours; stops and goes on as you like
    python benchmarks/when_it_helps.py --root runs/bench --trained     # only detectors that are trained already
    python benchmarks/when_it_helps.py --from-data                     # the page and the figure from the committed data

24 two-stage detectors, {linear, cosine 20, cosine 10} x {random, RFS} x {families, distinct} x 2 seeds, and one-stage
detectors with sigmoids. Choices are made on dev; all numbers are of test.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from evidence import Evidence, grid, measure
from evidence_figure import draw_evidence
from evidence_page import evidence_page

from logn.experiments.artifact_cache import ArtifactCache
from logn.experiments.detector_spec import DetectorSpec
from logn.files import atomic_path

DOCS = Path(__file__).parent.parent / "docs"
DATA, PAGE, FIGURE = DOCS / "results/when-it-helps.json", DOCS / "when-it-helps.md", DOCS / "images/when-it-helps.png"


def detectors(seeds: Sequence[int], iterations: int) -> list[DetectorSpec]:
    one_stage = [
        DetectorSpec(scenes, model="small-one-stage", loss="focal", seed=seed, iterations=iterations)
        for seed in seeds
        for scenes in ("families", "distinct")
    ]
    return [*grid(seeds, iterations=iterations), *one_stage]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="runs/bench", help="folder of data, detectors and what was measured on them")
    parser.add_argument("--jobs", type=int, default=2, help="detectors trained side by side, one thread each")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=800)
    parser.add_argument("--trained", action="store_true", help="train nothing: take the detectors that are there")
    parser.add_argument("--from-data", action="store_true", help="write page and figure from the committed data")
    arguments = parser.parse_args()
    if not arguments.from_data:
        cache = ArtifactCache(arguments.root, jobs=arguments.jobs)
        specs = detectors(range(arguments.seeds), arguments.iterations)
        if not arguments.trained:
            for name, failure in cache.train(specs).items():
                print(f"{name}: {failure}")
        measured = []
        for spec in (spec for spec in specs if cache.is_trained(spec)):
            measured.append(measure(cache, spec))
            print(f"{len(measured)} {spec.name}", flush=True)
        with atomic_path(DATA) as temporary:
            lines = ",\n".join(json.dumps(asdict(one)) for one in measured)
            Path(temporary).write_text(f"[\n{lines}\n]\n")
    evidence = [Evidence(**one) for one in json.loads(DATA.read_text())]
    draw_evidence(evidence, FIGURE)
    with atomic_path(PAGE) as temporary:
        Path(temporary).write_text(evidence_page(evidence))
    print(f"{len(evidence)} detectors: {PAGE}, {FIGURE}")


if __name__ == "__main__":
    main()
