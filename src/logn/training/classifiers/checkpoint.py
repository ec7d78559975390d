"""The image classifier that a run trained, read back from its checkpoint."""

from __future__ import annotations

import os

from logn.training.classifiers.models import Classifier, build_classifier
from logn.training.classifiers.scaled_classifier import ScaledLinear
from logn.training.classifiers.settings import ClassifierSettings
from logn.training.engine.checkpoint import read_checkpoint, restore_weights


def load_classifier(path: str | os.PathLike[str], *, num_classes: int | None = None) -> Classifier:
    """Build the image classifier that a run trained, in evaluation mode.

    Scales that were learnt for the classes (LWS) are in the weights of its class layer, which is an ordinary one.

    Args:
        path: Folder of the run, or its checkpoint file.
        num_classes: How many classes the data has that the classifier is for; another number is refused.
    """
    checkpoint = read_checkpoint(path, ClassifierSettings, num_classes=num_classes)
    model = build_classifier(checkpoint.settings)
    restore_weights(model, checkpoint)
    if isinstance(model.cls_score, ScaledLinear):
        model.cls_score = model.cls_score.merged()
    model.class_names = checkpoint.class_names
    model.image_counts = tuple(checkpoint.extra["image_counts"])
    model.data_options = checkpoint.extra["data"]
    return model.eval()
