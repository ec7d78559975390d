"""From arrays of logits to a corrected classifier: the code of docs/how-to/pytorch.md, on thinned digits."""

from __future__ import annotations

# --- a long-tailed problem: real images of digits, 120 training images of the 0, then fewer, down to 3 of the 9
import json
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import logn

images, digits = load_digits(return_X_y=True)
counts = np.geomspace(120, 3, 10).round().astype(int)
order = [np.random.default_rng(0).permutation(np.flatnonzero(digits == digit)) for digit in range(10)]
train = np.concatenate([rows[:count] for rows, count in zip(order, counts, strict=True)])
test = np.concatenate([rows[120:160] for rows in order])

model = LogisticRegression(max_iter=1000).fit(images[train] / 16, digits[train])
train_logits, test_logits = (model.decision_function(images[rows] / 16) for rows in (train, test))
test_labels = digits[test]

# --- the shortest path
moments = logn.ClassMoments(10)
moments.update(train_logits)
affine = logn.recommend(moments, activation="softmax").fit(moments)

# --- before and after, and other methods, on the same logits
comparison = logn.compare(
    test_logits, test_labels, ["recommended", "logn", "loga"], train_logits=train_logits, counts=counts
)
before, after = comparison["none"], comparison["recommended"]
for name in ("top-1", "many", "medium", "few", "ECE"):
    print(f"{name:8} {100 * before[name]:5.1f} -> {100 * after[name]:5.1f}")
print(comparison)
print(comparison.verdict("recommended"))

# --- the same from files
np.save("test.npy", test_logits)
np.save("test_labels.npy", test_labels)
np.save("train.npy", train_logits)
Path("counts.json").write_text(json.dumps(counts.tolist()))
