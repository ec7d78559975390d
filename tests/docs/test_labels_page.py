"""The page on labels works as it is written, on a Roboflow export and a VOC folder made from drawn scenes."""

import json
import shutil
from pathlib import Path

import pytest
from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
from logn_research.datasets.glyphs.settings import GlyphSettings

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "labels.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


def things_of(scenes, split):
    """Each image of a split with its objects: class number, box."""
    content = json.loads((scenes / f"{split}.json").read_text())
    ids = sorted(category["id"] for category in content["categories"])
    names = {category["id"]: category["name"] for category in content["categories"]}
    for image in content["images"]:
        mine = [entry for entry in content["annotations"] if entry["image_id"] == image["id"]]
        yield (
            scenes / image["file_name"],
            [(ids.index(entry["category_id"]), names[entry["category_id"]], entry["bbox"]) for entry in mine],
            (image["width"], image["height"]),
        )


def as_roboflow(scenes, root, names):
    for split, folder in (("train", "train"), ("test", "valid")):
        for kind in ("images", "labels"):
            (root / folder / kind).mkdir(parents=True)
        for file, things, (width, height) in things_of(scenes, split):
            shutil.copy(file, root / folder / "images" / file.name)
            lines = [
                f"{label} {(x + w / 2) / width:.6f} {(y + h / 2) / height:.6f} {w / width:.6f} {h / height:.6f}\n"
                for label, _, (x, y, w, h) in things
            ]
            (root / folder / "labels" / f"{file.stem}.txt").write_text("".join(lines))
    yaml = (
        f"train: ../train/images\nval: ../valid/images\n\nnc: {len(names)}\nnames: {names}\n\nroboflow:\n  version: 1\n"
    )
    (root / "data.yaml").write_text(yaml)


def as_voc(scenes, root, left_out):
    """One class is left out, and the others are written in capitals."""
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for file, things, (width, height) in things_of(scenes, "test"):
        shutil.copy(file, root / "JPEGImages" / file.name)
        objects = "".join(
            f"<object><name>{name.upper()}</name><bndbox><xmin>{round(x) + 1}</xmin><ymin>{round(y) + 1}</ymin>"
            f"<xmax>{round(x + w)}</xmax><ymax>{round(y + h)}</ymax></bndbox></object>"
            for _, name, (x, y, w, h) in things
            if name != left_out
        )
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        (root / "Annotations" / f"{file.stem}.xml").write_text(
            f"<annotation><filename>{file.name}</filename>{size}{objects}</annotation>"
        )
        with (root / "ImageSets" / "Main" / "test.txt").open("a") as listed:
            listed.write(f"{file.stem}\n")


def test_the_commands_of_the_page(blocks, run_logn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = GlyphSettings(classes=4, train=16, dev=2, test=8, size=64)
    generate_glyph_scenes(tmp_path / "scenes", settings, workers=1)
    categories = json.loads((tmp_path / "scenes" / "test.json").read_text())["categories"]
    names = [category["name"] for category in sorted(categories, key=lambda category: category["id"])]
    as_roboflow(tmp_path / "scenes", tmp_path / "hats", names)
    seen = {name for _, things, _ in things_of(tmp_path / "scenes", "test") for _, name, _ in things}
    left_out = sorted(seen)[0]
    as_voc(tmp_path / "scenes", tmp_path / "VOC2007", left_out)
    walk, voc = blocks("sh")
    with pytest.warns(UserWarning, match="has boxes only, so the masks of `small` are not trained"):
        printed = run_logn(walk, shorter={"--iterations 3000": "--iterations 2 --batch 2"})
    assert "images: 16" in printed
    assert "COCO box AP, not federated" in printed
    assert "groups by training counts" in printed
    assert (tmp_path / "report.html").stat().st_size > 10_000
    store = json.loads(next((tmp_path / "run" / "predictions").glob("part-*/header.json")).read_text())
    assert store["class_names"] == names
    printed = run_logn(voc)
    assert f"{len(seen) - 1} of the 4 classes of the model are in the labels and measured" in " ".join(printed.split())
    assert left_out in printed
