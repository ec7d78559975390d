"""A corrected checkpoint at the end of a training: callbacks for Lightning and for the Trainer of transformers.

Copy the one you need. Both correct a copy of the best model with the batches of the training loader, by
`logn.calibrate(fold=True)`, and write it beside the best checkpoint; the trainer and its checkpoints stay as they are.

    trainer = lightning.Trainer(callbacks=[ModelCheckpoint(monitor="val_loss"), lightning_callback()])
    trainer.add_callback(trainer_callback())        # of transformers
"""

import copy
from pathlib import Path
from typing import Any

import torch

import logn


def lightning_callback(method: str = "recommended") -> Any:
    """A Lightning callback that writes `BEST-corrected.ckpt`; `load_from_checkpoint` reads it."""
    from lightning.pytorch import Callback

    class CorrectBest(Callback):
        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            best = Path(trainer.checkpoint_callback.best_model_path)
            checkpoint = torch.load(best, map_location="cpu", weights_only=True)
            model = copy.deepcopy(pl_module)
            model.load_state_dict(checkpoint["state_dict"])
            logn.calibrate(model, trainer.train_dataloader, method=method, fold=True)
            weights = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
            # The state of the optimizer belongs to the old weights.
            kept = {
                name: value for name, value in checkpoint.items() if name not in ("optimizer_states", "lr_schedulers")
            }
            torch.save({**kept, "state_dict": weights}, best.with_name(f"{best.stem}-corrected{best.suffix}"))

    return CorrectBest()


def trainer_callback(method: str = "recommended") -> Any:
    """A callback for the Trainer of transformers that writes `best-corrected` into its `output_dir`."""
    from transformers import TrainerCallback

    class CorrectBest(TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            model = copy.deepcopy(parts["model"])
            if state.best_model_checkpoint is not None:
                model = type(model).from_pretrained(state.best_model_checkpoint, local_files_only=True)
            logn.calibrate(model, parts["train_dataloader"], method=method, fold=True)
            output = Path(args.output_dir) / "best-corrected"
            model.save_pretrained(output)
            if parts.get("processing_class") is not None:
                parts["processing_class"].save_pretrained(output)

    return CorrectBest()
