"""Score thresholds: one per class, chosen on labelled images or given, and folded into the model.

For a sigmoid head a threshold per class is a shift of its logit, `logit(at) - logit(threshold)`: after it, the one
threshold `at` acts as all of them, before NMS, in any engine.

Example:
    >>> import numpy as np
    >>> from logn.thresholds import OperatingPoints
    >>> points = OperatingPoints.from_thresholds({"car": 0.5, "person": 0.2}, at=0.25)
    >>> logits = np.array([[0.1, -1.0], [-0.1, -2.0]])  # scores 0.52, 0.27 and 0.48, 0.12
    >>> (1 / (1 + np.exp(-points.affine()(logits))) >= 0.25).tolist()
    [[True, True], [False, False]]
"""

from __future__ import annotations

from logn.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
