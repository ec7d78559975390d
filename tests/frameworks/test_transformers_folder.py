"""Folders in the form of save_pretrained: read without a network and without pickles, written in one step."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from logn.deploy.fold import fold
from logn.deploy.transformers_folder import is_transformers_folder, read_transformers, write_transformers
from logn.errors import InputError
from logn.logits.locate import locate_logits

hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")


@pytest.fixture
def saved(models_of, spread, tmp_path):
    def save(name="rt_detr_v2", processor=True):
        folder = tmp_path / "model"
        model = models_of("test_transformers_models.py")["make"](name, spread)
        model.config.id2label = {0: "cup", 1: "fork", 2: "bed", 3: "cat", 4: "dog"}
        model.save_pretrained(folder)
        if processor:
            hf.RTDetrImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)
        return model, folder

    return save


def logits_of(model):
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return model(pixel_values=images)["logits"]


@pytest.mark.parametrize("name", ["rt_detr_v2", "deformable_detr_two_stage"])
def test_a_folded_model_that_is_written_and_read_again_gives_the_mapped_logits(name, saved, class_map, tmp_path):
    original, folder = saved(name)
    model, processor = read_transformers(folder)
    plain = logits_of(model)
    np.testing.assert_array_equal(plain, logits_of(original))
    affine = class_map(5)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* was tied to ")
        fold(model, locate_logits(model), affine)
    (folder / "LICENSE").write_text("as it was")
    (folder / "training_state.txt").write_text("not of the new model")
    out = write_transformers(model, processor, tmp_path / "corrected", source=folder)
    again, its_processor = read_transformers(out)
    np.testing.assert_allclose(logits_of(again), affine(plain), atol=1e-4)
    assert type(again) is type(original)
    assert its_processor.to_dict() == processor.to_dict()
    assert again.config.id2label[4] == "dog"
    assert (out / "LICENSE").read_text() == "as it was"
    assert {file.name for file in tmp_path.iterdir()} == {"model", "corrected"}
    assert not (out / "training_state.txt").exists()


def test_nothing_is_left_where_writing_fails(saved, tmp_path):
    model, _ = saved()

    class Unwilling:
        def save_pretrained(self, folder):
            raise OSError("no room")

    with pytest.raises(OSError, match=r"no room"):
        write_transformers(model, Unwilling(), tmp_path / "corrected")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    with pytest.raises(InputError, match=r"`.*model` not to exist, but it does; give a new folder"):
        write_transformers(model, Unwilling(), tmp_path / "model")
    with pytest.raises(InputError, match=r"folder of `.*` to exist, but `.*nowhere` does not"):
        write_transformers(model, Unwilling(), tmp_path / "nowhere" / "corrected")


def test_what_lacks_a_file_is_refused(saved, tmp_path):
    _, folder = saved(processor=False)
    with pytest.raises(InputError, match=r"hold `preprocessor_config.json`, .*processor.save_pretrained\(folder\)\.$"):
        read_transformers(folder)
    with pytest.raises(InputError, match=r"to be a folder in the form of save_pretrained, but there is none"):
        read_transformers(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"`.*empty` to hold `config.json`"):
        read_transformers(tmp_path / "empty")
    assert is_transformers_folder(folder)
    assert not is_transformers_folder(tmp_path / "empty")


def test_pickles_are_never_opened(saved):
    _, folder = saved()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"weights as safetensors, but got weights as a pickle only \(`pytorch_model"):
        read_transformers(folder)


def test_weights_that_are_missing_are_not_drawn_at_random(saved):
    _, folder = saved()
    config = json.loads((folder / "config.json").read_text())
    # The same layers under another class: an Auto class would load them without a word.
    config["architectures"] = ["RTDetrForObjectDetection"]
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "rt_detr", "decoder_layers": 5}))
    with pytest.raises(InputError, match=r"hold every weight of RTDetrForObjectDetection, but it lacks `"):
        read_transformers(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["NoSuchModel"]}, "to name a model of transformers under `architectures`, but got 'NoSuch"),
        ({"architectures": None}, "to name a model of transformers under `architectures`, but got None"),
        ({"model_type": "no_such_type"}, "to hold a model of transformers, but it cannot be read: "),
    ],
)
def test_configurations_that_name_no_model_are_refused(saved, change, said):
    _, folder = saved()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(InputError, match=said):
        read_transformers(folder)


def test_a_broken_file_of_weights_is_one_sentence(saved):
    _, folder = saved()
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(InputError, match=r"`.*model` to hold a model of transformers, but it cannot be read: "):
        read_transformers(folder)
