"""What a correction costs where the deployment is as long-tailed as training, and what the right target gives back.

And how well the class mix is found without labels. On photographs of road signs.

    python -m logn_research.cifar small road-signs runs/signs --network convolutions --steps 2000
    python -m logn_research.cifar keep runs/signs kept/signs
    python -m logn_research.evidence.deployment_prior kept/signs
    python -m logn_research.pages                                           # the tables of the page, from the data
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import logn
from logn.base.arrays import FloatArray
from logn.base.files import write_text
from logn.measure.compare import compare
from logn_research.cifar.table import kept_counts

RESULTS = Path(__file__).parents[2] / "results" / "deployment-prior.json"
DRAWS = 5
# Name on the page, and the specification; all are fitted without a test label.
METHODS = {
    "Prior2Posterior, uniform target": "p2p",
    "Prior2Posterior, half strength": "p2p:strength=0.5",
    "Prior2Posterior, target: training counts": "p2p:target=training",
    "logit adjustment, uniform target": "loga",
    "logit adjustment, half strength": "loga:tau=0.5",
    "LogN, uniform target": "logn",
}


def main() -> None:
    """Measure a kept classifier, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", type=Path, help="what `python -m logn_research.cifar keep` wrote")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    write_text(arguments.output, json.dumps(measure(arguments.kept), indent=1) + "\n")


