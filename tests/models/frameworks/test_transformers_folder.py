"""Folders in the form of save_pretrained: read without network or pickles, written in one step; their page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import logn
from logn.errors import InputError
from logn.models.frameworks.transformers import read_transformers
from logn.models.locate import locate_logits
from logn.predictions.store import Predictions

hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")

NAMES = ("cup", "fork", "bed", "cat", "dog")


@pytest.fixture
def saved(models_of, spread, tmp_path):
    def save(name="rt_detr_v2", folder=tmp_path / "model"):
        model = models_of("test_transformers.py")["make"](name, spread)
        model.config.id2label = dict(enumerate(NAMES))
        model.save_pretrained(folder)
        hf.RTDetrImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)
        return model, folder

    return save


def logits_of(model):
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return model(pixel_values=images)["logits"]


@pytest.mark.parametrize("name", ["rt_detr_v2", "deformable_detr_two_stage"])
def test_a_corrected_folder_gives_the_mapped_logits_and_keeps_what_belongs_to_the_model(
    name, saved, class_map, noise, tmp_path
):
    original, folder = saved(name)
    model, processor = read_transformers(folder)
    plain = logits_of(model)
    np.testing.assert_array_equal(plain, logits_of(original))
    (folder / "LICENSE").write_text("as it was")
    (folder / "training_state.txt").write_text("not of the new model")
    affine, out = class_map(5), tmp_path / "corrected"
    logn.correct(folder, noise, out, method=affine)
    again, its_processor = read_transformers(out)
    np.testing.assert_allclose(logits_of(again), affine(plain), atol=1e-4)
    assert type(again) is type(original)
    assert its_processor.to_dict() == processor.to_dict()
    assert again.config.id2label[4] == "dog"
    assert (out / "LICENSE").read_text() == "as it was"
    assert {file.name for file in tmp_path.iterdir()} == {"model", "train", "corrected"}
    assert not (out / "training_state.txt").exists()


def configured(**changes):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


# What is done to a folder, and what the refusal names beside it.
UNREADABLE = {
    "no processor": (lambda folder: (folder / "preprocessor_config.json").unlink(), "preprocessor_config.json"),
    "a pickle": (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "safetensors"),
    # The same layers under another class: an Auto class would load them, with weights drawn at random.
    "another class": (
        configured(architectures=["RTDetrForObjectDetection"], model_type="rt_detr", decoder_layers=5),
        "weights of RTDetrForObjectDetection",
    ),
    "an unknown class": (configured(architectures=["NoSuchModel"]), "NoSuchModel"),
    "no class": (configured(architectures=None), "architectures"),
    "an unknown type": (configured(model_type="no_such_type"), "transformers"),
    "no weights": (lambda folder: (folder / "model.safetensors").write_bytes(b"no weights"), "transformers"),
}


@pytest.mark.parametrize(("change", "word"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_refused(change, word, saved):
    _, folder = saved()
    change(folder)
    with pytest.raises(InputError, match=rf"`{re.escape(str(folder))}`") as caught:
        read_transformers(folder)
    assert word in str(caught.value)


SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
SMALL_DISTILLED = {"vocab_size": 60, "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


@pytest.mark.parametrize(
    ("name", "path", "config"),
    [
        ("Bert", "classifier", SMALL),
        ("DistilBert", "classifier", SMALL_DISTILLED),
        ("Roberta", "classifier.out_proj", SMALL),
        ("DebertaV2", "classifier", SMALL),
        ("Electra", "classifier.out_proj", SMALL),
        ("ModernBert", "classifier", SMALL | ENDS),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning:torch.jit._script")  # DeBERTa's use of it
def test_text_classifiers_are_corrected_in_python(name, path, config, noise, tmp_path):
    torch.manual_seed(0)
    model = getattr(hf, f"{name}ForSequenceClassification")(getattr(hf, f"{name}Config")(num_labels=4, **config)).eval()
    tokens = torch.randint(3, 60, (6, 20, 7))
    batches = [{"input_ids": part, "attention_mask": torch.ones_like(part), "labels": part[:, 0]} for part in tokens]
    with torch.inference_mode():
        before = model(input_ids=tokens[0]).logits
    calibration = logn.calibrate(model, batches, fold=True, method="logn")
    assert (calibration.layer.path, calibration.layer.population) == (path, "images")
    with torch.inference_mode():
        np.testing.assert_allclose(model(input_ids=tokens[0]).logits, calibration.affine(before), atol=1e-4)
    model.save_pretrained(tmp_path / "text")
    with pytest.raises(InputError, match="text` is a text classifier"):
        logn.correct(tmp_path / "text", noise)


def test_language_models_that_score_each_token_are_not_known():
    config = hf.GPT2Config(vocab_size=60, n_embd=32, n_layer=1, n_head=2, num_labels=4, bos_token_id=1, eos_token_id=2)
    with pytest.raises(InputError, match="GPT2ForSequenceClassification"):
        locate_logits(hf.GPT2ForSequenceClassification(config))


def test_the_commands_of_the_page(run_page, saved):
    run = run_page(NAMES)
    saved("d_fine", Path("detector"))
    assert run("huggingface.md", "correct", "predict") == ["correct", "predict", "compare", "report"]
    store = Predictions("predictions")
    assert (len(store), store.head.class_names, store.head.objectness) == (4, NAMES, True)
    assert store.header.postprocessing.objectness == "added"
    assert Path("comparison/report.html").is_file()
