"""The callback in a real fit of Lightning: the corrected checkpoint is the map of the best one, both are logged."""

from __future__ import annotations

import csv
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from logn.errors import InputError, LogNWarning

lightning = pytest.importorskip("lightning.pytorch", reason="`make test-engines` has Lightning")
CLASSES = 5


class Classifier(lightning.LightningModule):
    """Its best epoch is the first, so that the best checkpoint is not the last."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, CLASSES))

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, index):
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self(images), labels))
        self.log("late", float(self.trainer.current_epoch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def loader(seed, count=64):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor([40.0, 12.0, 4.0, 2.0, 1.0]), count, replacement=True, generator=generator)
    images = torch.rand(count, 3, 4, 4, generator=generator)
    images[:, 0, 0, :] += labels[:, None] / CLASSES
    return DataLoader(TensorDataset(images, labels), batch_size=16)


@pytest.fixture
def fit(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    from logn.callbacks.lightning import LogNCallback

    def run(**options):
        torch.manual_seed(0)
        callback, module = LogNCallback(**options), Classifier()
        best = ModelCheckpoint(tmp_path / "best", monitor="late", mode="min")
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=CSVLogger(tmp_path, name="log", version=""),
            callbacks=[callback, best],
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
        )
        trainer.fit(module, loader(0), loader(1))
        return SimpleNamespace(callback=callback, module=module, trainer=trainer, best=best.best_model_path)

    return run


def test_the_corrected_checkpoint_is_the_map_of_the_best(fit):
    done = fit(method="logn")
    assert done.callback.output.name == done.best.rpartition("/")[2].replace(".ckpt", "-corrected.ckpt")
    (affine,) = done.callback.folded.maps
    images = next(iter(loader(2)))[0]
    best, corrected = (Classifier.load_from_checkpoint(path) for path in (done.best, done.callback.output))
    with torch.inference_mode():
        old, new, last = (model.cpu()(images).numpy().astype(np.float64) for model in (best, corrected, done.module))
    np.testing.assert_allclose(new, affine(old), atol=1e-5)
    assert np.abs(new - old).max() > 0.01
    assert np.abs(last - old).max() > 0.01  # the module of the fit is the last one still, not the best


def test_the_statistics_are_those_of_the_training_loader(fit):
    import logn

    done = fit(method="logn")
    best = Classifier.load_from_checkpoint(done.best).cpu().eval()
    with logn.record(best, logn.LogitLayer("net.3")) as moments, torch.inference_mode():
        for images, _ in loader(0):
            best(images)
    expected = logn.methods.fit("logn", moments=moments)
    np.testing.assert_allclose(done.callback.folded.maps[0].scale, expected.scale, rtol=1e-5)


def test_metrics_before_and_after_are_in_the_log(fit, tmp_path):
    done = fit(method="logn")
    rows = list(csv.DictReader((tmp_path / "log" / "metrics.csv").read_text().splitlines()))
    (row,) = [row for row in rows if row["before/val_loss"]]
    assert float(row["before/val_loss"]) == pytest.approx(done.callback.before["val_loss"])
    assert float(row["corrected/val_loss"]) == pytest.approx(done.callback.after["val_loss"])
    best = Classifier.load_from_checkpoint(done.best).cpu().eval()
    losses = [nn.functional.cross_entropy(best(images), labels).item() for images, labels in loader(1)]
    assert done.callback.before["val_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert done.callback.after["val_loss"] != done.callback.before["val_loss"]


def test_a_refused_correction_is_told_and_the_fit_ends_well(fit):
    import logn

    with pytest.warns(LogNWarning, match=r"No corrected checkpoint was written: Expected .*no_such_layer"):
        done = fit(layer=logn.LogitLayer("no_such_layer"))
    assert done.trainer.state.status == "finished"
    assert done.callback.output is None


def test_a_fit_without_checkpoints_is_refused_at_its_start(tmp_path):
    from logn.callbacks.lightning import LogNCallback

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[LogNCallback()]
    )
    with pytest.raises(InputError, match="Expected a `ModelCheckpoint` among the callbacks"):
        trainer.fit(Classifier(), loader(0))


def test_several_processes_are_refused_at_the_start():
    from logn.callbacks.lightning import LogNCallback

    trainer = SimpleNamespace(checkpoint_callback=object(), world_size=2)
    with pytest.raises(InputError, match="Expected a fit in one process for `LogNCallback`, but got 2"):
        LogNCallback().on_fit_start(trainer, None)


def test_the_older_package_serves_too(monkeypatch):
    from logn.callbacks import lightning as ours

    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", ModuleType("pytorch_lightning"))
    assert ours._package() == "pytorch_lightning"
