"""What is given decides what a verb does and which options it takes; old spellings go on working, unseen."""

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import typer

from logn.cli import main
from logn.cli.kinds import Kind, formerly, verb_of

KINDS = {  # of each verb, with the headings of the help
    "collect": ("Any source", "Dumped logits", "ONNX model", "Trained run"),
    "predict": ("Any model", "Detector", "Image classifier"),
    "train": ("Any model", "Detector", "Image classifier"),
    "compare": ("Any predictions", "Detector", "Image classifier"),
    "evaluate": ("Any predictions", "Predictions"),
}


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("verb", KINDS)
def test_one_help_has_a_group_for_each_kind(run, monkeypatch, verb, columns):
    monkeypatch.setenv("COLUMNS", columns)
    page = run(verb, "--help").out
    for title in KINDS[verb]:
        assert page.count(f"╭─ {title} ─") == 1
    assert "╭─ Options ─" not in page  # `--help` is among the options for all
    assert "…" not in page.split("Examples")[1]  # nothing is cut
    assert max(map(len, page.splitlines())) <= int(columns)


@pytest.mark.parametrize(
    ("verb", "spellings"),
    [
        ("collect", ["--most", "--batch-size", "--journal-seconds"]),
        ("predict", ["--model", "--root"]),
        ("train", ["--data", "--root", "--backbone-weights"]),
        ("compare", ["--predictions", "--logits", "--model", "--root"]),
        ("evaluate", ["--predictions", "--results"]),
        ("figure", ["--rfs-threshold"]),
    ],
)
def test_old_spellings_are_there_but_not_shown(run, monkeypatch, verb, spellings):
    monkeypatch.setenv("COLUMNS", "200")
    page = run(verb, "--help").out.split("╭", 1)[1]
    command = main.load_verb(next(known for known in main.VERBS if known.name == verb))
    hidden = {name for item in command.params if item.hidden for name in item.opts}
    assert set(spellings) <= hidden
    assert not any(f"│ {name} " in page or f"│    {name} " in page for name in spellings)


def test_an_option_has_one_name_in_all_verbs():
    """What two verbs call by different names was two things to learn; these are the names that went."""
    gone = {"--most", "--batch-size", "--root", "--rfs-threshold", "--backbone-weights"}
    own = {
        "glyph-classes": {"--most"},
        "table1": {"--root"},
    }  # images of the most frequent class; where bench keeps all
    for verb in main.VERBS:
        command = main.load_verb(verb)
        for part in getattr(command, "commands", {verb.name: command}).values():
            allowed = own.get(part.name, own["table1"] if verb.name == "bench" else set())
            shown = {name for item in part.params if not getattr(item, "hidden", False) for name in item.opts}
            assert not shown & (gone - allowed), part.name


@pytest.fixture
def sources(tmp_path, logits):
    """A folder of logits, an ONNX file and a run, as far as a look can tell."""
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"")
    return {"logits": tmp_path / "shards", "onnx": tmp_path / "model.onnx", "run": tmp_path / "run"}


WORDS = {"logits": "dumped logits", "onnx": "an ONNX model", "run": "a trained run"}
FITTING = {
    "--key x": ["logits"],
    "--background none": ["logits", "onnx"],
    "--images x": ["onnx", "run"],
    "--batch-size 1": ["onnx", "run"],
    "--size 8": ["onnx"],
    "--data x": ["onnx", "run"],
    "--image-size 8": ["run"],
}


@pytest.mark.parametrize(
    ("option", "source"),
    [(option, name) for option, fitting in FITTING.items() for name in WORDS if name not in fitting],
)
def test_what_does_not_fit_the_source_is_refused_by_name(refused, sources, tmp_path, option, source):
    """Also where the value is that of the default: the user meant something by it."""
    fitting = " or ".join(WORDS[name] for name in FITTING[option])
    sentence = refused("collect", sources[source], *option.split(), "-o", tmp_path / "s.safetensors")
    assert sentence == (
        f"Expected `{option.split()[0]}` only with {fitting}, but got {WORDS[source]} (`{sources[source]}`)."
    )
    assert not (tmp_path / "s.safetensors").exists()


