"""What thresholds per class buy on photographs: chosen on dev images, measured on test images.

    python -m logn_research.evidence.thresholds yolox=yolox_nano.onnx nanodet=nanodet_m.onnx --data coco-lt-256
    python -m logn_research.evidence.thresholds RUNS/yolox-nano/heads/softmax-*-0 --data coco-lt-256 -o heads.json

A model is `PRESET=FILE.onnx` (of COCO's 80 classes) or the folder of a head that `logn_research.strong` trained, which
is measured without and with the recommended correction. The data folder has `dev.json`, `test.json` and the same with
`_exhaustive`. Writes `results/thresholds.json`; `python -m logn_research.pages` fills in the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import logn
from logn.base.arrays import DEFAULT_AT, FloatArray, sigmoid
from logn.base.files import write_text
from logn.methods.affine import ClassAffine
from logn.models.open import detector as open_detector
from logn.predictions.predict import predict
from logn.predictions.store import Predictions
from logn.thresholds.choose import ChosenThresholds, Goal, choose_thresholds, offset_to_meet, read_detections
from logn.thresholds.points import ClassPoint, OperatingPoints
from logn.thresholds.scored_detections import DrawnDetections, ScoredDetections, clipped_logit, measure

RESULTS = Path(__file__).parents[2] / "results" / "thresholds.json"
NAMES = Path(__file__).with_name("coco_classes.txt")
SPLITS = ("dev", "test")
LABELS = {"federated": "", "exhaustive": "_exhaustive"}
GOALS = ("f1", "fppi=1")
METRICS = ("recall", "class-mean recall", "F1", "class-mean F1", "false alarms per image")
# Of each goal, the metrics that a table shows.
SHOWN = {"f1": ("F1", "class-mean F1"), "fppi=1": ("recall", "class-mean recall")}
# Of each metric the value, then those of the draws.
Values = Mapping[str, FloatArray]


def stores_of(model: str, data: Path, work: Path) -> dict[str, Path]:
    """The predictions of dev and test; made where they are not there."""
    preset, _, file = model.partition("=")
    if not file:
        return {split: Path(model) / split for split in SPLITS}
    stores = {split: work / f"{Path(file).stem}-{split}" for split in SPLITS}
    for split, store in stores.items():
        predict(open_detector(file, like=preset, class_names=NAMES), data / f"{split}.json", store, batch=1)
    return stores


def corrections_of(model: str) -> dict[str, ClassAffine | None]:
    """No correction, and for a head the recommended one."""
    if "=" in model:
        return {"none": None}
    moments = logn.ClassMoments.load(Path(model) / "statistics.safetensors")
    return {"none": None, "recommended": logn.recommend(moments).fit(moments)}


def rows_of(model: str, data: Path, work: Path, num_bootstrap: int) -> Iterator[dict[str, Any]]:
    """Measure one model under both kinds of labels.

    Before is the best single threshold for the goal on dev. With false alarms per image as the goal, both sets of
    thresholds move together on test until they meet it there, so that both are compared at the same number.
    """
    name, stores = Path(model.partition("=")[2] or model).stem, stores_of(model, data, work)
    for labels, suffix in LABELS.items():
        uncorrected: dict[str, Values] = {}
        for correction, affine in corrections_of(model).items():
            (dev, how), (test, _) = (
                read_detections(stores[split], data / f"{split}{suffix}.json", affine, allow_missing_classes=True)
                for split in SPLITS
            )
            chosen = {goal: choose_thresholds(dev, Goal.parse(goal), num_bootstrap=100) for goal in GOALS}
            sides = measured(test, chosen, num_bootstrap)
            goals = {}
            for goal, (before, after) in sides.items():
                first = uncorrected.setdefault(goal, before)
                goals[goal] = {
                    "own thresholds": int((chosen[goal].weights > 0).sum()),
                    "before": estimates(before),
                    "after": estimates(after),
                    "change": estimates(after, before),
                }
                if affine is not None:
                    goals[goal]["before, change from none"] = estimates(before, first)
                    goals[goal]["after, change from none"] = estimates(after, first)
                if "=" not in model:
                    goals[goal]["folded"] = folded(how, dev.class_names, chosen[goal], goal, stores)
            yield {"model": name, "labels": labels, "correction": correction, "goals": goals}


def measured(
    test: ScoredDetections, chosen: Mapping[str, ChosenThresholds], num_bootstrap: int
) -> dict[str, tuple[Values, Values]]:
    """By goal the metrics on test with one threshold and with those per class, all over the same draws of images."""
    parts: dict[str, tuple[list[Values], list[Values]]] = {goal: ([], []) for goal in chosen}
    for draws in chain([DrawnDetections.once(test)], DrawnDetections.bootstrap(test, num_bootstrap, 0)):
        for goal, best in chosen.items():
            sides = (np.full_like(best.thresholds, best.common), best.thresholds)
            for part, thresholds in zip(parts[goal], sides, strict=True):
                part.append(_values(draws, thresholds, Goal.parse(goal)))

    def joined(part: list[Values]) -> Values:
        return {name: np.concatenate([values[name] for values in part]) for name in METRICS}

    return {goal: (joined(before), joined(after)) for goal, (before, after) in parts.items()}


def _values(draws: DrawnDetections, thresholds: FloatArray, goal: Goal) -> Values:
    levels = np.repeat(clipped_logit(thresholds)[:, None], draws.size, axis=1)
    if goal.is_joint:
        levels = levels + offset_to_meet(levels, np.ones(levels.shape, bool), draws, goal)
    return measure(draws, sigmoid(levels))


def estimates(values: Values, against: Values | None = None) -> dict[str, list[float]]:
    """Each metric, or its change against others of the same draws, with its 95 % interval."""
    result = {}
    for name in METRICS:
        numbers = values[name] - (0.0 if against is None else against[name])
        ends = np.quantile(numbers[1:], [0.025, 0.975])
        result[name] = [round(float(number), 4) for number in (numbers[0], *ends)]
    return result


def folded(
    how: OperatingPoints, names: Sequence[str], chosen: ChosenThresholds, goal: str, stores: Mapping[str, Path]
) -> list[dict[str, float]]:
    """What one threshold keeps of what the thresholds per class keep: solved on dev, counted on dev and on test."""
    rows = zip(names, chosen.thresholds.tolist(), strict=True)
    points = replace(how, points=tuple(ClassPoint(*row) for row in rows), goal=goal, common=chosen.common)
    shares = []
    for at in (DEFAULT_AT, chosen.common):
        on_dev = points.fold(at, stores["dev"], at_least=0.0, at_output=how.head is not None and how.head.objectness)
        on_test = on_dev.measured(Predictions(stores["test"]))
        shares.append(
            {name: round(value, 4) for name, value in (("at", at), ("dev", on_dev.kept), ("test", on_test.kept))}
        )
    return shares


def results(content: Mapping[str, Any]) -> str:
    """The table of models that were measured without a correction."""
    header = ("model", "labels", "chosen for", "measured", "one threshold", "per class", "change")
    lines = []
    for row in content["rows"]:
        for goal, numbers in row["goals"].items():
            for name in SHOWN[goal]:
                sides = (f"{100 * numbers[side][name][0]:.1f}" for side in ("before", "after"))
                lines.append((row["model"], row["labels"], goal, name, *sides, _change(numbers["change"][name], name)))
    return _table(header, lines, left=4)


def head_results(content: Mapping[str, Any]) -> str:
    """The table of heads without and with the correction, and that of what one threshold keeps."""
    by = ("head", "labels", "chosen for")
    header = (*by, "measured", "one threshold", "per class", "corrected, one threshold", "corrected, per class")
    kept = (*by, "correction", "0.25: dev", "0.25: test", "the common one", "there: dev", "there: test")
    by_head: dict[tuple[str, str], dict[str, Any]] = {}
    for row in content["rows"]:
        by_head.setdefault((row["model"], row["labels"]), {})[row["correction"]] = row["goals"]
    lines, shares = [], []
    for (head, labels), corrections in by_head.items():
        for goal in GOALS:
            plain, corrected = corrections["none"][goal], corrections["recommended"][goal]
            sides = (plain["change"], corrected["before, change from none"], corrected["after, change from none"])
            for name in (*SHOWN[goal], *METRICS[-1:]) if goal == "f1" else SHOWN[goal]:
                shown = "{:.2f}" if name == METRICS[-1] else "{:.1%}"
                first = shown.format(plain["before"][name][0]).removesuffix("%")
                lines.append((head, labels, goal, name, first, *(_change(side[name], name) for side in sides)))
            for correction, numbers in (("none", plain), ("recommended", corrected)):
                cells = [f"{100 * each[split]:.1f}" for each in numbers["folded"] for split in SPLITS]
                cells.insert(2, f"{numbers['folded'][1]['at']:.3f}")
                shares.append((head, labels, goal, correction, *cells))
    return f"{_table(header, lines, left=4)}\n{_table(kept, shares, left=4)}"


def _change(estimate: list[float], name: str) -> str:
    """A change with its interval, in percent unless it is of false alarms."""
    number = "{:+.2f}" if name == METRICS[-1] else "{:+.1%}"
    return f"{number} [{number}, {number}]".format(*estimate).replace("%", "")


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]], left: int) -> str:
    marks = [":--"] * left + ["--:"] * (len(header) - left)
    return f"| {' | '.join(header)} |\n|{'|'.join(marks)}|\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    """Measure the models that are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="PRESET=FILE.onnx, or the folder of a head")
    parser.add_argument("--data", type=Path, required=True, help="folder of dev.json and test.json")
    parser.add_argument("--work", type=Path, default=Path("runs/thresholds"), help="folder of the predictions")
    parser.add_argument("--bootstrap", type=int, default=200)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = []
    for model in arguments.models:
        for row in rows_of(model, arguments.data, arguments.work, arguments.bootstrap):
            rows.append(row)
            print(json.dumps(row), flush=True)
    shown = (
        f"{preset}={Path(file).name}" if file else f"RUNS/{'/'.join(Path(preset).parts[-3:])}"
        for preset, _, file in (model.partition("=") for model in arguments.models)
    )
    output = "" if arguments.output == RESULTS else f" -o {arguments.output.name}"
    command = f"python -m logn_research.evidence.thresholds {' '.join(shown)} --data {arguments.data.name}{output}"
    write_text(arguments.output, json.dumps({"command": command, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
