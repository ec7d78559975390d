"""What a training framework calls to correct its model: a callback of Ultralytics and a hook of MMDetection.

Example:
    At the end of a training, write `best-corrected.pt` beside `best.pt`:

    >>> from logn.callbacks import LogNCallback
    >>> yolo.add_callback("on_train_end", LogNCallback())  # doctest: +SKIP

    In a configuration of MMDetection, correct the model before the test loop; `help(logn.callbacks.LogNHook)` lists the
    other arguments:

    >>> custom_hooks = [dict(type="logn.callbacks.LogNHook", num_batches=500)]
"""

from __future__ import annotations

from logn.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