def test_what_the_source_needs_is_asked_for(refused, sources, tmp_path):
    output = ("-o", tmp_path / "s.safetensors")
    assert f"`--images` with an ONNX model (`{sources['onnx']}`)" in refused("collect", sources["onnx"], *output)
    assert f"`--data` with a trained run (`{sources['run']}`)" in refused("collect", sources["run"], *output)
    both = refused("collect", sources["logits"], sources["onnx"], "--images", "x", *output)
    assert both.startswith(f"Expected one model, or any number of files of logits, but got `{sources['onnx']}`")


def test_a_new_and_an_old_spelling_at_once_are_refused(refused, sources, tmp_path):
    options = ("--images", tmp_path, "--max-images", "3", "--most", "4", "-o", tmp_path / "s.safetensors")
    sentence = refused("collect", sources["onnx"], *options)
    assert sentence == "Expected one of `--max-images` and `--most`, which are the same, but got both."


def test_the_folder_of_coco_is_no_class_folders(refused, tmp_path):
    """Its folders of images would make a classifier of `train2017` against `annotations`."""
    for name in ("annotations", "train2017"):
        (tmp_path / "coco" / name).mkdir(parents=True)
    (tmp_path / "coco" / "annotations" / "instances_train2017.json").write_text("{}")
    sentence = refused("train", tmp_path / "coco", "-o", tmp_path / "run")
    assert sentence.endswith("to hold `train.json`, but it holds no JSON file at all; name the file itself.")
    (tmp_path / "empty").mkdir()
    sentence = refused("train", tmp_path / "empty", "-o", tmp_path / "run")
    assert sentence.endswith("to hold annotations (`train.json`), class folders or lists of images, but it holds none.")
    assert not (tmp_path / "run").exists()


def test_a_detector_is_told_to_predict_before_it_is_compared(refused, tmp_path):
    from logn_research.training.checkpoint import Checkpoint
    from logn_research.training.settings import DetectorSettings

    Checkpoint(DetectorSettings("small", num_classes=2), 0, {}).save(tmp_path / "checkpoint.safetensors")
    sentence = refused("compare", tmp_path, "-a", "test.json")
    assert f"run `logn predict {tmp_path} --data test.json -o predictions`" in sentence


def test_the_threshold_of_repeat_factors_has_one_name(run, tmp_path):
    images = [{"id": number, "file_name": f"{number}.png", "height": 8, "width": 8} for number in range(4)]
    box = {"bbox": [0, 0, 4, 4], "area": 16}
    boxes = [box | {"id": n + 1, "image_id": n, "category_id": 1 if n else 2} for n in range(4)]
    categories = [{"id": 1, "name": "cup"}, {"id": 2, "name": "spoon"}]
    content = {"images": images, "categories": categories, "annotations": boxes}
    (tmp_path / "train.json").write_text(json.dumps(content))
    inspect = ("data", "inspect", tmp_path / "train.json", "--sampler", "repeat-factor-ceil", "--json")
    new, old, default = (run(*inspect, *more).json for more in (["--repeat-threshold", 1], ["--threshold", 1], []))
    assert new == old
    assert new["images_of_an_epoch"] > default["images_of_an_epoch"]


Text = Annotated[str, typer.Argument(), formerly("--text")]


def test_kinds_that_declare_an_option_in_two_ways_are_a_fault_of_ours():
    def one(text: Text, times: Annotated[int, typer.Option()] = 1) -> None: ...
    def other(text: Text, times: Annotated[int, typer.Option()] = 2) -> None: ...

    with pytest.raises(TypeError, match="one declaration of `times`"):

        @verb_of(Kind("One", "one", one), Kind("Other", "another", other), common="Any")
        def look(text: Text) -> Kind: ...


def test_no_source_of_numbers_is_lost_on_the_way(run, logits, tmp_path):
    """Values reach the function of their kind as they were given."""
    output = tmp_path / "s.safetensors"
    shards = [Path(tmp_path / "shards" / f"{index}.npy") for index in range(2)]
    result = run(
        "collect", *shards, "--threads", "1", "--sample-rows", "7", "--population", "rows", "-o", output, "--json"
    )
    assert (result.json["files"], result.json["sample_rows"]) == (2, 7)
    assert result.json["rows"] == sum(len(np.load(shard)) for shard in shards)
