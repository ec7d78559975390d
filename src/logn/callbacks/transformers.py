"""LogNCallback for the Trainer of transformers: where a training ends, a corrected model is put beside the checkpoints.

    trainer.add_callback(LogNCallback(trainer))

The class is made when it is first asked for, since it has to be a callback of transformers', which this package never
needs.
"""

from __future__ import annotations

import copy
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logn.callbacks.end_of_training import SUFFIX, FoldingCallback, before_and_after, correct_in_place, told_not_raised
from logn.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from torch import nn


class CorrectBestModel(FoldingCallback):
    """What LogNCallback does: correct the best model of a training, and log its metrics before and after.

    A copy of the best model (that of the best checkpoint, where the training kept one, else the model as it is at the
    end) runs once over the batches of the training loader, the correction is folded into it, and it is saved as
    `best-corrected` in the trainer's `output_dir`, with the image processor: `from_pretrained` loads it. Both are
    evaluated by `trainer.evaluate`, whose metrics go wherever the trainer reports, as `eval_before_…` and
    `eval_corrected_…`. The trainer's model and its checkpoints stay as they are. Where a correction is refused, a
    warning says why.

    Args:
        trainer: The trainer; a callback does not get to know it by itself.
        dataloader: Batches of training images; by default those of the training loader, augmented as they are there.
        method: As for `logn.methods.fit`; by default as the statistics speak for.
        layer: Where the logits are; found by `logn.locate_logits` by default.
        labels: "federated" or "exhaustive": the labels by which you will measure a detector.
        forward: Runs the model on a batch, `forward(model, batch)`; by default without the labels of the batch.

    Attributes:
        output: The corrected model's folder; None where nothing was written.
        folded: The method, the maps and the recommendation; None before the end of a training.
        before: What `trainer.evaluate` gives for the best model, without the prefix.
        after: The same for the corrected one.
    """

    def __init__(self, trainer: Any, dataloader: Iterable[Any] | None = None, **options: Any) -> None:
        super().__init__(dataloader, **options)
        if not callable(getattr(trainer, "evaluate", None)):
            raise InputError(f"Expected `trainer` to be a Trainer of transformers, but got {type(trainer).__name__}.")
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Refuse before the training what would only be noticed after it."""
        self._forget()
        if args.world_size > 1 or self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled:
            raise InputError(
                "Expected a training in one process, without FSDP and DeepSpeed, for `LogNCallback`; correct the "
                "saved folder after the training with logn.correct."
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Correct the best model."""
        with told_not_raised():
            self._correct(state, Path(args.output_dir), rest)

    def _correct(self, state: Any, folder: Path, rest: dict[str, Any]) -> None:
        model = self._best_model(state)
        self.before = self._evaluated(model, "eval_before")
        loader = rest.get("train_dataloader") if self.dataloader is None else self.dataloader
        if loader is None:
            raise InputError("Expected `dataloader`, batches of training images, since the trainer has none.")
        self.folded = correct_in_place(model, loader, **self.options)
        log = importlib.import_module("transformers.utils.logging").get_logger("transformers.trainer").info
        if self.folded.method is None:
            log(f"LogN: nothing to correct, nothing written. {self.folded.recommendation.finding}")
            return
        self.output = _write(model, rest.get("processing_class"), folder / f"best{SUFFIX}")
        self.after = self._evaluated(model, "eval_corrected")
        log(f"LogN: {self.folded.method}, written to {self.output}. {before_and_after(self.before, self.after)}")

    def _best_model(self, state: Any) -> nn.Module:
        """A copy of it, read from its folder even where the trainer has loaded it: it leaves out renamed weights."""
        trainer = self.trainer
        current: nn.Module = trainer.accelerator.unwrap_model(trainer.model)
        best = state.best_model_checkpoint
        if best is None:
            return copy.deepcopy(current)
        kind: Any = type(current)
        loaded: nn.Module = kind.from_pretrained(best, local_files_only=True, use_safetensors=True)
        return loaded.to(next(current.parameters()).device)

    def _evaluated(self, model: nn.Module, prefix: str) -> dict[str, float]:
        trainer = self.trainer
        if trainer.eval_dataset is None:
            return {}
        own, trainer.model = trainer.model, model
        try:
            metrics = trainer.evaluate(metric_key_prefix=prefix)
        finally:
            trainer.model = own
        return {name.removeprefix(f"{prefix}_"): float(value) for name, value in metrics.items() if name != "epoch"}


def _write(model: Any, processor: Any, output: Path) -> Path:
    """Save, read back, compare, and only then give it its name; the one of an earlier training makes way."""
    from logn.deploy.fold import check_same_weights

    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", suffix=".partial", dir=output.parent) as place:
        written = Path(place) / output.name
        model.save_pretrained(written)
        if processor is not None:
            processor.save_pretrained(written)
        read_back = type(model).from_pretrained(written, local_files_only=True, use_safetensors=True)
        check_same_weights(read_back, model, str(output))
        if output.exists():
            shutil.rmtree(output)
        os.rename(written, output)
    return output


def __getattr__(name: str) -> Any:
    """Make LogNCallback, a CorrectBestModel that is a callback of transformers'."""
    if name != "LogNCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        callback = importlib.import_module("transformers").TrainerCallback
    except ImportError as error:
        raise MissingExtraError("transformers", extra="frameworks") from error
    made = type("LogNCallback", (CorrectBestModel, callback), {"__doc__": CorrectBestModel.__doc__})
    globals()[name] = made
    return made
