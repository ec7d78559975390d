"""What LogN does to a logistic regression on thinned digits; the tables of docs/how-to/classification.md."""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import logn
from logn.evaluate.comparison.tables import Table

COLUMNS = ("top-1", "many", "medium", "few", "ECE", "confidence", "NLL")
ON_TRAINING, ON_OTHERS = "confidence kept on training rows", "confidence kept on other rows"
METHODS = ("logn", "logn:balanced", "logn:use_std=false", "logn:use_mean=false", "loga")


def measured(seed: int, pixel: float) -> dict[str, list[float]]:
    """The metrics of every method on one draw of the digits."""
    images, digits = load_digits(return_X_y=True)
    images = images / pixel
    counts = np.geomspace(120, 3, 10).round().astype(int)
    order = [np.random.default_rng(seed).permutation(np.flatnonzero(digits == digit)) for digit in range(10)]
    train = np.concatenate([rows[:count] for rows, count in zip(order, counts, strict=True)])
    test, others = (np.concatenate([rows[part] for rows in order]) for part in (slice(120, 160), slice(160, None)))
    model = LogisticRegression(max_iter=5000).fit(images[train], digits[train])
    logits = {name: model.decision_function(images[rows]) for name, rows in (("train", train), ("others", others))}
    paper = logn.logit_normalization(moments_of(logits["train"]), form="paper")
    methods: dict[str, Any] = {spec: spec for spec in METHODS}
    methods[ON_OTHERS] = logn.keep_confidence(paper, logits["others"])
    methods[ON_TRAINING] = logn.keep_confidence(paper, logits["train"])
    test_logits = model.decision_function(images[test])
    found = logn.compare_classification(
        test_logits, digits[test], methods, train_logits=logits["train"], counts=counts, draws=0
    )
    return {row.name: [row[name] for name in COLUMNS] for row in found.rows}


def moments_of(logits: np.ndarray) -> logn.ClassMoments:
    moments = logn.ClassMoments(logits.shape[1])
    moments.update(logits)
    return moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10)
    draws = parser.parse_args().draws
    warnings.simplefilter("ignore", ConvergenceWarning)
    for pixel, caption in ((16.0, "Pixels from 0 to 1"), (1.0, "Pixels from 0 to 16, which the model overfits")):
        results = [measured(seed, pixel) for seed in range(draws)]
        rows = []
        for name in results[0]:
            mean = np.mean([result[name] for result in results], axis=0)
            rows.append((name, *(f"{100 * value:.1f}" for value in mean[:-1]), f"{mean[-1]:.2f}"))
        print(Table(f"{caption}: means of {draws} draws.", ("method", *COLUMNS), tuple(rows)).to_markdown(), end="\n\n")


if __name__ == "__main__":
    main()
