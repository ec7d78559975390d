"""LogNCallback for Ultralytics: where the training of a YOLO ends, `best-corrected.pt` is put beside `best.pt`.

yolo.add_callback("on_train_end", LogNCallback())
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from logn.callbacks.end_of_training import SUFFIX, before_and_after, told_not_raised
from logn.errors import InputError
from logn.evaluate.models.correct import Correction, correct


class LogNCallback:
    """Correct the best checkpoint of an Ultralytics training, and log its metrics before and after.

    The best checkpoint runs once over the training images, prepared as for validation and without their labels; what
    `logn.correct` makes of it is written beside it. Both are validated on the images of the training's own validation,
    and the metrics go to Ultralytics' logger. The checkpoints and the trainer stay as they are. Where a correction is
    refused, a warning says why.

    Args:
        method: As for `logn.correct`; by default as the statistics speak for.
        labels: "federated" or "exhaustive": the labels by which you will measure the detector.
        max_images: Take at most this many training images, spread evenly.
        skip_unreadable: Leave out images that cannot be read.

    Attributes:
        correction: What `logn.correct` found and did; None before the end of a training.
        before: The metrics of the best checkpoint.
        after: Those of the corrected one; empty where nothing was written.
    """

    def __init__(
        self,
        *,
        method: str | None = None,
        labels: str | None = None,
        max_images: int | None = None,
        skip_unreadable: bool = False,
    ) -> None:
        self.options: dict[str, Any] = {
            "method": method,
            "labels": labels,
            "max_images": max_images,
            "skip_unreadable": skip_unreadable,
        }
        self.correction: Correction | None = None
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}

    def __call__(self, trainer: Any) -> None:
        """Correct the best checkpoint of `trainer`."""
        self.correction, self.before, self.after = None, dict(trainer.metrics or {}), {}
        with told_not_raised():
            self._correct(trainer)

    def _correct(self, trainer: Any) -> None:
        best = Path(trainer.best)
        if not best.is_file():
            raise InputError(f"Expected the training to leave `{best}`, but it did not.")
        output = best.with_name(f"{best.stem}{SUFFIX}{best.suffix}")
        if trainer.args.exist_ok:  # then `best.pt` of an earlier run was replaced, too
            for stale in (output, *best.parent.glob(f"{output.stem}.*.safetensors")):
                stale.unlink(missing_ok=True)
        device = "cpu" if trainer.device.type == "cpu" else "auto"
        done = correct(best, training_images(trainer), output, trust=True, device=device, **self.options)
        self.correction = done
        log = importlib.import_module("ultralytics.utils").LOGGER.info
        if done.method is None:
            log(f"LogN: nothing to correct, nothing written. {done.recommendation.finding}")
            return
        validator = trainer.get_validator()  # a new one: other callbacks read the metrics of the trainer's own
        validator.args.plots = False
        self.after = {name: float(value) for name, value in validator(model=output).items() if name != "fitness"}
        log(f"LogN: {done.method} over {done.images:,} training images, written to {output}.")
        log(f"LogN: best.pt -> {output.name}: {before_and_after(self.before, self.after)}")


def training_images(trainer: Any) -> list[Path]:
    """The files of the training images, each once.

    Example:
        >>> from types import SimpleNamespace as Having
        >>> dataset = Having(im_files=["a.jpg", "b.jpg"])
        >>> [path.name for path in training_images(Having(train_loader=Having(dataset=dataset)))]
        ['a.jpg', 'b.jpg']
    """
    dataset = trainer.train_loader.dataset
    if hasattr(dataset, "im_files"):
        return [Path(file) for file in dataset.im_files]
    if hasattr(dataset, "samples"):  # of a classifier
        return [Path(sample[0]) for sample in dataset.samples]
    raise InputError(
        f"Expected a training set that lists its image files (`im_files`), but {type(dataset).__name__} does not; "
        "correct the best checkpoint with logn.correct."
    )
