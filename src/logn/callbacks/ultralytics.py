"""LogNCallback for Ultralytics: at the end of a training, `best-corrected.pt` is written beside `best.pt`.

yolo.add_callback("on_train_end", LogNCallback())
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from logn.correction.correct import Correction, correct
from logn.errors import InputError, MissingExtraError, warn
from logn.methods.recommend import RECOMMENDED


class LogNCallback:
    """Correct the best checkpoint of an Ultralytics training, and log its metrics before and after.

    The best checkpoint runs once over the training images, prepared as for validation and without their labels; what
    `logn.correct` makes of it is written beside it. Both are validated on the validation images of the training, and
    the metrics go to Ultralytics' logger. The checkpoints and the trainer stay as they are. If a correction is refused,
    a warning says why: the training is never lost.

    Args:
        method: As for `logn.correct`.
        max_images: Take at most this many training images, spread evenly.

    Attributes:
        correction: What `logn.correct` found and did; None before the end of a training.
        before: The metrics of the best checkpoint.
        after: Those of the corrected one; empty if there was nothing to correct.

    Example:
        >>> callback = LogNCallback(max_images=2000)
        >>> yolo.add_callback("on_train_end", callback)  # doctest: +SKIP
    """

    def __init__(self, *, method: str = RECOMMENDED, max_images: int | None = None) -> None:
        self.method, self.max_images = method, max_images
        self.correction: Correction | None = None
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}

    def __call__(self, trainer: Any) -> None:
        """Correct the best checkpoint of `trainer`."""
        self.correction, self.before, self.after = None, dict(trainer.metrics or {}), {}
        try:
            self._correct(trainer)
        except (InputError, MissingExtraError) as error:
            warn(f"No corrected checkpoint was written: {error}")

    def _correct(self, trainer: Any) -> None:
        best = Path(trainer.best)
        if not best.is_file():
            raise InputError(f"The training left no `{best}`.")
        output = best.with_name(f"{best.stem}-corrected{best.suffix}")
        if trainer.args.exist_ok:  # `best.pt` of an earlier run was replaced, too
            for stale in (output, *best.parent.glob(f"{output.stem}.*.safetensors")):
                stale.unlink(missing_ok=True)
        device = "cpu" if trainer.device.type == "cpu" else "auto"
        options: dict[str, Any] = {"method": self.method, "max_images": self.max_images, "device": device}
        done = self.correction = correct(best, training_images(trainer), output, trust=True, **options)
        log = importlib.import_module("ultralytics.utils").LOGGER.info
        if done.method is None:
            log(f"LogN: nothing to correct, {output} is a copy. {done.recommendation.finding}")
            return
        validator = trainer.get_validator()  # a new one: other callbacks read the metrics of the trainer's own
        validator.args.plots = False
        self.after = {name: float(value) for name, value in validator(model=output).items() if name != "fitness"}
        both = [name for name in self.before if name in self.after]
        change = ", ".join(f"{name} {self.before[name]:.4g} -> {self.after[name]:.4g}" for name in both)
        log(f"LogN: {done.method} over {done.images:,} training images, written to {output}.")
        log(f"LogN: best.pt -> {output.name}: {change}")


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
        f"{type(dataset).__name__} does not list its image files (`im_files`); correct the best checkpoint with "
        "logn.correct."
    )
