"""The pages work by copy and paste: blocks run in their order, and what a page shows as printed was printed."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import logn

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```(console|python|text)\n(.*?)^```", flags=re.M | re.S)
pytestmark = [
    pytest.mark.skipif(not HOW_TO.exists(), reason="the documentation is not beside the tests"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture
def run_page(run_logn, capsys, tmp_path, monkeypatch):
    """Run all blocks of a page in an empty folder; gives the names of its Python."""
    monkeypatch.chdir(tmp_path)

    def run(page, names=None):
        names, printed = dict(names or {}), ""
        for language, block in BLOCK.findall((HOW_TO / page).read_text(encoding="utf-8")):
            if language == "console":
                printed += run_logn(block)
            elif language == "python":
                exec(compile(block, page, "exec"), names)  # noqa: S102 - our own page
                printed += capsys.readouterr().out
            else:
                assert " ".join(block.split()) in " ".join(printed.split())
        return names

    return run


def test_logits_in_files(run_page, tmp_path):
    run_page("files.md")
    before, after = np.load(tmp_path / "shard0.npy"), np.load(tmp_path / "corrected.npy")
    assert np.ptp(after[:, :-1].mean(0)) < 0.6 * np.ptp(before[:, :-1].mean(0))  # half of the prior is gone
    np.testing.assert_array_equal(before[:, -1], after[:, -1])


def test_class_mix(run_page):
    names = run_page("class-mix.md")
    np.testing.assert_allclose(names["mix"].target, [0.2, 0.2, 0.3, 0.3], atol=0.02)
    np.testing.assert_allclose(names["affine"].shift, logn.ClassAffine.load("affine.safetensors").shift, atol=0.1)


def write_yolo(labels, folder):
    """The annotated images of a COCO file as YOLO labels."""
    content = json.loads(labels.read_text())
    ids = sorted(category["id"] for category in content["categories"])
    names = {category["id"]: category["name"] for category in content["categories"]}
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True)
    for image in content["images"]:
        shutil.copy(labels.parent / image["file_name"], folder / "images")
        lines = ""
        for entry in content["annotations"]:
            if entry["image_id"] == image["id"]:
                x, y, w, h = np.array(entry["bbox"]) / np.tile([image["width"], image["height"]], 2)
                lines += f"{ids.index(entry['category_id'])} {x + w / 2:.6f} {y + h / 2:.6f} {w:.6f} {h:.6f}\n"
        (folder / "labels" / f"{Path(image['file_name']).stem}.txt").write_text(lines)
    (folder / "data.yaml").write_text(f"train: images\nval: images\nnames: {[names[number] for number in ids]}\n")


def test_measure(run_page, tmp_path):
    for package in ("onnxruntime", "PIL", "matplotlib", "jinja2", "torch"):
        pytest.importorskip(package)
    from logn import demo
    from logn.demo.problem import draw_problem

    draw_problem(tmp_path, train=24, test=8)
    (tmp_path / "test.json").rename(tmp_path / "val.json")
    shutil.copytree(tmp_path / "images" / "train", tmp_path / "train")
    shutil.copy(Path(demo.__file__).with_name("glyphs.onnx"), tmp_path / "model.onnx")
    write_yolo(tmp_path / "val.json", tmp_path / "yolo")
    rng = np.random.default_rng(0)
    labels, counts = rng.integers(0, 4, 80), np.array([200, 60, 15, 4])
    for name, rows in (("test.npy", labels), ("train.npy", rng.choice(4, 80, p=counts / counts.sum()))):
        np.save(name, 2 * np.eye(4)[rows] + rng.standard_normal((80, 4)) + np.log(counts))
    np.save("labels.npy", labels)
    Path("classes.csv").write_text("name,image_count\n" + "".join(f"c{count},{count}\n" for count in counts))
    categories = json.loads(Path("val.json").read_text())["categories"]
    class_names = [category["name"] for category in sorted(categories, key=lambda category: category["id"])]

    def my_model(images):
        size = {"height": images[0].shape[1], "width": images[0].shape[2]}
        boxes, logits = np.tile([1.0, 2.0, 30.0, 35.0], (5, 1)), rng.standard_normal((5, len(class_names) + 1))
        return [SimpleNamespace(boxes=boxes, logits=logits, **size) for _ in images]

    names = run_page("measure.md", {"my_model": my_model, "names": class_names})
    assert logn.Comparison.load("my-comparison") == names["comparison"]
    assert len(logn.PredictionStore("my-predictions")) == 8
    for folder in ("comparison", "classifier"):
        assert "<html" in (tmp_path / folder / "report.html").read_text(encoding="utf-8")
