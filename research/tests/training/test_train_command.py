"""`logn train` answers in JSON, writes a model that other verbs open, and refuses wrong input in one sentence."""

import pytest
import torch

from logn.predictions.store import Predictions

TINY = ["--iterations", "1", "--batch", "2", "--image-size", "64", "--device", "cpu"]
pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_summary_is_json_and_a_second_call_has_nothing_to_do(lvis_folder, tmp_path, run):
    arguments = ["train", lvis_folder, "-o", tmp_path / "run", *TINY]
    summary = run(*arguments, "--json").json
    assert (summary["iterations"], summary["num_classes"], summary["num_images"]) == (1, 4, 10)
    assert summary["losses"]["loss_mask"] > 0
    assert "Nothing was left to do" in run(*arguments).out


def test_product_verbs_open_a_run_by_its_model_file(lvis_folder, tmp_path, run):
    model = f"{tmp_path / 'run'}/model.py:load"
    assert run("train", lvis_folder, "-o", tmp_path / "run", *TINY).code == 0
    assert run("predict", model, "--data", lvis_folder / "train.json", "-o", tmp_path / "found").code == 0
    assert len(Predictions(tmp_path / "found")) == 10
    corrected = tmp_path / "corrected.safetensors"
    result = run("correct", model, "--data", lvis_folder / "train.json", "--method", "logn", "-o", corrected)
    assert result.code == 0, result.err
    assert corrected.is_file()


@pytest.mark.usefixtures("few_weights")
def test_one_iteration_of_the_papers_detector_with_lvis_classes(make_lvis_folder, tmp_path, run):
    make_lvis_folder(tmp_path, images=2, classes=1203)
    options = ["-m", "mask-rcnn-r50", "--classifier", "cosine", "--sampler", "repeat-factor-ceil"]
    assert run("train", tmp_path, "-o", tmp_path / "run", *options, *TINY, "--json").json["num_classes"] == 1203


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "There is no annotation file or folder `nowhere`."),
        ([".", "--model", "resnet10"], "to be one of ('small', 'mask-rcnn-r50'"),
        ([".", "--set", "mask_classifier=cosine"], "for 'small' without weights, but got 'cosine'"),
        ([".", "--set", "colour=red"], "`--set`"),
        ([".", "--set", "milestones=3,5"], "where the learning rate falls as a cosine"),
        ([".", "--set", "milestones=three"], "Expected `milestones` to be of type"),
        ([".", "--feature-memory"], "to be used with the loss `loce`"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, sentence, lvis_folder, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(lvis_folder)
    assert sentence in refused("train", *arguments, "-o", tmp_path / "run", *TINY)
    assert not (tmp_path / "run").exists()


def test_a_missing_image_is_named(make_lvis_folder, tmp_path, refused):
    make_lvis_folder(tmp_path, images=2)
    for image in (tmp_path / "images").iterdir():
        image.unlink()
    assert "Image 1 of `" in refused("train", tmp_path, "-o", tmp_path / "runs" / "a", *TINY)
    assert not (tmp_path / "runs").exists()  # what was made for the run is gone, since nothing came of it


def test_a_damaged_weights_file_runs_nothing(lvis_folder, tmp_path, refused):
    torch.save({"weights": print}, tmp_path / "bad.pth")
    arguments = ["train", lvis_folder, "-o", tmp_path / "run", "-m", "mask-rcnn-r50", "--weights", tmp_path / "bad.pth"]
    assert "not a file of tensors alone" in refused(*arguments, *TINY)
