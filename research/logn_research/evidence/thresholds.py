"""What thresholds per class buy on photographs: chosen on dev images, measured on test images.

    python -m logn_research.evidence.thresholds yolox=yolox_nano.onnx nanodet=nanodet_m.onnx --data coco-lt-256

A model is `PRESET=FILE.onnx` (of COCO's 80 classes); the data folder has `dev.json`, `test.json` and the same with
`_exhaustive`. Writes `results/thresholds.json`; `python -m logn_research.pages` fills in the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from logn.evaluate.models.onnx import OnnxDetector
from logn.evaluate.store.predict import predict
from logn.evaluate.thresholds.choose import Goal, choose_thresholds, offset_to_meet
from logn.evaluate.thresholds.operating_points import read_detections
from logn.evaluate.thresholds.scores import Draws, logit, measure
from logn.files import write_text
from logn.logits.arrays import sigmoid

RESULTS = Path(__file__).parents[2] / "results" / "thresholds.json"
NAMES = Path(__file__).with_name("coco_classes.txt")
LABELS = {"federated": "", "exhaustive": "_exhaustive"}
GOALS = ("f1", "fppi=1")
METRICS = ("recall", "class-mean recall", "F1", "class-mean F1", "false alarms per image")


def store_of(model: str, data: Path, split: str, work: Path) -> Path:
    """The predictions of a split; made where they are not there."""
    preset, _, file = model.partition("=")
    path = work / f"{Path(file).stem}-{split}"
    predict(OnnxDetector(file, like=preset, class_names=NAMES), data / f"{split}.json", path, batch=1)
    return path


def measured(dev: Any, test: Any, goal: Goal, *, num_bootstrap: int) -> dict[str, Any]:
    """The metrics on test, before and after, with 95 % intervals over draws of test images.

    Before is the best single threshold for the goal on dev. With false alarms per image as the goal, both sets of
    thresholds move together on test until they meet it there, so that both are compared at the same number.
    """
    chosen = choose_thresholds(dev, goal, num_bootstrap=100)
    sides = {"before": np.full_like(chosen.thresholds, chosen.common), "after": chosen.thresholds}
    found: dict[str, Any] = {"own thresholds": int((chosen.weights > 0).sum())}
    drawn: dict[str, dict[str, Any]] = {}
    for side, thresholds in sides.items():
        parts = [_values(draws, thresholds, goal) for draws in Draws.bootstrap(test, num_bootstrap, 0)]
        drawn[side] = {name: np.concatenate([part[name] for part in parts]) for name in METRICS}
        values = _values(Draws.once(test), thresholds, goal)
        found[side] = {name: _rounded(values[name][0], drawn[side][name]) for name in METRICS}
    change = {name: drawn["after"][name] - drawn["before"][name] for name in METRICS}
    found["change"] = {
        name: _rounded(found["after"][name][0] - found["before"][name][0], change[name]) for name in METRICS
    }
    return found


def _values(draws: Draws, thresholds: Any, goal: Goal) -> Mapping[str, Any]:
    places = np.repeat(logit(thresholds)[:, None], draws.size, axis=1)
    if goal.is_joint:
        places = places + offset_to_meet(places, np.ones(places.shape, bool), draws, goal)
    return measure(draws, sigmoid(places))


def _rounded(value: float, drawn: Any) -> list[float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return [round(float(number), 4) for number in (value, low, high)]


def results(content: Mapping[str, Any]) -> str:
    """The table of the page."""
    lines = [
        "| model | labels | chosen for | measured | one threshold | per class | change |",
        "|:--|:--|:--|:--|--:|--:|--:|",
    ]
    for row in content["rows"]:
        for goal, found in row["goals"].items():
            shown = ("F1", "class-mean F1") if goal == "f1" else ("recall", "class-mean recall")
            for name in shown:
                before, after = (f"{100 * found[side][name][0]:.1f}" for side in ("before", "after"))
                value, low, high = (100 * number for number in found["change"][name])
                cells = (
                    row["model"],
                    row["labels"],
                    goal,
                    name,
                    before,
                    after,
                    f"{value:+.1f} [{low:+.1f}, {high:+.1f}]",
                )
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the models that are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="PRESET=FILE.onnx")
    parser.add_argument("--data", type=Path, required=True, help="folder of dev.json and test.json")
    parser.add_argument("--work", type=Path, default=Path("runs/thresholds"), help="folder of the predictions")
    parser.add_argument("--bootstrap", type=int, default=200)
    arguments = parser.parse_args()
    rows = []
    for model in arguments.models:
        stores = {split: store_of(model, arguments.data, split, arguments.work) for split in ("dev", "test")}
        for labels, suffix in LABELS.items():
            sides = [
                read_detections(stores[split], arguments.data / f"{split}{suffix}.json", allow_missing_classes=True)
                for split in ("dev", "test")
            ]
            dev, test = (side.scored for side in sides)
            goals = {goal: measured(dev, test, Goal.parse(goal), num_bootstrap=arguments.bootstrap) for goal in GOALS}
            rows.append({"model": Path(model.partition("=")[2]).stem, "labels": labels, "goals": goals})
            print(json.dumps(rows[-1]), flush=True)
    names = " ".join(f"{model.partition('=')[0]}={Path(model.partition('=')[2]).name}" for model in arguments.models)
    command = f"python -m logn_research.evidence.thresholds {names} --data {arguments.data.name}"
    write_text(RESULTS, json.dumps({"command": command, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
