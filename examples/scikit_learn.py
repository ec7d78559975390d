"""Correct scikit-learn classifiers: the code of docs/how-to/scikit-learn.md, on an imbalanced problem made here."""

from __future__ import annotations

# --- six classes: more than half of the rows are of the first, one in seventy of the last
import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, train_test_split

from logn.sklearn import LogitNormalizedClassifier

shares = np.geomspace(50, 1, 6)
X, y = make_classification(
    6000, n_features=12, n_informative=8, n_classes=6, weights=list(shares / shares.sum()), random_state=0
)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.75, stratify=y, random_state=0)

# --- before and after
for classifier in (LogisticRegression(max_iter=1000), GradientBoostingClassifier(n_estimators=30, random_state=0)):
    before = classifier.fit(X_train, y_train).predict(X_test)
    after = LogitNormalizedClassifier(classifier).fit(X_train, y_train).predict(X_test)
    for measure in (balanced_accuracy_score, accuracy_score):
        values = f"{measure(y_test, before):.3f} -> {measure(y_test, after):.3f}"
        print(f"{type(classifier).__name__:26} {measure.__name__:23} {values}")

# --- a classifier that is trained already
trained = LogisticRegression(max_iter=1000).fit(X_train, y_train)
frozen = LogitNormalizedClassifier(FrozenEstimator(trained)).fit(X_train)  # no labels

# --- a class mix, by class
mix = {0: 0.3, 1: 0.2, 2: 0.2, 3: 0.1, 4: 0.1, 5: 0.1}
mixed = LogitNormalizedClassifier(LogisticRegression(max_iter=1000), target=mix, strength=1.0).fit(X_train, y_train)

# --- how far to go, by labels
model = LogitNormalizedClassifier(LogisticRegression(max_iter=1000))
search = GridSearchCV(model, {"strength": [0.25, 0.5, 0.75, 1.0]}, scoring="balanced_accuracy", cv=3)
print("best strength:", search.fit(X_train, y_train).best_params_["strength"])
