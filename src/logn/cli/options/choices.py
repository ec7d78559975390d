"""The fixed choices that several verbs offer."""

from __future__ import annotations

from enum import StrEnum


class Background(StrEnum):
    """Where the background column is."""

    first = "first"
    last = "last"
    none = "none"


BACKGROUND_INDEX = {Background.first: 0, Background.last: -1, Background.none: None}


class Nonfinite(StrEnum):
    """What to do with NaN and infinity."""

    error = "error"
    skip = "skip"


class Task(StrEnum):
    """What a model does."""

    detection = "detection"
    classification = "classification"


class Activation(StrEnum):
    """What the model applies to the logits."""

    softmax = "softmax"
    sigmoid = "sigmoid"
