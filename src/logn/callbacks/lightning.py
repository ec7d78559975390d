"""LogNCallback for Lightning: where a fit ends, a corrected checkpoint is put beside the best one.

    trainer = Trainer(callbacks=[ModelCheckpoint(monitor="val_loss"), LogNCallback()])

The class is made when it is first asked for, since it has to be a callback of Lightning's, which this package never
needs; `lightning` and the older `pytorch_lightning` both do.
"""

from __future__ import annotations

import copy
import importlib
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logn.callbacks.end_of_training import SUFFIX, FoldingCallback, before_and_after, correct_in_place, told_not_raised
from logn.errors import InputError
from logn.files import atomic_path

if TYPE_CHECKING:
    pass

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class CorrectBestCheckpoint(FoldingCallback):
    """What LogNCallback does: correct the best checkpoint of a fit, and log its metrics before and after.

    A copy of the module gets the weights of the best checkpoint, runs once over the batches of the training loader, and
    the correction is folded into it. The corrected checkpoint is written beside the best one; `load_from_checkpoint`
    reads it, but no training resumes from it. Both are validated on the loaders of the fit, and what `validation_step`
    logs goes to the loggers of the trainer under `before/` and `corrected/`. Module, trainer and checkpoints stay as
    they are. Where a correction is refused, a warning says why.

    Args:
        dataloader: Batches of training images; by default those of the training loader, augmented as they are there.
        method: As for `logn.methods.fit`; by default as the statistics speak for.
        layer: Where the logits are; found by `logn.locate_logits` by default.
        labels: "federated" or "exhaustive": the labels by which you will measure a detector.
        forward: Runs the module on a batch, `forward(module, batch)`; by default `module(images)`.

    Attributes:
        output: The corrected checkpoint; None where nothing was written.
        folded: The method, the maps and the recommendation; None before the end of a fit.
        before: What `validation_step` logs for the best checkpoint.
        after: The same for the corrected one.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse before the training what would only be noticed after it."""
        self._forget()
        if trainer.checkpoint_callback is None:
            raise InputError(
                "Expected a `ModelCheckpoint` among the callbacks, whose best one is corrected, but got none."
            )
        if trainer.world_size > 1:
            raise InputError(
                f"Expected a fit in one process for `LogNCallback`, but got {trainer.world_size}; correct the "
                "checkpoint after the fit with logn.calibrate."
            )

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Correct the best checkpoint."""
        with told_not_raised():
            self._correct(trainer, pl_module)

    def _correct(self, trainer: Any, pl_module: Any) -> None:
        best = Path(trainer.checkpoint_callback.best_model_path)
        if not best.is_file():
            raise InputError("Expected the fit to leave a best checkpoint, but `best_model_path` names no file.")
        checkpoint = _read(best)
        module = copy.deepcopy(pl_module)
        module.load_state_dict(checkpoint["state_dict"])
        device = trainer.strategy.root_device
        module.to(device)
        self.before = _validated(trainer, module)
        loader = trainer.train_dataloader if self.dataloader is None else self.dataloader
        self.folded = correct_in_place(module.to(device), loader, device=device, **self.options)
        say = importlib.import_module(f"{_package()}.utilities.rank_zero").rank_zero_info
        if self.folded.method is None:
            say(f"LogN: nothing to correct, nothing written. {self.folded.recommendation.finding}")
            return
        self.output = _write(module, checkpoint, best)
        self.after = _validated(trainer, module)
        say(f"LogN: {self.folded.method}, written to {self.output}. {before_and_after(self.before, self.after)}")
        metrics = {f"before/{name}": value for name, value in self.before.items()}
        metrics |= {f"corrected/{name}": value for name, value in self.after.items()}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)


def _read(path: Path) -> dict[str, Any]:
    import torch

    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise InputError(
            f"Expected `{path}` to hold tensors and plain values only, but it holds objects of other kinds, such as "
            "hyperparameters that are no numbers or texts; leave them out with save_hyperparameters(ignore=…)."
        ) from error
    return found


def _write(module: Any, checkpoint: dict[str, Any], best: Path) -> Path:
    """The best checkpoint with the corrected weights, without the optimiser's state, which belongs to the old ones."""
    import torch

    from logn.deploy.fold import check_same_weights

    output = best.with_name(f"{best.stem}{SUFFIX}{best.suffix}")
    weights = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    kept = {name: value for name, value in checkpoint.items() if name not in ("optimizer_states", "lr_schedulers")}
    with atomic_path(output) as temporary:
        torch.save({**kept, "state_dict": weights}, temporary)
        written = copy.deepcopy(module)
        written.load_state_dict(_read(temporary)["state_dict"])
        check_same_weights(written, module, str(output))
    return output


def _validated(trainer: Any, module: Any) -> dict[str, float]:
    """What `validation_step` logs, by a trainer of its own: that of the fit is still at it."""
    loaders = trainer.val_dataloaders
    if not loaders:
        return {}
    device = trainer.strategy.root_device
    alone = type(trainer)(
        accelerator={"cuda": "gpu"}.get(device.type, device.type),
        devices=1 if device.index is None else [device.index],
        precision=trainer.precision,
        limit_val_batches=trainer.limit_val_batches,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    results = alone.validate(module, dataloaders=loaders, verbose=False)
    return {name: float(value) for result in results for name, value in result.items()}


def _package() -> str:
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            if error.name not in (package, package.partition(".")[0]):
                raise
        else:
            return package
    raise ImportError("Expected the package `lightning` to be installed: run pip install lightning.")


def __getattr__(name: str) -> Any:
    """Make LogNCallback, a CorrectBestCheckpoint that is a callback of Lightning's."""
    if name != "LogNCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    callback = importlib.import_module(_package()).Callback
    made = type("LogNCallback", (CorrectBestCheckpoint, callback), {"__doc__": CorrectBestCheckpoint.__doc__})
    globals()[name] = made
    return made