def measure(folder: Path) -> dict[str, Any]:
    """Everything of one classifier."""
    rows, labels = (np.load(folder / f"test_{name}.npy") for name in ("logits", "labels"))
    rows, labels = rows.astype(np.float64), labels.astype(np.int64)
    moments = logn.ClassMoments.load(folder / "statistics.safetensors")
    counts = kept_counts(folder).astype(np.float64)
    seen = np.bincount(labels, minlength=moments.num_columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", logn.LogNWarning)  # what is to be doubted is measured here
        comparison = compare(rows, labels, METHODS, moments=moments, counts=counts)
        return {
            "classes": moments.num_columns,
            "rows": {"train": int(counts.sum()), "test": len(rows)},
            "most": int(counts.max()),
            "fewest": int(counts.min()),
            "tested_classes": int((seen > 0).sum()),
            "methods": [_row(row) for row in comparison.rows],
            "deployments": {
                name: _deployment(mix, rows, labels, moments, counts) for name, mix in mixes(counts, seen > 0).items()
            },
        }


def _row(row: Any) -> dict[str, Any]:
    wanted = ("top-1", "balanced", "many", "medium", "few", "ECE")
    told = {name: row[name] for name in wanted}
    told["differences"] = {
        name: [row.differences[name].difference, row.differences[name].low, row.differences[name].high]
        for name in ("top-1", "balanced")
        if name in row.differences
    }
    return {"name": row.name, **told}


def mixes(counts: FloatArray, tested: Any) -> dict[str, FloatArray]:
    """Deployments by name; classes without a test image are in none."""
    training = np.where(tested, counts, 0.0)
    mixes = {
        "as training": training,
        "uniform": tested.astype(np.float64),
        "half way": np.sqrt(training),
        "turned round": np.where(tested, 1.0 / np.maximum(counts, 1.0), 0.0),
    }
    return {name: mix / mix.sum() for name, mix in mixes.items()}


def _deployment(mix: FloatArray, rows: FloatArray, labels: Any, moments: Any, counts: FloatArray) -> dict[str, Any]:
    """How well the mix is found, and how many images are right under targets, in draws of test images."""
    training = moments.mean_probability
    off: list[float] = []
    accuracy: dict[str, list[float]] = {}
    for seed in range(DRAWS):
        picked = _draw(mix, labels, seed)
        logits, real = rows[picked], labels[picked]
        share = np.bincount(real, minlength=len(mix)) / len(real)
        estimate = logn.methods.estimate_prior(logits, moments, num_bootstrap=2, activation="softmax")
        off.append(total_variation(estimate.shares, share))
        smoothed = np.maximum(share, 0.5 / len(real))
        maps = {
            "none": None,
            "uniform target": logn.prior2posterior(moments, activation="softmax"),
            "half strength": logn.prior2posterior(moments, activation="softmax", strength=0.5),
            "the mix that EM finds": logn.prior2posterior(moments, activation="softmax", target=estimate.target),
            "the real mix": logn.prior2posterior(moments, activation="softmax", target=smoothed),
        }
        for name, affine in maps.items():
            predicted = (logits if affine is None else affine(logits)).argmax(axis=1)
            accuracy.setdefault(name, []).append(float((predicted == real).mean()))
    return {
        "from_training": total_variation(mix, training / training.sum()),
        "off": float(np.mean(off)),
        "accuracy": {name: float(np.mean(values)) for name, values in accuracy.items()},
        "spread": {name: float(np.std(values, ddof=1)) for name, values in accuracy.items()},
    }


def total_variation(first: FloatArray, second: FloatArray) -> float:
    """Half the sum of the differences: how much of one mix has to move to make the other."""
    return float(np.abs(first - second).sum() / 2)


def _draw(mix: FloatArray, labels: Any, seed: int) -> Any:
    """As many test images as there are, drawn so that their classes have the mix."""
    per_class = np.bincount(labels, minlength=len(mix))
    weight = np.where(per_class[labels] > 0, mix[labels] / per_class[labels], 0.0)
    return np.random.default_rng(seed).choice(len(labels), size=len(labels), p=weight / weight.sum())


def results(measured: dict[str, Any]) -> str:
    """The part of the page that is made of the data."""
    lines = [
        f"{measured['rows']['train']:,} training and {measured['rows']['test']:,} test crops of {measured['classes']} "
        f"classes, {measured['most']:,} down to {measured['fewest']} training crops each; the test crops are as "
        f"long-tailed as the training crops, and {measured['tested_classes']} classes have some. One seed. Per cent; "
        "intervals of 95 % are over test crops, paired, against no correction.",
        "",
        "**Two answers to one question.** Top-1 is what counts where the deployment is like training; the mean over "
        "classes is what counts where all classes matter alike.",
        "",
    ]
    lines += _methods_table(measured)
    lines += [
        "**Is the mix found?** Test crops drawn with other class mixes, five times each. *Off by* is the total "
        "variation between the mix that was found and the real one; *moved* is that between the mean probability over "
        "training images and the real mix: how wrong it would be to assume no change. Rare classes have "
        "few test crops, which are then drawn many times.",
        "",
    ]
    lines += _mix_table(measured)
    lines += ["**Is it worth it?** Crops that are right (top-1) in these deployments, Prior2Posterior by target:", ""]
    lines += _accuracy_table(measured)
    return "\n".join(lines) + "\n"


def _methods_table(content: dict[str, Any]) -> list[str]:
    lines = ["| correction | top-1 | change | mean over classes | change | few-shot |", "|:--|--:|--:|--:|--:|--:|"]
    for row in content["methods"]:
        changes = [_interval(row["differences"].get(metric)) for metric in ("top-1", "balanced")]
        name = "no correction" if row["name"] == "none" else row["name"]
        lines.append(
            f"| {name} | {_percent(row['top-1'])} | {changes[0]} | {_percent(row['balanced'])} | {changes[1]} | "
            f"{_percent(row['few'])} |"
        )
    return [*lines, ""]


def _interval(change: list[float] | None) -> str:
    if change is None or change[0] == change[1] == change[2] == 0:
        return ""
    value, low, high = (f"{100 * number:+.1f}" for number in change)
    return f"{value} [{low}, {high}]"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _mix_table(measured: dict[str, Any]) -> list[str]:
    lines = ["| deployment | moved | off by |", "|:--|--:|--:|"]
    for name, content in measured["deployments"].items():
        lines.append(f"| {name} | {_percent(content['from_training'])} | {_percent(content['off'])} |")
    return [*lines, ""]


def _accuracy_table(content: dict[str, Any]) -> list[str]:
    deployments = content["deployments"]
    targets = list(next(iter(deployments.values()))["accuracy"])
    lines = [f"| deployment | {' | '.join(targets)} |", "|:--|" + "--:|" * len(targets)]
    for name, found in deployments.items():
        best = max(found["accuracy"].values())
        cells = [
            f"**{_percent(found['accuracy'][target])}**"
            if found["accuracy"][target] == best
            else _percent(found["accuracy"][target])
            for target in targets
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
