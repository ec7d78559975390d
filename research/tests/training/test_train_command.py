"""`logn train` answers in JSON, and in one sentence when the input is wrong."""

import json

import pytest

from logn.cli.main import execute

TINY = ["--iterations", "1", "--batch", "2", "--image-size", "64", "--device", "cpu"]
pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_summary_is_json_and_a_second_call_has_nothing_to_do(lvis_folder, tmp_path, capsys):
    arguments = ["train", "--data", str(lvis_folder), "-o", str(tmp_path / "run"), *TINY]
    assert execute([*arguments, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["iterations"], summary["num_classes"], summary["num_images"]) == (1, 4, 10)
    assert summary["losses"]["loss_mask"] > 0
    assert execute(arguments) == 0
    assert "Nothing was left to do" in capsys.readouterr().out


def test_one_iteration_of_the_papers_detector_with_lvis_classes(make_lvis_folder, tmp_path, capsys):
    make_lvis_folder(tmp_path, images=2, classes=1203)
    options = ["-m", "mask-rcnn-r50", "--classifier", "cosine", "--sampler", "repeat-factor-ceil"]
    assert execute(["train", "--data", str(tmp_path), "-o", str(tmp_path / "run"), *options, *TINY, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_classes"] == 1203


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "Expected `nowhere` to be annotations, or a list or a folder of images, but there is none."),
        (["nowhere", "--task", "detection"], "Expected `DATA` to be an annotation file or a folder, but there is no"),
        ([".", "--imbalance", "10"], "Expected `--imbalance` only with data of an image classifier, but got data of a"),
        ([".", "--model", "resnet10"], "Expected `--model` to be one of"),
        (["--data", ".", "--model", "yolo"], "Expected `--model` to be one of"),
        (["--data", ".", "--weights", "none.pth"], "there is no"),
        (
            [".", "--mask-classifier", "cosine"],
            "Expected no `--mask-classifier` for 'small', which has no mask",
        ),
        (
            [".", "-m", "mask-rcnn-r50", "--mask-classifier", "svm"],
            "Expected `--mask-classifier` to be one of",
        ),
        ([".", "--milestones", "3,5"], "Expected no `--milestones` where the learning rate falls as a cosine"),
        (
            [".", "--milestones", "three"],
            "Expected `--milestones` to be epochs with commas between them, but got",
        ),
    ],
)
def test_bad_input_gets_one_sentence(arguments, sentence, lvis_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(lvis_folder)
    assert execute(["train", *arguments, "-o", str(tmp_path / "run"), *TINY]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_missing_image_is_named(make_lvis_folder, tmp_path, capsys):
    make_lvis_folder(tmp_path, images=2)
    for image in (tmp_path / "images").iterdir():
        image.unlink()
    assert execute(["train", "--data", str(tmp_path), "-o", str(tmp_path / "runs" / "a"), *TINY]) == 2
    assert "but there is no file." in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()  # what was made for the run is gone, since nothing came of it
    (tmp_path / "there").mkdir()
    assert execute(["train", "--data", str(tmp_path), "-o", str(tmp_path / "there"), *TINY]) == 2
    assert (tmp_path / "there").exists()
