"""The recipes of `examples/after_training.py` on the real frameworks: what they write is the map of the best model."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import logn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
RECIPES = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "after_training.py"))
CLASSES = 5


def long_tailed(seed, side, count=48):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor([40.0, 12.0, 4.0, 2.0, 1.0]), count, replacement=True, generator=generator)
    return torch.rand(count, 3, side, side, generator=generator) + labels[:, None, None, None] / CLASSES, labels


def logits(model, images):
    with torch.inference_mode():
        output = model.cpu().eval()(images)
    return getattr(output, "logits", output).numpy().astype(np.float64)


def assert_corrected(best, corrected, last, layer, batches):
    """The corrected model is the paper's map of the best one, which is not the last."""
    with logn.record(best.cpu().eval(), logn.LogitLayer(layer)) as moments, torch.inference_mode():
        for images in batches:
            best(images)
    affine = logn.logit_normalization(moments)
    images = torch.cat(batches)
    old, new = logits(best, images), logits(corrected, images)
    np.testing.assert_allclose(new, affine(old), rtol=0, atol=1e-4)
    assert np.abs(new - old).max() > 0.01
    assert np.abs(logits(last, images) - old).max() > 0.01


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="`make test-engines` has Lightning")
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, CLASSES))

        def forward(self, images):
            return self.net(images)

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch, index):
            self.log("late", float(self.trainer.current_epoch))  # so the best epoch is the first

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*long_tailed(0, 4)), batch_size=16)
    best = ModelCheckpoint(tmp_path, monitor="late", mode="min")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [RECIPES["lightning_callback"]("logn"), best]
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=callbacks, **quiet)
    module = Classifier()
    trainer.fit(module, loader, loader)
    paths = (best.best_model_path, best.best_model_path.replace(".ckpt", "-corrected.ckpt"))
    models = [Classifier.load_from_checkpoint(path) for path in paths]
    assert_corrected(*models, module, "net.3", [images for images, _ in loader])


def test_trainer_of_transformers(tmp_path):
    pytest.importorskip("accelerate", reason="`make test-engines` has what Trainer needs")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=CLASSES, **size)
    model = transformers.ViTForImageClassification(config)
    pixels, labels = long_tailed(0, 8)
    data = [{"pixel_values": image, "labels": label} for image, label in zip(pixels, labels, strict=True)]
    arguments = transformers.TrainingArguments(
        tmp_path / "out",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        learning_rate=1e-3,
        num_train_epochs=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        metric_for_best_model="loss",
        greater_is_better=True,  # so the best epoch is the first
        dataloader_pin_memory=False,
    )
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    sets = {"train_dataset": data, "eval_dataset": data, "processing_class": processor}
    trainer = transformers.Trainer(model, arguments, **sets)
    trainer.add_callback(RECIPES["trainer_callback"]("logn"))
    trainer.train()
    corrected = tmp_path / "out" / "best-corrected"
    assert (corrected / "preprocessor_config.json").is_file()
    paths = (trainer.state.best_model_checkpoint, corrected)
    models = [transformers.ViTForImageClassification.from_pretrained(path, local_files_only=True) for path in paths]
    assert_corrected(*models, model, "classifier", list(pixels.split(8)))
