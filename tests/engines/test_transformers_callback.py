"""The callback in a real training of transformers' Trainer: the corrected folder is the map of the best model."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from logn.deploy.attach import is_folded
from logn.errors import InputError, LogNWarning

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("accelerate", reason="`make test-engines` has what Trainer needs")
transformers = pytest.importorskip("transformers")
CLASSES = 5


def small_vit():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=CLASSES, **size)
    return transformers.ViTForImageClassification(config)


def images(seed, count=48):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor([40.0, 12.0, 4.0, 2.0, 1.0]), count, replacement=True, generator=generator)
    pixels = torch.rand(count, 3, 8, 8, generator=generator) + labels[:, None, None, None] / CLASSES
    return [{"pixel_values": image, "labels": label} for image, label in zip(pixels, labels, strict=True)]


@pytest.fixture
def train(tmp_path):
    from logn.callbacks.transformers import LogNCallback

    def run(options=None, **arguments):
        arguments = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2, **arguments}
        model = small_vit()
        trainer = transformers.Trainer(
            model,
            transformers.TrainingArguments(
                tmp_path / "out",
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                learning_rate=0.01,
                per_device_train_batch_size=12,
                dataloader_pin_memory=False,
                **arguments,
            ),
            train_dataset=images(0),
            eval_dataset=images(1),
            processing_class=transformers.ViTImageProcessor(size={"height": 8, "width": 8}),
        )
        callback = LogNCallback(trainer, **({"method": "logn"} if options is None else options))
        trainer.add_callback(callback)
        trainer.train()
        return SimpleNamespace(trainer=trainer, model=model, callback=callback)

    return run


def logits(model):
    pixels = torch.stack([item["pixel_values"] for item in images(2)])
    with torch.inference_mode():
        return model.eval()(pixels).logits.numpy().astype(np.float64)


def of_folder(path):
    return transformers.ViTForImageClassification.from_pretrained(path, local_files_only=True)


@pytest.mark.parametrize("loaded_at_end", [True, False])
def test_the_corrected_folder_is_the_map_of_the_best_model(train, tmp_path, loaded_at_end):
    # The higher the loss the "better": so the best is the first, not the last.
    done = train(metric_for_best_model="loss", greater_is_better=True, load_best_model_at_end=loaded_at_end)
    best = done.trainer.state.best_model_checkpoint
    (affine,) = done.callback.folded.maps
    assert done.callback.output == tmp_path / "out" / "best-corrected"
    old, new = logits(of_folder(best)), logits(of_folder(done.callback.output))
    np.testing.assert_allclose(new, affine(old), rtol=0, atol=1e-4)
    assert np.abs(new - old).max() > 0.01
    assert done.trainer.model is done.model  # and no map was folded into it
    assert not is_folded(done.model.classifier)
    assert (done.callback.output / "preprocessor_config.json").is_file()


def test_without_a_best_checkpoint_the_last_model_is_corrected(train):
    done = train(save_strategy="no", eval_strategy="no")
    (affine,) = done.callback.folded.maps
    np.testing.assert_allclose(
        logits(of_folder(done.callback.output)), affine(logits(done.trainer.model)), rtol=0, atol=1e-4
    )


def test_metrics_before_and_after_are_logged_by_the_trainer(train):
    done = train()
    history = {name: value for entry in done.trainer.state.log_history for name, value in entry.items()}
    assert history["eval_before_loss"] == pytest.approx(done.callback.before["loss"])
    assert history["eval_corrected_loss"] == pytest.approx(done.callback.after["loss"])
    assert history["eval_before_loss"] == pytest.approx(history["eval_loss"])  # the best is the last here
    assert history["eval_corrected_loss"] != history["eval_before_loss"]


def test_what_was_done_is_said_by_the_logger_of_transformers(train):
    said = []
    keep = logging.Handler()
    keep.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("transformers.trainer")
    level = logger.level
    logger.addHandler(keep)
    logger.setLevel(logging.INFO)
    try:
        done = train()
    finally:
        logger.removeHandler(keep)
        logger.setLevel(level)
    (line,) = [text for text in said if text.startswith("LogN: ")]
    assert f"loss {done.callback.before['loss']:.4g} -> {done.callback.after['loss']:.4g}" in line


def test_a_second_training_replaces_the_corrected_folder(train):
    first = train()
    second = train(num_train_epochs=3)
    assert second.callback.output == first.callback.output
    (affine,) = second.callback.folded.maps
    np.testing.assert_allclose(
        logits(of_folder(second.callback.output)), affine(logits(second.trainer.model)), rtol=0, atol=1e-4
    )


def test_a_refused_correction_is_told_and_the_training_ends_well(train):
    import logn

    with pytest.warns(LogNWarning, match="No corrected checkpoint was written: Expected .*no_such_layer"):
        done = train(options={"layer": logn.LogitLayer("no_such_layer")})
    assert done.trainer.state.global_step == 8
    assert done.callback.output is None


def test_several_processes_are_refused_at_the_start():
    from logn.callbacks.transformers import LogNCallback

    trainer = SimpleNamespace(evaluate=print, is_fsdp_enabled=False, is_deepspeed_enabled=False)
    with pytest.raises(InputError, match="Expected a training in one process"):
        LogNCallback(trainer).on_train_begin(SimpleNamespace(world_size=2), None, None)
