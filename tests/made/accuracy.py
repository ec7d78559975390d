"""The metrics of a classifier's logits, every row counting once."""

from logn.measure.classification.accuracy import PAPER_BOUNDS, classification_truth, metrics_of_outcomes
from logn.measure.classification.rows import open_logits, row_outcomes


def classification_metrics(logits, labels, train_counts=None, *, class_names=None, bounds=PAPER_BOUNDS):
    opened = open_logits(logits)
    truth = classification_truth(
        labels, opened.num_classes, train_counts=train_counts, class_names=class_names, bounds=bounds
    )
    (outcomes,) = row_outcomes(opened, truth.labels)
    return metrics_of_outcomes(outcomes, truth)
