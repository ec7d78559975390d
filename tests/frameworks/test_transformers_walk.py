"""A Hugging Face folder from predictions to the report, by the commands of its page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from logn.cli.main import execute
from logn.evaluate.store.store import PredictionStore

hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")

PAGE = Path(__file__).parents[2] / "docs/how-to/huggingface.md"
NAMES = ("cup", "fork", "bed", "cat", "dog")


def draw_images(file, seed, names=NAMES, images=6):
    rng = np.random.default_rng(seed)
    content = {"categories": [{"id": 3 * i, "name": name} for i, name in enumerate(names, 1)], "images": []}
    content["annotations"] = []
    for number in range(1, images + 1):
        height, width = (int(side) for side in rng.integers(50, 90, 2))
        name = f"{file.stem}-{number}.png"
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file.with_name(name))
        content["images"].append({"id": number, "file_name": name, "height": height, "width": width})
        for _ in range(3):
            box = [float(value) for value in (*rng.uniform(0, 30, 2), *rng.uniform(10, 20, 2))]
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": number,
                    "category_id": int(rng.choice([category["id"] for category in content["categories"]])),
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    file.write_text(json.dumps(content))


@pytest.fixture
def work(models_of, spread, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = models_of("test_transformers_models.py")["make"]("d_fine", spread)
    # COCO's models have columns for numbers that are no class.
    model.config.id2label = {0: "cup", 1: "fork", 2: "bed", 3: "cat", 4: "dog"}
    model.save_pretrained("detector")
    hf.RTDetrImageProcessor(size={"height": 64, "width": 64}).save_pretrained("detector")
    draw_images(tmp_path / "train.json", 1)
    draw_images(tmp_path / "val.json", 2)
    return tmp_path


def test_the_commands_of_the_page(work):
    page = PAGE.read_text(encoding="utf-8")
    starts = ("correct", "predict")
    blocks = [re.search(rf"```console\n(\$ logn {verb} detector.*?)```", page, re.DOTALL)[1] for verb in starts]
    commands = [shlex.split(line.removeprefix("$ ")) for line in "".join(blocks).splitlines()]
    assert [command[1] for command in commands] == ["correct", "predict", "compare", "report"]
    # The page says train/; random weights may give nothing to correct.
    commands[0][commands[0].index("train/")] = str(work)
    commands[0] += ["--method", "recommended"]
    for command in commands:
        assert execute(command[1:]) == 0
    store = PredictionStore("predictions")
    assert (len(store), store.header.class_names, store.header.objectness) == (6, NAMES, True)
    assert store.header.postprocessing.objectness == "added"
    assert (work / "comparison" / "report.html").is_file()


def test_classes_that_the_model_does_not_know_are_refused_and_nothing_is_written(work, capsys):
    draw_images(work / "other.json", 3, names=("tree", "house"))
    assert execute(["predict", "detector", "--data", "other.json", "-o", "predictions"]) == 2
    said = capsys.readouterr().err
    assert "tree" in said
    assert len(said.strip().splitlines()) < 6
    assert not (work / "predictions").exists()


def test_a_folder_with_a_pickle_is_refused_in_one_sentence(work, capsys):
    (work / "detector/model.safetensors").rename(work / "detector/pytorch_model.bin")
    assert execute(["predict", "detector", "--data", "val.json", "-o", "predictions"]) == 2
    assert "as a pickle only" in capsys.readouterr().err
    assert not (work / "predictions").exists()
