"""What people type before they know the command works, or is answered by what to type."""

import pytest

from logn.cli import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with what a user has: a model, images, labels, statistics of something."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best.pt").write_bytes(b"x")
    (tmp_path / "model.onnx").write_bytes(b"x")
    (tmp_path / "val.json").write_text("{}")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "1.png").write_bytes(b"x")
    return tmp_path


CORRECT = "`logn correct best.pt --images train/ -o corrected.pt --trust`"
PREDICT = "`logn predict best.pt --data val.json -o predictions --trust`"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("best.pt --images train/", CORRECT),
        ("calibrate best.pt", "did you mean `logn correct`?"),
        ("colect logits/", "did you mean `logn collect`?"),
        ("eval best.pt", "did you mean `logn evaluate`?"),
        ("collect best.pt --images train/", "Add `-o stats.safetensors`"),
        ("collect best.pt --images train/ -o s.safetensors", "`--trust`"),
        ("collect best.pt -o s.safetensors --trust", "`logn collect best.pt --images train/ -o s.safetensors --trust`"),
        ("collect train/ -o s.safetensors", "`logn collect model.onnx --images train/ -o stats.safetensors`"),
        ("collect 'x/*.npy'", "`--output`, but got none: the statistics file to write. Add `-o stats.safetensors`"),
        ("correct best.pt", "`--images`, a folder of training images"),
        ("correct best.pt --images train/", "`--output`"),
        ("correct best.pt train/ -o out.pt", "did you mean `--images train/`?"),
        ("correct best.pt --imgs train/ -o out.pt", "did you mean `--images`?"),
        ("correct best.pt --images train/ --out out.pt", "did you mean `--output`?"),
        ("correct --weights best.pt --images train/ -o out.pt", "MODEL stands without an option"),
        ("correct best.pt --images train/ -o out.pt --conf 0.3", "did you mean `--threshold`?"),
        ("correct best.pt --images train/ -o out.pt", "`--trust`"),
        ("fit best.pt -o x.safetensors", "--dry-run`"),
        ("inspect model.onnx", "`logn correct model.onnx --images train/ -o corrected.onnx --dry-run`"),
        ("inspect train", "`train` to be a file, but it is a folder"),
        ("fit --method norcal", "Add `-o affine.safetensors`"),
        (
            "fit --method logn:margn=0 -o x.safetensors",
            "options of `logn` to be among",
        ),
        ("compare best.pt -a val.json", PREDICT),
        ("evaluate best.pt -a val.json", PREDICT),
        ("thresholds best.pt -a val.json", PREDICT),
        ("compare predictions -a val.json", "`logn predict MODEL --data val.json -o predictions`"),
        ("evaluate predictions --data val.json", "did you mean `--annotations`?"),
        ("predict best.pt val.json -o p", "`--data`, but got none"),
        ("demo quick", "did you mean `--quick`?"),
        ("demo --seeds three", " whole number"),
        ("report train", "which `logn compare -o` writes"),
    ],
)
def test_a_wrong_try_is_told_what_to_type(here, refused, typed, answer):
    import shlex

    before = sorted(here.rglob("*"))
    assert answer in refused(*shlex.split(typed))
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("typed", "start"),
    [
        (["help"], "Usage: logn [OPTIONS]"),
        (["help", "correct"], "Usage: logn correct"),
        (["version"], "logn "),
        (["-V"], "logn "),
    ],
)
def test_what_can_mean_one_thing_only_is_done(capsys, typed, start):
    assert main.execute(typed) == 0
    assert capsys.readouterr().out.strip().startswith(start)


def test_statistics_in_the_place_of_predictions_are_told_apart(tmp_path, refused):
    from logn.statistics.moments import ClassMoments

    moments = ClassMoments(3)
    moments.update([[0.0, 1.0, 2.0]])
    moments.save(tmp_path / "stats.safetensors")
    assert "stand behind `-s`" in refused("compare", tmp_path / "stats.safetensors", "-a", "val.json")


def test_the_file_of_a_comparison_stands_for_its_folder(tmp_path, refused):
    (tmp_path / "comparison.json").write_text("{}")
    assert "comparison.json" in refused("report", tmp_path / "comparison.json", "-o", tmp_path / "r.html")
